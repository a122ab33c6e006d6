from datetime import UTC, datetime, timedelta

import httpx
import pytest

from events.store.records import ApiKey, Scope
from serve_app.access.api_keys import mint
from tests.support.edge import Edge
from tests.support.generate_bodies import workflow_body

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer nonsense", "Bearer dk_a_b_c", "dk_a_b_c", "ä"],
)
async def test_what_is_no_key_is_401(edge: Edge, header: str) -> None:
    async with edge.client_with(None) as anyone:
        answer = await anyone.get("/v1/jobs", headers={"Authorization": header.encode()})
    assert answer.status_code == 401


async def test_the_scheme_may_be_in_any_case(edge: Edge) -> None:
    key = await edge.key()
    async with edge.client_with(None) as anyone:
        for scheme in ("bearer", "BEARER", "Bearer "):
            answer = await anyone.get("/v1/jobs", headers={"Authorization": f"{scheme} {key}"})
            assert answer.status_code == 200


async def test_a_typo_a_stranger_and_an_old_key_are_told_apart(edge: Edge) -> None:
    key = await edge.key()
    stranger, _ = mint("eve", "made up", [Scope.READ], created_at=NOW)
    expired = await edge.key(expires_at=datetime.now(UTC) - timedelta(seconds=1))
    for text, reason in (
        (key[:-1] + ("a" if key[-1] != "a" else "b"), "misspelt"),
        (stranger, "not known"),
        (expired, "expired"),
    ):
        async with edge.client_with(text) as client:
            answer = await client.get("/v1/jobs")
        assert answer.status_code == 401
        assert reason in answer.json()["error"]["message"]


async def test_a_key_with_another_secret_is_not_known(edge: Edge) -> None:
    text, key = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    _, other = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    row = ApiKey(
        id=key.id,
        owner="alice",
        name="laptop",
        secret_sha256=other.secret_sha256,
        scopes=key.scopes,
        created_at=NOW,
    )
    await edge.services.keys.add(row)
    async with edge.client_with(text) as client:
        assert (await client.get("/v1/jobs")).status_code == 401


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (Scope.GENERATE, {"generate"}),
        (Scope.READ, {"read"}),
        (Scope.CANCEL, {"cancel"}),
        (Scope.ADMIN, {"generate", "read", "cancel"}),
    ],
)
async def test_a_scope_opens_its_own_routes(edge: Edge, scope: Scope, allowed: set[str]) -> None:
    async with await edge.client(scopes=[scope]) as client:
        answers = {
            "generate": await client.post("/workflow/v1/generate", json=workflow_body()),
            "read": await client.get("/v1/jobs"),
            "cancel": await client.post("/v1/jobs/x/cancel"),
        }
    assert {name for name, each in answers.items() if each.status_code != 403} == allowed


async def test_a_revoked_key_is_refused(edge: Edge, client: httpx.AsyncClient) -> None:
    key_id = client.headers["Authorization"].split("_")[1]
    await edge.services.keys.revoke(key_id, datetime.now(UTC))
    answer = await client.get("/v1/jobs")
    assert answer.status_code == 401
    assert "revoked" in answer.json()["error"]["message"]
