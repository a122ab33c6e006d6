import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from events.errors import LogUnavailable, OutcomeUnknown
from events.log import utc_now
from events.store.records import KeyLimits
from serve_app.access.api_keys import mint
from serve_app.api import create_api
from serve_app.replica import Replica
from tests.support.edge import ALL_SCOPES, Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body

MOST = 3
AT_EVERY_REQUEST_S = 1e-9


async def limited_key(edge: Edge, *, most: int | None = MOST, owner: str = "alice") -> str:
    limits = KeyLimits(max_open_jobs=most)
    text, key = mint(owner, "test", ALL_SCOPES, created_at=utc_now(), limits=limits)
    await edge.services.keys.add(key)
    return text


@pytest.fixture
async def edge(tmp_path: Path, log: FailingLog) -> AsyncGenerator[Edge]:
    """Counts again at every request."""
    async with running_edge(tmp_path, log=log, open_jobs_period_s=AT_EVERY_REQUEST_S) as edge:
        yield edge


def replica(edge: Edge) -> FastAPI:
    """Another one beside the edge's own."""
    return create_api(
        Replica(
            edge.services,
            ask_metrics=edge.ask_metrics,
            open_jobs_period_s=AT_EVERY_REQUEST_S,
        )
    )


@pytest.fixture
async def client(edge: Edge) -> AsyncGenerator[httpx.AsyncClient]:
    async with edge.client_with(await limited_key(edge)) as client:
        yield client


async def submit(client: httpx.AsyncClient) -> httpx.Response:
    return await client.post("/workflow/v1/generate", json=workflow_body())


async def accepted(client: httpx.AsyncClient, *, tries: int) -> int:
    answers = await asyncio.gather(*(submit(client) for _ in range(tries)))
    assert {answer.status_code for answer in answers} <= {202, 429}
    return sum(answer.status_code == 202 for answer in answers)


async def test_one_more_is_429_and_says_when_to_try_again(client: httpx.AsyncClient) -> None:
    for _ in range(MOST):
        assert (await submit(client)).status_code == 202
    answer = await submit(client)
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "too_many_open_jobs"
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("projected", [True, False])
async def test_it_is_exact_however_late_the_projection_is(
    edge: Edge, client: httpx.AsyncClient, projected: bool
) -> None:
    assert await accepted(client, tries=2) == 2
    if projected:
        await edge.project()
    assert await accepted(client, tries=10 * MOST) == 1
    if projected:
        await edge.project()
    assert await accepted(client, tries=10) == 0


async def test_a_job_that_ends_makes_room(edge: Edge, client: httpx.AsyncClient) -> None:
    ids = [(await submit(client)).json()["request_id"] for _ in range(MOST)]
    await client.post(f"/v1/jobs/{ids[0]}/cancel")
    await edge.run(ids[1])
    await edge.project()
    assert await accepted(client, tries=10) == 2


async def test_keys_are_counted_apart(edge: Edge, client: httpx.AsyncClient) -> None:
    assert await accepted(client, tries=10) == MOST
    async with (
        edge.client_with(await limited_key(edge)) as other,
        edge.client_with(await limited_key(edge, most=0)) as unlimited,
    ):
        assert await accepted(other, tries=10) == MOST
        assert await accepted(unlimited, tries=10) == 10
        await edge.project()
        assert await accepted(other, tries=10) == 0


async def test_a_key_without_a_number_has_that_of_the_settings(
    tmp_path: Path, log: FailingLog
) -> None:
    async with (
        running_edge(tmp_path, log=log, key_max_open_jobs=2) as edge,
        edge.client_with(await limited_key(edge, most=None)) as client,
    ):
        assert await accepted(client, tries=10) == 2


async def test_what_was_not_stored_takes_no_room(
    client: httpx.AsyncClient, log: FailingLog
) -> None:
    for error in (LogUnavailable(), OutcomeUnknown()):
        log.append_error = error
        for _ in range(MOST):
            assert (await submit(client)).status_code == 503
    log.recover()
    assert await accepted(client, tries=10) == MOST


async def test_a_repeat_is_answered_though_the_key_is_full(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "a"}
    path, body = "/workflow/v1/generate", workflow_body()
    first = await client.post(path, json=body, headers=headers)
    assert await accepted(client, tries=10) == MOST - 1
    repeat = await client.post(path, json=body, headers=headers)
    assert repeat.status_code == 202
    assert repeat.json()["request_id"] == first.json()["request_id"]


async def test_repeats_take_no_room(client: httpx.AsyncClient) -> None:
    for _ in range(10 * MOST):
        answer = await client.post(
            "/workflow/v1/generate", json=workflow_body(), headers={"Idempotency-Key": "a"}
        )
        assert answer.status_code == 202
    assert await accepted(client, tries=10) == MOST - 1


async def test_replicas_together_take_no_more_than_each_one_its_number(edge: Edge) -> None:
    """Where nothing is projected: the worst that can happen."""
    key = await limited_key(edge)
    replicas = [httpx.ASGITransport(replica(edge)) for _ in range(3)]
    headers = {"Authorization": f"Bearer {key}"}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                httpx.AsyncClient(transport=each, base_url="http://darkroom.test", headers=headers)
            )
            for each in replicas
        ]
        assert [await accepted(each, tries=10) for each in clients] == [MOST] * 3
        await edge.project()
        assert [await accepted(each, tries=10) for each in clients] == [0] * 3


async def test_replicas_see_each_others_jobs_once_they_are_projected(edge: Edge) -> None:
    key = await limited_key(edge)
    other = httpx.ASGITransport(replica(edge))
    async with (
        edge.client_with(key) as one,
        httpx.AsyncClient(
            transport=other, base_url="http://darkroom.test", headers=one.headers
        ) as two,
    ):
        assert await accepted(one, tries=2) == 2
        await edge.project()
        assert await accepted(two, tries=10) == 1


@pytest.mark.parametrize("projected", [True, False])
async def test_the_keys_of_an_owner_share_the_owners_number(
    tmp_path: Path, log: FailingLog, projected: bool
) -> None:
    settings = {"open_jobs_period_s": AT_EVERY_REQUEST_S, "owner_max_open_jobs": MOST}
    async with (
        running_edge(tmp_path, log=log, **settings) as edge,
        edge.client_with(await limited_key(edge, most=2)) as one,
        edge.client_with(await limited_key(edge, most=0)) as two,
        edge.client_with(await limited_key(edge, most=None, owner="bob")) as others,
    ):
        assert await accepted(one, tries=10) == 2
        if projected:
            await edge.project()
        assert await accepted(two, tries=10) == 1
        answer = await submit(two)
        assert answer.json()["error"]["message"] == (
            "All keys of this owner together may have 3 jobs that wait or run."
        )
        assert await accepted(others, tries=10) == MOST


async def test_an_owner_has_a_number_unless_the_settings_take_it_away(
    tmp_path: Path, log: FailingLog
) -> None:
    async with running_edge(tmp_path, log=log) as edge:
        assert edge.services.owner_settings.max_open_jobs == 2000
    (tmp_path / "unlimited").mkdir()
    async with (
        running_edge(tmp_path / "unlimited", log=log, owner_max_open_jobs=0) as edge,
        edge.client_with(await limited_key(edge, most=None)) as client,
    ):
        assert await accepted(client, tries=20) == 20
