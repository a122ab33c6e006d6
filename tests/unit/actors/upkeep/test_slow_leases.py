"""Parts of a work, divided by leases in a database that is slow, or hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from itertools import pairwise
from statistics import median

import pytest

from actors.upkeep.shares import Shares
from events.errors import DatabaseUnavailable
from events.store.leases import answered
from tests.support.database import Hanging
from tests.support.polling import eventually

LEASE_S = 1.6
PARTS = [f"{number:03}" for number in range(100)]


class SlowLeases:
    """In memory; whatever is asked takes a while, or hangs."""

    def __init__(self, answer_s: float) -> None:
        self.hanging = Hanging()
        self.renewed_at: list[float] = []
        self._answer_s = answer_s
        self._rows: dict[str, tuple[str, float]] = {}

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> bool:
        await self._take_time()
        owner, until = self._rows.get(name, (holder, 0.0))
        if owner != holder and until > self._now():
            return False
        self._rows[name] = (holder, self._now() + ttl_s)
        return True

    async def renew(self, names: Collection[str], holder: str, *, ttl_s: float) -> set[str]:
        self.renewed_at.append(self._now())
        await self._take_time()
        mine = {name for name in names if self._rows.get(name, ("", 0.0))[0] == holder}
        self._rows |= dict.fromkeys(mine, (holder, self._now() + ttl_s))
        return mine

    async def release(self, name: str, holder: str) -> None:
        await self._take_time()
        if self._rows.get(name, ("", 0.0))[0] == holder:
            del self._rows[name]

    async def held(self, prefix: str) -> int:
        await self._take_time()
        lasting = [name for name, (_, until) in self._rows.items() if until > self._now()]
        return sum(name.startswith(prefix) for name in lasting)

    async def _take_time(self) -> None:
        await asyncio.sleep(self._answer_s)
        await self.hanging.wait()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class Bench:
    def __init__(self) -> None:
        self.parts: list[str] = []
        """At work, by whichever process; twice where two work on it."""
        self.starts: Counter[str] = Counter()
        self.ending = Hanging()
        """The end of the work, which has stopped by then."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(
        self,
        leases: SlowLeases,
        holder: str = "one",
        *,
        parts: Collection[str] = PARTS,
        seats: int = 1,
        all_without_database: bool = False,
    ) -> None:
        shares = Shares(
            "test",
            leases=leases,  # type: ignore[arg-type]  # a twin in memory
            holder=holder,
            seats=seats,
            lease_s=LEASE_S,
            all_without_database=all_without_database,
        )
        self._tasks.append(asyncio.create_task(shares.run(parts, self._work)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _work(self, part: str) -> None:
        self.starts[part] += 1
        self.parts.append(part)
        try:
            await asyncio.Event().wait()
        finally:
            self.parts.remove(part)
            await self.ending.wait()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.stop()


async def test_many_parts_are_kept_where_each_answer_takes_a_while(bench: Bench) -> None:
    bench.start(SlowLeases(LEASE_S / 60))
    await eventually(lambda: len(bench.parts) == len(PARTS), within_s=10)
    await asyncio.sleep(2 * LEASE_S)
    assert set(bench.starts.values()) == {1}
    assert sorted(bench.parts) == PARTS


async def test_many_parts_come_to_rest_at_two_processes(bench: Bench) -> None:
    leases = SlowLeases(LEASE_S / 120)
    bench.start(leases, "one", seats=2)
    await eventually(lambda: len(bench.parts) == len(PARTS), within_s=10)
    bench.start(leases, "two", seats=2)
    await eventually(lambda: bench.starts.total() == 1.5 * len(PARTS), within_s=20)
    await asyncio.sleep(2 * LEASE_S)
    assert bench.starts.total() == 1.5 * len(PARTS), "each changes hands once"
    assert sorted(bench.parts) == PARTS


async def test_a_round_that_took_long_is_followed_by_the_next(bench: Bench) -> None:
    """Each round asks twice, so it takes a third of a lease."""
    leases = SlowLeases(LEASE_S / 6)
    bench.start(leases, parts=["a"])
    await eventually(lambda: len(leases.renewed_at) > 6, within_s=20)
    times = leases.renewed_at
    gaps = [after - before for before, after in pairwise(times)]
    assert median(gaps) < LEASE_S / 2


async def test_parts_rest_where_the_database_hangs_for_longer_than_a_lease(bench: Bench) -> None:
    leases = SlowLeases(0)
    bench.start(leases)
    await eventually(lambda: len(bench.parts) == len(PARTS))
    with leases.hanging:
        await eventually(lambda: not bench.parts, within_s=10)
    await eventually(lambda: len(bench.parts) == len(PARTS))


async def test_a_part_that_is_slow_to_end_keeps_no_other_at_work(bench: Bench) -> None:
    leases = SlowLeases(0)
    bench.start(leases)
    await eventually(lambda: len(bench.parts) == len(PARTS))
    with leases.hanging, bench.ending:
        await eventually(lambda: not bench.parts, within_s=10)


async def test_parts_that_all_may_work_on_do_not_rest_where_it_hangs(bench: Bench) -> None:
    leases = SlowLeases(0)
    for holder in ("one", "two"):
        bench.start(leases, holder, seats=2, all_without_database=True)
    await eventually(lambda: sorted(bench.parts) == PARTS)
    with leases.hanging:
        await eventually(lambda: len(bench.parts) == 2 * len(PARTS), within_s=10)
    await eventually(lambda: sorted(bench.parts) == PARTS)


async def test_a_question_is_given_up_though_the_driver_does_not() -> None:
    hanging = Hanging()
    with hanging, pytest.raises(DatabaseUnavailable):
        await answered(hanging.wait(), within_s=0.01)
    await answered(hanging.wait(), within_s=1)
