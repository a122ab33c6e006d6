"""Keys over HTTP: made, changed, rotated and revoked."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook

from events.store.database import Database
from events.store.keys import ApiKeys
from serve_app.access.api_keys import Authenticator
from serve_app.key_schemas import KeyChanges, NewKey
from serve_app.refusals import KeyInvalid
from storage.service_secret import webhook_secret
from tests.support.api_keys import created, shown
from tests.support.edge import Client, Edge, refusal
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body
from tests.support.patience import FACTOR

GENERATE = "/workflow/v1/generate"


class TestCreate:
    async def test_the_key_works_and_is_shown_this_once(self, edge: Edge, admin: Client) -> None:
        answer = await admin.post("/v1/keys", json={"owner": "alice"})
        body = answer.json()
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Location"] == f"/v1/keys/{body['id']}"
        text, secret = body.pop("key"), body.pop("webhook_secret")
        assert secret == webhook_secret(edge.services.secret, body["id"])
        Webhook(secret)
        assert (await admin.get(answer.headers["Location"])).json() == body
        listed = await admin.get("/v1/keys")
        assert body in listed.json()["keys"]
        assert text.split("_")[2] not in listed.text
        assert "webhook_secret" not in listed.text
        async with edge.client_with(text) as alice:
            assert (await alice.post(GENERATE, json=workflow_body())).status_code == 202
            assert (await alice.get("/v1/keys")).status_code == 403

    async def test_what_is_left_out_has_its_usual_value(self, admin: Client) -> None:
        usual = {"name": "alice", "scopes": ["cancel", "generate", "read"], "limits": {}}
        body = await created(admin)
        assert usual.items() <= body.items()
        assert (body["state"], body.get("expires_at")) == ("live", None)

    async def test_what_is_said_is_kept(self, admin: Client) -> None:
        limits = {
            "rate_per_s": 0.5,
            "burst": 3,
            "max_open_jobs": 7,
            "endpoints": ["default", "fast"],
            "callback_hosts": ["*.example.com", "2001:db8::1"],
        }
        asked = {"owner": "Bob ●", "name": "phone", "scopes": ["read"], "limits": limits}
        asked["expires_at"] = "2999-12-31T23:59:59Z"
        assert asked.items() <= (await created(admin, **asked)).items()

    async def test_a_body_that_makes_no_sense_is_a_bad_request(self, admin: Client) -> None:
        changes: list[tuple[dict[str, Any], str]] = [
            ({"owner": ""}, "owner"),
            ({"owner": "a\x00b"}, "owner"),
            *(({"owner": name}, "owner") for name in (" a", "a ", "a\u200b", "a\u202eb", "a\xa0b")),
            ({"name": "phone\u200e"}, "name"),
            ({"owner": None}, "owner"),
            ({"scopes": ["root"]}, "0"),
            ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
            ({"expires_at": "9999-12-31T23:59:59-12:00"}, "expires_at"),
            ({"expires_at": "0001-01-01T00:00:00+14:00"}, "expires_at"),
            ({"colour": "red"}, "colour"),
            ({"limits": {"rate": 1}}, "rate"),
            ({"limits": {"rate_per_s": -1}}, "rate_per_s"),
            ({"limits": {"burst": 0}}, "burst"),
            ({"limits": {"weight": 0}}, "weight"),
            ({"limits": {"priority": "highest"}}, "priority"),
            ({"limits": {"endpoints": []}}, "endpoints"),
            ({"limits": {"endpoints": ["a b"]}}, "0"),
            ({"limits": {"callback_hosts": ["https://example.com"]}}, "0"),
            ({"limits": {"callback_hosts": ["a.*.example.com"]}}, "0"),
        ]
        assert (await admin.get("/v1/keys?owner=of an earlier version\u200b")).status_code == 200
        for change, field in changes:
            answer = await admin.post("/v1/keys", json={"owner": "alice", **change})
            assert refusal(answer) == (400, "invalid_request"), change
            fields = answer.json()["error"]["extra_info"]["fields"]
            assert field in {each["field"] for each in fields}

    async def test_a_body_that_is_none_is_refused(self, admin: Client) -> None:
        headers = {"Content-Type": "application/json"}
        for body, status in ((b"{", 400), (b"[]", 400), (b"", 400), (b"{}" + b" " * 600_000, 413)):
            answer = await admin.post("/v1/keys", content=body, headers=headers)
            assert answer.status_code == status, body[:9]


class TestChange:
    async def test_what_is_absent_stays(self, admin: Client) -> None:
        limits = {"burst": 3, "max_open_jobs": 7, "endpoints": ["default"]}
        before = await created(admin, expires_at="2999-01-01T00:00:00Z", limits=limits)
        changed = {"max_open_jobs": 8, "endpoints": None, "priority": "low"}
        change = {"name": "phone", "limits": changed}
        after = (await admin.patch(f"/v1/keys/{before['id']}", json=change)).json()
        assert after == await shown(admin, before["id"])
        kept_limits = {"burst": 3, "max_open_jobs": 8, "priority": "low"}
        del before["key"], before["webhook_secret"]
        assert after == before | {"name": "phone", "limits": kept_limits}

    async def test_an_expiry_can_be_taken_back(self, admin: Client) -> None:
        url = f"/v1/keys/{(await created(admin))['id']}"
        body = (await admin.patch(url, json={"expires_at": "2020-01-01T00:00:00Z"})).json()
        assert body["state"] == "expired"
        answer = await admin.patch(url, json={"expires_at": None})
        assert answer.json()["state"] == "live"
        assert "expires_at" not in answer.json()

    async def test_it_holds_here_at_once(self, edge: Edge, admin: Client) -> None:
        body = await created(admin)
        async with edge.client_with(body["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 200
            await admin.patch(f"/v1/keys/{body['id']}", json={"scopes": ["generate"]})
            assert (await alice.get("/v1/jobs")).status_code == 403

    async def test_an_empty_change_changes_nothing(self, admin: Client) -> None:
        body = await created(admin)
        for change in ({}, {"limits": {}}, {"name": None, "scopes": None}):
            answer = await admin.patch(f"/v1/keys/{body['id']}", json=change)
            assert answer.json() == await shown(admin, body["id"])

    async def test_it_does_not_bring_a_revoked_key_back(self, edge: Edge, admin: Client) -> None:
        body = await created(admin)
        await admin.delete(f"/v1/keys/{body['id']}")
        answer = await admin.patch(f"/v1/keys/{body['id']}", json={"expires_at": None})
        assert answer.json()["state"] == "revoked"
        async with edge.client_with(body["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 401


async def test_an_unknown_key_is_404(admin: Client) -> None:
    for key_id in ("a" * 12, "%00", "x", "A" * 12):
        url = f"/v1/keys/{key_id}"
        for answer in (
            await admin.get(url),
            await admin.patch(url, json={"name": "a"}),
            await admin.delete(url),
            await admin.post(f"{url}/rotate"),
        ):
            assert answer.status_code == 404, answer.request


def test_a_key_that_would_never_work_is_not_made() -> None:
    past: dict[str, Any] = {"expires_at": "2020-01-01T00:00:00Z"}
    with pytest.raises(ValidationError, match="in the past"):
        NewKey.model_validate({"owner": "alice", **past})
    assert KeyChanges.model_validate(past).expires_at is not None  # it ends a key


class TestRotate:
    async def test_both_keys_work_until_the_grace_is_over(self, edge: Edge, admin: Client) -> None:
        limits = {"rate_per_s": 100, "burst": 50, "endpoints": ["default"]}
        old = await created(admin, name="site", scopes=["read"], limits=limits)
        answer = await admin.post(f"/v1/keys/{old['id']}/rotate")
        assert answer.status_code == 201
        new = answer.json()
        own = {"id", "key", "webhook_secret", "created_at"}
        assert {name for name in old if new[name] != old[name]} == own
        after = await shown(admin, old["id"])
        assert (after["replaced_by"], after["state"]) == (new["id"], "live")
        left = datetime.fromisoformat(after["expires_at"]) - datetime.now(UTC)
        assert timedelta(days=6.9) < left <= timedelta(days=7)
        for each in (old, new):
            async with edge.client_with(each["key"]) as alice:
                assert (await alice.get("/v1/jobs")).status_code == 200

    async def test_without_grace_the_old_one_ends_at_once(self, edge: Edge, admin: Client) -> None:
        old = await created(admin)
        async with edge.client_with(old["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 200
            await admin.post(f"/v1/keys/{old['id']}/rotate?grace_s=0")
            answer = await alice.get("/v1/jobs")
        assert answer.status_code == 401
        assert "expired" in answer.json()["error"]["message"]

    async def test_the_new_key_lives_as_long_as_the_old_was_made_to(self, admin: Client) -> None:
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
        self, admin: Client, way: str
    ) -> None:
        key_id = (await created(admin))["id"]
        if way == "expired":
            await admin.patch(f"/v1/keys/{key_id}", json={"expires_at": "2020-01-01T00:00:00Z"})
        elif way == "rotated":
            await admin.post(f"/v1/keys/{key_id}/rotate")
        elif way == "revoked":
            await admin.delete(f"/v1/keys/{key_id}")
        answer = await admin.post(f"/v1/keys/{key_id}/rotate")
        assert refusal(answer) == (409, "key_not_rotatable")
        assert way in answer.json()["error"]["message"]

    async def test_a_key_that_changes_meanwhile_is_a_conflict(
        self, edge: Edge, admin: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lose(*_: object, **__: object) -> bool:
            return False

        key_id = (await created(admin))["id"]
        monkeypatch.setattr(edge.app.state.replica.administration.keys, "rotate", lose)
        answer = await admin.post(f"/v1/keys/{key_id}/rotate")
        assert refusal(answer) == (409, "key_not_rotatable")
        assert "changed by another request" in answer.json()["error"]["message"]

    async def test_a_grace_that_makes_no_sense_is_a_bad_request(self, admin: Client) -> None:
        key_id = (await created(admin))["id"]
        for grace in ("-1", "nan", "inf", "1e9", "x"):
            answer = await admin.post(f"/v1/keys/{key_id}/rotate?grace_s={grace}")
            assert answer.status_code == 400, grace
        assert "replaced_by" not in await shown(admin, key_id)


class TestRevoke:
    async def test_it_holds_here_at_once_and_the_first_time_stands(
        self, edge: Edge, admin: Client
    ) -> None:
        body = await created(admin)
        async with edge.client_with(body["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 200
            first = await admin.delete(f"/v1/keys/{body['id']}")
            assert (await alice.get("/v1/jobs")).status_code == 401
        assert first.json()["state"] == "revoked"
        again = await admin.delete(f"/v1/keys/{body['id']}")
        assert (again.status_code, again.json()) == (200, first.json())

    async def test_it_holds_on_every_replica_within_ten_seconds(
        self, admin: Client, tmp_path: Path
    ) -> None:
        """Each with a connection and a cache of its own, on one clock."""
        clock_s = 0.0
        body = await created(admin)
        header = f"Bearer {body['key']}"
        async with AsyncExitStack() as stack:
            replicas = []
            for _ in range(2):
                database = Database(f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}")
                stack.push_async_callback(database.close)
                replicas.append(Authenticator(ApiKeys(database), clock=lambda: clock_s))
            for replica in replicas:
                await replica.authenticate(header)
            await admin.delete(f"/v1/keys/{body['id']}")
            for replica in replicas:  # remembered: nobody was asked
                assert (await replica.authenticate(header)).revoked_at is None
            clock_s = 5.0
            assert clock_s < 10
            for replica in replicas:
                with pytest.raises(KeyInvalid, match="revoked"):
                    await replica.authenticate(header)

    async def test_an_answer_that_waited_asks_again(
        self, edge: Edge, admin: Client, log: FailingLog
    ) -> None:
        body = await created(admin)
        async with edge.client_with(body["key"]) as alice:
            job_id = (await alice.post(GENERATE, json=workflow_body())).json()["request_id"]
            path = f"/workflow/v1/result?request_id={job_id}&wait=60"
            waiting = asyncio.create_task(alice.get(path))
            await asyncio.wait_for(log.watched.wait(), 10 * FACTOR)
            await admin.delete(f"/v1/keys/{body['id']}")
            await edge.run(job_id)
            assert (await asyncio.wait_for(waiting, 10 * FACTOR)).status_code == 401
