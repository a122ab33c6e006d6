from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from events.store.records import Scope
from tests.support.api_keys import created, shown
from tests.support.edge import Edge, running_edge


class TestRotate:
    async def test_both_keys_work_until_the_grace_is_over(
        self, edge: Edge, admin: httpx.AsyncClient
    ) -> None:
        limits = {"rate_per_s": 100, "burst": 50, "endpoints": ["default"]}
        old = await created(admin, name="site", scopes=["read"], limits=limits)
        answer = await admin.post(f"/v1/keys/{old['id']}/rotate")
        assert answer.status_code == 201
        new = answer.json()
        for name in ("owner", "name", "scopes", "limits"):
            assert new[name] == old[name]
        assert new["webhook_secret"] != old["webhook_secret"]
        after = await shown(admin, old["id"])
        assert (after["replaced_by"], after["state"]) == (new["id"], "live")
        left = datetime.fromisoformat(after["expires_at"]) - datetime.now(UTC)
        assert timedelta(days=6.9) < left <= timedelta(days=7)
        for each in (old, new):
            async with edge.client_with(each["key"]) as alice:
                assert (await alice.get("/v1/jobs")).status_code == 200

    async def test_without_grace_the_old_one_ends_at_once(
        self, edge: Edge, admin: httpx.AsyncClient
    ) -> None:
        old = await created(admin)
        async with edge.client_with(old["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 200
            await admin.post(f"/v1/keys/{old['id']}/rotate?grace_s=0")
            answer = await alice.get("/v1/jobs")
        assert answer.status_code == 401
        assert "expired" in answer.json()["error"]["message"]

    async def test_the_grace_of_the_settings_holds_where_none_is_given(
        self, tmp_path: Path
    ) -> None:
        async with (
            running_edge(tmp_path, key_rotation_grace_s=0) as edge,
            await edge.client("root", scopes=[Scope.ADMIN]) as admin,
        ):
            old = await created(admin)
            await admin.post(f"/v1/keys/{old['id']}/rotate")
            assert (await shown(admin, old["id"]))["state"] == "expired"

    async def test_the_new_key_lives_as_long_as_the_old_was_made_to(
        self, admin: httpx.AsyncClient
    ) -> None:
        end = datetime.now(UTC) + timedelta(days=30)
        old = await created(admin, expires_at=end.isoformat())
        new = (await admin.post(f"/v1/keys/{old['id']}/rotate")).json()
        lives = [
            datetime.fromisoformat(each["expires_at"]) - datetime.fromisoformat(each["created_at"])
            for each in (old, new)
        ]
        assert lives[0] == lives[1]

    @pytest.mark.parametrize("way", ["rotated", "revoked", "expired"])
    async def test_a_key_that_ended_or_was_rotated_is_a_conflict(
        self, admin: httpx.AsyncClient, way: str
    ) -> None:
        key_id = (await created(admin))["id"]
        if way == "expired":
            await admin.patch(f"/v1/keys/{key_id}", json={"expires_at": "2020-01-01T00:00:00Z"})
        elif way == "rotated":
            await admin.post(f"/v1/keys/{key_id}/rotate")
        elif way == "revoked":
            await admin.delete(f"/v1/keys/{key_id}")
        answer = await admin.post(f"/v1/keys/{key_id}/rotate")
        assert answer.status_code == 409
        assert answer.json()["error"]["type"] == "key_not_rotatable"
        assert way in answer.json()["error"]["message"]

    @pytest.mark.parametrize("grace", ["-1", "nan", "inf", "1e9", "x"])
    async def test_a_grace_that_makes_no_sense_is_a_bad_request(
        self, admin: httpx.AsyncClient, grace: str
    ) -> None:
        key_id = (await created(admin))["id"]
        answer = await admin.post(f"/v1/keys/{key_id}/rotate?grace_s={grace}")
        assert answer.status_code == 400
        assert "replaced_by" not in await shown(admin, key_id)
