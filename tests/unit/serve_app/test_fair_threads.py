import asyncio
import threading

import pytest

from engine.timed_reads import TimedReads
from serve_app.fair_threads import FairSemaphore, FairThreads
from serve_app.refusals import Busy


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


async def test_a_quick_check_runs_at_once() -> None:
    some = FairThreads(2, timeout_s=5)
    assert await some.run("a", threading.get_ident, is_quick=True) == threading.get_ident()


async def test_a_quick_check_that_has_to_wait_for_files_runs_beside_the_loop(
    gate: threading.Event,
) -> None:
    reads = TimedReads(ttl_s=60, timeout_s=5)

    def read() -> int:
        gate.wait(5)
        return threading.get_ident()

    def check() -> tuple[int, int]:
        return threading.get_ident(), reads.read("models", read)

    some = FairThreads(2, timeout_s=5)
    checked = asyncio.create_task(some.run("a", check, is_quick=True))
    await asyncio.sleep(0)
    gate.set()  # this thread is not held up
    by, _ = await checked
    assert by != threading.get_ident()
    by, _ = await some.run("a", check, is_quick=True)
    assert by == threading.get_ident()


async def test_another_check_runs_beside_the_loop_and_its_error_is_raised() -> None:
    some = FairThreads(2, timeout_s=5)
    assert await some.run("a", threading.get_ident, is_quick=False) != threading.get_ident()
    with pytest.raises(ValueError, match="'x'"):
        await some.run("a", int, "x", is_quick=False)


async def test_one_owner_leaves_a_thread_to_others(gate: threading.Event) -> None:
    some = FairThreads(2, timeout_s=5)
    mine = [asyncio.create_task(some.run("a", gate.wait, 5, is_quick=False)) for _ in range(3)]
    assert await some.run("b", int, "5", is_quick=False) == 5
    gate.set()
    assert await asyncio.gather(*mine) == [True] * 3


async def test_who_hangs_up_keeps_the_turn_until_the_thread_ends(gate: threading.Event) -> None:
    some = FairThreads(1, timeout_s=0.05)
    mine = asyncio.create_task(some.run("a", gate.wait, 5, is_quick=False))
    await asyncio.sleep(0.01)
    mine.cancel()
    with pytest.raises(Busy):
        await some.run("b", int, "5", is_quick=False)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await mine
    assert await some.run("b", int, "5", is_quick=False) == 5


class Taker:
    """Takes a turn and keeps it until it is told to end."""

    def __init__(self, turns: FairSemaphore, owner: str, size: int = 1) -> None:
        self.has_turn = False
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._take(turns, owner, size))

    async def _take(self, turns: FairSemaphore, owner: str, size: int) -> None:
        async with turns.acquire(owner, size):
            self.has_turn = True
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await self.task


async def have_turns(*takers: Taker) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [each.has_turn for each in takers]


def turns(total: int = 10, *, per_owner: int = 6, timeout_s: float = 5.0) -> FairSemaphore:
    return FairSemaphore(total, per_owner=per_owner, timeout_s=timeout_s)


async def test_who_finds_nothing_free_waits_in_order() -> None:
    some = turns()
    takers = [Taker(some, owner, 4) for owner in "abcd"]
    assert await have_turns(*takers) == [True, True, False, False]
    await takers[1].end()
    assert await have_turns(*takers) == [True, True, True, False]
    for each in (takers[0], takers[2], takers[3]):
        await each.end()


async def test_an_owner_takes_no_more_than_a_share_and_lets_others_pass() -> None:
    some = turns()
    alice = [Taker(some, "alice", 3) for _ in range(4)]
    bob = Taker(some, "bob", 4)
    assert await have_turns(*alice, bob) == [True, True, False, False, True]
    await alice[0].end()
    assert await have_turns(*alice) == [True, True, True, False]
    for each in (*alice[1:], bob):
        await each.end()


async def test_a_large_one_is_not_passed_by_small_ones_for_ever() -> None:
    some = turns()
    first = [Taker(some, owner, 4) for owner in "ab"]
    large, small = Taker(some, "c", 6), Taker(some, "d", 1)
    assert await have_turns(large, small) == [False, False]
    await first[0].end()
    assert await have_turns(large) == [True]
    for each in (first[1], large, small):
        await each.end()


async def test_what_is_larger_than_a_share_takes_that_share() -> None:
    some = turns()
    large = Taker(some, "a", 1000)
    assert await have_turns(large) == [True]
    await large.end()


async def test_who_waits_too_long_is_refused_and_leaves_nothing_behind() -> None:
    some = turns(timeout_s=0.01)
    first = Taker(some, "a", 6)
    assert await have_turns(first) == [True]
    with pytest.raises(Busy):
        async with some.acquire("b", 6):
            pytest.fail("nothing was free")
    waiting = Taker(some, "c", 6)
    assert await have_turns(waiting) == [False]
    waiting.task.cancel()
    await asyncio.gather(waiting.task, return_exceptions=True)
    await first.end()
    async with some.acquire("b", 6), some.acquire("c", 4):
        pass


async def test_who_stood_behind_a_large_one_that_gave_up_need_not_wait() -> None:
    some = turns()
    first = Taker(some, "a", 6)
    large, small = Taker(some, "b", 6), Taker(some, "c", 3)
    assert await have_turns(small) == [False]
    large.task.cancel()
    assert await have_turns(small) == [True]
    for each in (first, small):
        await each.end()
