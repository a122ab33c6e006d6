import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest

from events.errors import LogUnavailable, OutcomeUnknown
from tests.support.edge import Client, Edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body

MOST = 3
AT_EVERY_REQUEST_S = 1e-9
pytestmark = pytest.mark.edge(open_jobs_period_s=AT_EVERY_REQUEST_S)


def replica(edge: Edge) -> Edge:
    """Another one beside the edge's own."""
    return edge.another_replica(open_jobs_period_s=AT_EVERY_REQUEST_S)


@pytest.fixture
async def client(edge: Edge) -> AsyncGenerator[Client]:
    async with edge.client_with(await edge.key(max_open_jobs=MOST)) as client:
        yield client


async def submit(client: Client, *, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post("/workflow/v1/generate", json=workflow_body(), headers=headers)


async def accepted(client: Client, *, tries: int) -> int:
    answers = await asyncio.gather(*(submit(client) for _ in range(tries)))
    assert {answer.status_code for answer in answers} <= {202, 429}
    return sum(answer.status_code == 202 for answer in answers)


@pytest.mark.parametrize("projected", [True, False])
async def test_it_is_exact_however_late_the_projection_is(
    edge: Edge, client: Client, projected: bool
) -> None:
    assert await accepted(client, tries=2) == 2
    if projected:
        await edge.project()
    assert await accepted(client, tries=10 * MOST) == 1
    if projected:
        await edge.project()
    assert await accepted(client, tries=10) == 0


async def test_a_job_that_ends_makes_room(edge: Edge, client: Client) -> None:
    ids = [(await submit(client)).json()["request_id"] for _ in range(MOST)]
    await client.post(f"/v1/jobs/{ids[0]}/cancel")
    await edge.run(ids[1])
    await edge.project()
    assert await accepted(client, tries=10) == 2


async def test_keys_are_counted_apart(edge: Edge, client: Client) -> None:
    assert await accepted(client, tries=10) == MOST
    async with (
        edge.client_with(await edge.key(max_open_jobs=MOST)) as other,
        edge.client_with(await edge.key(max_open_jobs=0)) as unlimited,
    ):
        assert await accepted(other, tries=10) == MOST
        assert await accepted(unlimited, tries=10) == 10
        await edge.project()
        assert await accepted(other, tries=10) == 0


async def test_what_was_not_stored_takes_no_room(client: Client, log: FailingLog) -> None:
    for error in (LogUnavailable(), OutcomeUnknown()):
        log.append_error = error
        for _ in range(MOST):
            assert (await submit(client)).status_code == 503
    log.recover()
    assert await accepted(client, tries=10) == MOST


async def test_repeats_take_no_room_and_are_answered_though_the_key_is_full(
    client: Client,
) -> None:
    first = await submit(client, key="a")
    for _ in range(10 * MOST):
        assert (await submit(client, key="a")).status_code == 202
    assert await accepted(client, tries=10) == MOST - 1
    repeat = await submit(client, key="a")
    assert (repeat.status_code, repeat.json()["request_id"]) == (202, first.json()["request_id"])


async def test_replicas_together_take_no_more_than_each_one_its_number(edge: Edge) -> None:
    """Where nothing is projected: the worst that can happen."""
    key = await edge.key(max_open_jobs=MOST)
    clients = [replica(edge).client_with(key) for _ in range(3)]
    assert [await accepted(each, tries=10) for each in clients] == [MOST] * 3
    await edge.project()
    assert [await accepted(each, tries=10) for each in clients] == [0] * 3


async def test_replicas_see_each_others_jobs_once_they_are_projected(edge: Edge) -> None:
    key = await edge.key(max_open_jobs=MOST)
    one, two = edge.client_with(key), replica(edge).client_with(key)
    assert await accepted(one, tries=2) == 2
    await edge.project()
    assert await accepted(two, tries=10) == 1


@pytest.mark.edge(open_jobs_period_s=AT_EVERY_REQUEST_S, owner_max_open_jobs=MOST)
@pytest.mark.parametrize("projected", [True, False])
async def test_the_keys_of_an_owner_share_the_owners_number(
    edge: Edge, bob: Client, projected: bool
) -> None:
    async with (
        await edge.client(max_open_jobs=2) as one,
        await edge.client(max_open_jobs=0) as two,
    ):
        assert await accepted(one, tries=10) == 2
        if projected:
            await edge.project()
        assert await accepted(two, tries=10) == 1
        assert await accepted(bob, tries=10) == MOST


@pytest.mark.edge(owner_max_open_jobs=0)
async def test_the_settings_may_take_an_owners_number_away(edge: Edge) -> None:
    async with await edge.client() as client:
        assert await accepted(client, tries=20) == 20
