"""Who may call what: every route of the OpenAPI document, by every kind of caller.

A new route fails here until it has its row in `called/routes.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.decisions import Quarantine
from events.store.records import Endpoint, Scope
from serve_app.access.api_keys import mint
from storage.tokens import file_token
from tests.support.edge import Edge, running_edge
from tests.unit.serve_app.access.called.routes import (
    ADMIN,
    GRAPH,
    KNOWN,
    NOBODY,
    PARAMETERS,
    ROUTES,
    UPLOAD,
    V2_ASSETS,
    Row,
)

PAST = datetime(2020, 1, 1, tzinfo=UTC)
UNKNOWN_JOB = "0199a1b2-0000-7000-8000-000000000000"


READS = [row for row in ROUTES if row.method in {"GET", "HEAD"}]
every_change = pytest.mark.parametrize("row", [row for row in ROUTES if row not in READS], ids=str)
as_owner_and_admin = pytest.mark.parametrize("admin", [False, True])


def test_the_table_has_every_route_of_the_document_and_no_other(edge: Edge) -> None:
    document = {
        (method.upper(), path)
        for path, methods in edge.app.openapi()["paths"].items()
        for method in methods
    }
    listed = [(row.method, row.path) for row in ROUTES if row.in_document]
    assert sorted(listed) == sorted(document)


@pytest.fixture
async def places(edge: Edge) -> dict[str, str]:
    """Alice's things."""
    async with await edge.client("alice") as alice:
        ids = {}
        for name, path, request in (
            ("diffusion", "/diffusion/v1/generate", PARAMETERS),
            ("workflow", "/workflow/v1/generate", GRAPH),
            ("called", f"/diffusion/v1/generate?callback_url={NOBODY}", PARAMETERS),
        ):
            answer = await alice.post(path, **request)
            ids[name] = answer.json()["request_id"]
            await edge.run(ids[name])
        ids["failed"] = (await alice.post("/diffusion/v1/generate", **PARAMETERS)).json()[
            "request_id"
        ]
        await edge.execute(ids["failed"], Quarantine("No."))
        assert (await alice.post("/v1/uploads", **UPLOAD)).status_code == 200
        known = await alice.post(V2_ASSETS, files={"file": ("k.png", KNOWN)})
        ids["asset"] = known.json()["id"]
        await alice.post("/userdata/a.json", content=b"{}")
    await edge.project()
    await edge.services.endpoints.put(Endpoint("alices", owner="alice"))
    secret = edge.services.secret
    token = file_token(secret, ids["diffusion"], "0.png")
    ids["endpoint"] = "alices"
    return {**ids, "token": token, "key": (await edge.key("alice")).split("_")[1]}


async def call(client: httpx.AsyncClient, row: Row, places: dict[str, str]) -> httpx.Response:
    url = (row.url or row.path).format(**places)
    return await client.request(row.method, url, **row.request)


async def refusals(client: httpx.AsyncClient, row: Row, places: dict[str, str]) -> list[Any]:
    """Status and error of the call, and of one without query and body where it needs a key: nothing
    may be looked at before that.
    """
    answers = [await call(client, row, places)]
    if row.scope is not None:
        bare = (row.url or row.path).partition("?")[0].format(**places)
        answers.append(await client.request(row.method, bare))
    return [
        (each.status_code, error_of(each) if each.status_code >= 400 else None) for each in answers
    ]


def error_of(answer: httpx.Response) -> Any:
    """The stable name of an error, in our form or in an adapter's; none of them is in a head."""
    if not answer.content:
        return {401: "unauthorized", 403: "forbidden"}.get(answer.status_code)
    error = answer.json()["error"]
    return error if isinstance(error, str) else error.get("code") or error["type"]


def scopes_of(row: Row, *, admin: bool) -> list[Scope]:
    return [ADMIN] if admin else [row.scope] if row.scope else []


async def require_enough(edge: Edge, row: Row, places: dict[str, str], *, admin: bool) -> None:
    async with await edge.client("alice", scopes=scopes_of(row, admin=admin)) as alice:
        assert (await call(alice, row, places)).status_code == row.own, row


async def require_hidden(edge: Edge, row: Row, places: dict[str, str], *, admin: bool) -> None:
    async with await edge.client("bob", scopes=scopes_of(row, admin=admin)) as bob:
        answer = await call(bob, row, places)
        if row.is_owned and admin:
            assert answer.status_code == row.own, row
            return
        assert answer.status_code == row.foreign, row
        if row.administers:
            assert PARAMETERS["json"]["prompt"] not in answer.text, row
            assert places["token"] not in answer.text, row
            return
        assert places["diffusion"] not in answer.text, row
        assert places["workflow"] not in answer.text, row
        if row.foreign == 404:
            nobodys = places | dict.fromkeys(("diffusion", "workflow", "called"), UNKNOWN_JOB)
            nobodys["endpoint"] = "unknown"
            unknown = await call(bob, row, nobodys)
            assert (unknown.status_code, unknown.content) == (404, answer.content), row


class TestWhatChangesSomething:
    """Each on things of its own."""

    @every_change
    @as_owner_and_admin
    async def test_a_key_of_its_scope_is_enough_and_admin_is_every_scope(
        self, edge: Edge, row: Row, places: dict[str, str], admin: bool
    ) -> None:
        await require_enough(edge, row, places, admin=admin)

    @every_change
    @as_owner_and_admin
    async def test_another_owner_sees_nothing_of_alices_jobs(
        self, edge: Edge, row: Row, places: dict[str, str], admin: bool
    ) -> None:
        await require_hidden(edge, row, places, admin=admin)


class TestWhatChangesNothing:
    """What is read or refused leaves everything as it was, so one edge serves all routes."""

    @pytest.fixture
    async def edge(self, tmp_path: Path) -> AsyncGenerator[Edge]:
        async with running_edge(tmp_path, owner_rate_per_s=0, rate_per_s=0) as edge:
            yield edge

    @as_owner_and_admin
    async def test_a_key_of_its_scope_is_enough_and_admin_is_every_scope(
        self, edge: Edge, places: dict[str, str], admin: bool
    ) -> None:
        for row in READS:
            await require_enough(edge, row, places, admin=admin)

    @as_owner_and_admin
    async def test_another_owner_sees_nothing_of_alices_jobs(
        self, edge: Edge, places: dict[str, str], admin: bool
    ) -> None:
        for row in READS:
            await require_hidden(edge, row, places, admin=admin)

    async def test_a_caller_without_a_key_that_lives_is_401(
        self, edge: Edge, places: dict[str, str]
    ) -> None:
        everything = tuple(Scope)
        revoked = await edge.key("alice", scopes=everything)
        assert await edge.services.keys.revoke(revoked.split("_")[1], datetime.now(UTC))
        expired = await edge.key("alice", scopes=everything, expires_at=PAST)
        unknown = mint("alice", "laptop", everything, created_at=PAST)[0]
        for key in (None, "nonsense", unknown, revoked, expired):
            async with edge.client_with(key) as client:
                for row in ROUTES:
                    for refusal in await refusals(client, row, places):
                        expected = (401, "unauthorized") if row.scope else (row.own, None)
                        assert refusal == expected, (row, key)

    async def test_every_other_scope_is_403(self, edge: Edge, places: dict[str, str]) -> None:
        for row in ROUTES:
            others = [scope for scope in Scope if scope not in {row.scope, ADMIN}]
            async with await edge.client("alice", scopes=others) as client:
                for refusal in await refusals(client, row, places):
                    expected = (403, "forbidden") if row.scope else (row.own, None)
                    assert refusal == expected, row
