"""Progress of jobs reaches those replicas that somebody asked about them, on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from events.bus.bus import Bus
from events.bus.progress import ProgressBoard, ProgressReporter
from events.ids import new_id
from events.job_progress import JobProgress
from local.nats_server import NatsServer
from serve_app.live.progress import LatestPreviews
from tests.support.bus import connected
from tests.support.polling import eventually, running

TOLD = JobProgress(done=3, total=20, preview=b"jpeg")
ASKED_S = 1.0


class Replica:
    """A board on a connection of its own, and what it heard."""

    def __init__(self, bus: Bus, *, most_subjects: int) -> None:
        self.bus = bus
        self.board = ProgressBoard(bus, asked_s=ASKED_S, most_subjects=most_subjects)
        self.heard: list[str] = []
        self.board.listeners.append(lambda job_id, _: self.heard.append(job_id))

    @property
    def messages(self) -> int:
        """How many ever came from the server, whatever they were."""
        return int(self.bus._client.stats["in_msgs"])


class Bench:
    def __init__(self, reporter: ProgressReporter, replica: Replica, idle: Replica) -> None:
        self._reporter = reporter
        self.replica = replica
        self.idle = idle
        """Another replica, which nobody asks."""

    async def tell(self, *jobs: str) -> None:
        for job_id in jobs:
            await self._reporter.report(job_id, TOLD)

    async def tell_until(self, check: Callable[[], bool], *jobs: str) -> None:
        """What is said before a subscription is made is heard by nobody."""

        async def told() -> bool:
            await self.tell(*jobs)
            await asyncio.sleep(0.02)
            return check()

        await eventually(told)


@pytest.fixture
async def bench(bus: Bus, nats_server: NatsServer) -> AsyncIterator[Bench]:
    async with _replica(nats_server) as replica, _replica(nats_server) as idle:
        yield Bench(ProgressReporter(bus), replica, idle)


@asynccontextmanager
async def _replica(server: NatsServer) -> AsyncIterator[Replica]:
    async with connected(server, "replica") as bus:
        replica = Replica(bus, most_subjects=4)
        async with running(replica.board.run()):
            yield replica


async def test_a_replica_without_listeners_is_sent_nothing(bench: Bench) -> None:
    watched, others = new_id(), [new_id() for _ in range(50)]
    before = bench.idle.messages
    with bench.replica.board.watching(watched):
        await bench.tell_until(lambda: bool(bench.replica.heard), watched)
        already = bench.replica.messages
        await bench.tell(*others, watched)
        await eventually(lambda: bench.replica.messages > already)
        await bench.tell_until(lambda: len(bench.replica.heard) > 3, watched)
    assert set(bench.replica.heard) == {watched}
    assert bench.replica.board.get(watched) == JobProgress(done=3, total=20)
    assert bench.idle.messages == before


async def test_who_stops_watching_is_sent_no_more(bench: Bench) -> None:
    job_id, board = new_id(), bench.replica.board
    with board.watching(job_id), board.watching(job_id):
        await bench.tell_until(lambda: bool(bench.replica.heard), job_id)
    await eventually(lambda: _is_quiet(bench, job_id))


async def test_who_watches_all_jobs_hears_of_each_once(bench: Bench) -> None:
    jobs, board, heard = [new_id() for _ in range(3)], bench.replica.board, bench.replica.heard
    with board.watching(jobs[0]):
        await bench.tell_until(lambda: bool(heard), jobs[0])
        with board.watching():
            await bench.tell_until(lambda: jobs[1] in heard, jobs[1])
            heard.clear()
            await bench.tell(*jobs)
            await eventually(lambda: len(heard) >= len(jobs))
            assert heard == jobs
        heard.clear()
        await eventually(lambda: _is_quiet(bench, jobs[1]))
        await bench.tell_until(lambda: jobs[0] in heard, jobs[0])


async def test_who_asks_hears_of_a_job_from_then_on_for_some_time(bench: Bench) -> None:
    job_id, board = new_id(), bench.replica.board
    assert board.get(job_id) is None
    await bench.tell_until(lambda: board.get(job_id) is not None, job_id)
    assert board.get(job_id) == JobProgress(done=3, total=20)
    await asyncio.sleep(ASKED_S)
    await eventually(lambda: _is_quiet(bench, job_id))
    assert board.get(job_id) == JobProgress(done=3, total=20)  # the last that was heard


async def test_previews_are_kept_of_a_job_that_was_asked_for(bench: Bench) -> None:
    job_id, previews = new_id(), LatestPreviews(bench.replica.board)
    assert previews.of("") is None
    assert previews.of(job_id) is None
    await bench.tell_until(lambda: previews.of(job_id) is not None, job_id)
    assert previews.of(job_id) == b"jpeg"


async def test_of_many_jobs_that_are_wanted_all_are_heard(bench: Bench) -> None:
    jobs, board = [new_id() for _ in range(9)], bench.replica.board
    for job_id in jobs:
        board.get(job_id)
    await bench.tell_until(lambda: all(board.get(job_id) for job_id in jobs), *jobs)


async def test_it_hears_again_after_the_server_was_away(
    bench: Bench, nats_server: NatsServer
) -> None:
    job_id, heard = new_id(), bench.replica.heard
    with bench.replica.board.watching(job_id):
        await bench.tell_until(lambda: bool(heard), job_id)
        nats_server.stop()
        nats_server.start()
        heard.clear()
        await bench.tell_until(lambda: bool(heard), job_id)


async def _is_quiet(bench: Bench, job_id: str) -> bool:
    """Whether nothing comes of what is said of the job now."""
    before = bench.replica.messages
    await bench.tell(job_id)
    await asyncio.sleep(0.1)
    return bench.replica.messages == before
