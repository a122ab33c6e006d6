"""What the jobs of an owner keep: what is refused, and what a replica asks the database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import httpx
import pytest

from events.log import utc_now
from events.store.records import ApiKey, OwnerBytes, Scope
from serve_app.access import owner_limits
from serve_app.access.api_keys import mint
from serve_app.access.owner_limits import OwnerLimits
from serve_app.refusals import TooManyLogBytes, TooManyResultBytes
from settings.keys import OwnerSettings
from tests.support.clock import Clock
from tests.support.edge import Client, Edge, refusal
from tests.support.generate_bodies import workflow_body

if TYPE_CHECKING:
    from events.store.read_model import Usage

EVENT_BYTES = owner_limits._EVENT_BYTES
RESULT_BYTES = 10_000_000
"""Of all jobs of an owner; one of `workflow_body` may take 786,432."""


@dataclass
class Rows:
    """Stands for the database."""

    clock: Clock
    kept: OwnerBytes = field(default_factory=OwnerBytes)
    checkpoint: int = 0
    takes_s: float = 0.0
    queries: list[str] = field(default_factory=list)

    async def kept_bytes(self, owner: str) -> tuple[int, OwnerBytes]:
        self.queries.append(owner)
        self.clock.now += self.takes_s
        return self.checkpoint, self.kept


@pytest.fixture
def rows() -> Rows:
    return Rows(Clock())


def limits(rows: Rows, **most: int) -> OwnerLimits:
    none = {"max_open_jobs": 0, "max_log_bytes": 0, "max_result_bytes": 0}
    settings = OwnerSettings(**(none | most))  # type: ignore[arg-type]  # numbers all
    return OwnerLimits(cast("Usage", rows), settings, clock=rows.clock)


def key_of(owner: str) -> ApiKey:
    return mint(owner, "test", Scope, created_at=utc_now())[1]


ALICE = key_of("alice")


async def store(
    limits: OwnerLimits, log_bytes: int, *, position: int, result_bytes: int = 0
) -> None:
    async with limits.reserve(ALICE, log_bytes=log_bytes, result_bytes=result_bytes) as reservation:
        reservation.keep_until_counted(position)


async def test_what_was_stored_here_counts_until_it_is_projected(rows: Rows) -> None:
    mine = limits(rows, max_log_bytes=10 * EVENT_BYTES)
    for position in range(1, 6):
        await store(mine, EVENT_BYTES, position=position)
    for _ in range(3):
        with pytest.raises(TooManyLogBytes):
            await store(mine, EVENT_BYTES, position=6)
        rows.clock.now += 2
    rows.kept, rows.checkpoint = OwnerBytes(log_bytes=7 * EVENT_BYTES), 3
    rows.clock.now += 2
    with pytest.raises(TooManyLogBytes):  # seven of rows, and two jobs after them
        await store(mine, EVENT_BYTES, position=6)
    rows.kept, rows.checkpoint = OwnerBytes(log_bytes=8 * EVENT_BYTES), 5
    rows.clock.now += 2
    await store(mine, EVENT_BYTES, position=6)


async def test_what_is_being_stored_counts_and_what_failed_does_not(rows: Rows) -> None:
    mine = limits(rows, max_log_bytes=3 * EVENT_BYTES)
    async with mine.reserve(ALICE, log_bytes=EVENT_BYTES, result_bytes=0):
        with pytest.raises(TooManyLogBytes):
            await store(mine, EVENT_BYTES, position=1)
        async with mine.reserve(key_of("bob"), log_bytes=EVENT_BYTES, result_bytes=0):
            pass
    await store(mine, EVENT_BYTES, position=1)


async def test_results_are_refused_once_they_and_the_most_of_open_jobs_are_enough(
    rows: Rows,
) -> None:
    mine = limits(rows, max_result_bytes=1000)
    await store(mine, 1, position=1, result_bytes=600)
    await store(mine, 1, position=2, result_bytes=600)
    with pytest.raises(TooManyResultBytes, match="take 1,200 of 1,000 bytes"):
        await store(mine, 1, position=3)
    rows.checkpoint, rows.kept = 2, OwnerBytes(result_bytes=999)  # one has ended
    rows.clock.now += 2
    await store(mine, 1, position=3)
    rows.checkpoint, rows.kept = 3, OwnerBytes(result_bytes=1000)
    rows.clock.now += 2
    with pytest.raises(TooManyResultBytes, match="take 1,000 of 1,000 bytes"):
        await store(mine, 1, position=4)


@pytest.mark.parametrize(("takes_s", "period_s"), [(0, 1), (0.5, 25)])
async def test_an_owner_is_added_up_once_a_second_at_most_and_less_often_with_very_many_jobs(
    rows: Rows, takes_s: float, period_s: float
) -> None:
    rows.takes_s = takes_s
    mine = limits(rows, max_log_bytes=2**30)
    for position in range(100):
        await store(mine, 1, position=position)
    rows.clock.now += period_s - 0.5
    await store(mine, 1, position=101)
    assert rows.queries == ["alice"]
    rows.clock.now += 0.5
    await store(mine, 1, position=102)
    assert rows.queries == ["alice"] * 2


async def test_without_limits_nothing_is_asked(rows: Rows) -> None:
    await store(limits(rows), 2**40, position=1)
    assert rows.queries == []


async def test_what_it_remembers_is_bounded(rows: Rows) -> None:
    mine = OwnerLimits(cast("Usage", rows), OwnerSettings(), max_owners=10, clock=rows.clock)
    for number in range(100):
        await mine.kept_bytes(f"owner {number}")
        assert len(mine._accounts) <= 10


limited = pytest.mark.edge(owner_max_log_bytes=8 * EVENT_BYTES, owner_max_result_bytes=RESULT_BYTES)


async def submit(client: Client, **extra: str) -> httpx.Response:
    body = workflow_body() | {"extra_data": {"extra_pnginfo": extra}}
    return await client.post("/workflow/v1/generate", json=body)


@limited
async def test_large_requests_again_and_again_are_429_and_say_what_to_do(
    client: Client, bob: Client
) -> None:
    answers = [await submit(client, text="a" * 2 * EVENT_BYTES) for _ in range(5)]
    codes = [answer.status_code for answer in answers]
    assert codes == sorted(codes)
    assert set(codes) == {202, 429}
    error = answers[-1].json()["error"]
    assert error["type"] == "too_many_log_bytes"
    assert error["extra_info"]["max_bytes"] == 8 * EVENT_BYTES
    assert 0 < error["extra_info"]["used_bytes"] <= 8 * EVENT_BYTES
    assert "Erase jobs" in error["message"]
    assert "left the event log" in error["message"]
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert (await submit(bob)).status_code == 202


@limited
async def test_results_that_are_kept_refuse_new_jobs_until_one_is_erased(
    edge: Edge, client: Client
) -> None:
    job_id = (await submit(client)).json()["request_id"]
    await edge.start(job_id)
    await edge.store_image(job_id, data=bytes(RESULT_BYTES + 1))
    await edge.complete(job_id)
    await edge.project()
    async with await edge.another_replica().client() as other:
        answer = await submit(other)
        assert refusal(answer) == (429, "too_many_result_bytes")
        assert answer.json()["error"]["extra_info"] == {
            "used_bytes": RESULT_BYTES + 1,
            "max_bytes": RESULT_BYTES,
        }
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 200
    async with await edge.another_replica().client() as other:
        assert (await submit(other)).status_code == 202


async def test_the_log_tells_what_a_job_takes(edge: Edge, client: Client) -> None:
    """The same from this replica's memory, from the rows and from the events."""
    job_id = (await submit(client)).json()["request_id"]
    await edge.project()
    sizes = [event.size_bytes for event in await edge.log.read(job_id)]
    _, kept = await edge.services.read_model.usage.kept_bytes("alice")
    assert kept == OwnerBytes(log_bytes=sum(sizes), result_bytes=3 * 512 * 512)
    assert sizes[0] > 300
