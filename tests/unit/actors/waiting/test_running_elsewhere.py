"""Jobs that dispatchers of other endpoints run for an owner."""

from __future__ import annotations

from actors.waiting.running_elsewhere import RunningElsewhere
from actors.waiting.running_jobs import RunningJobs
from events.store.records import Endpoint
from events.wire.running import RunningCounts
from settings.keys import OwnerSettings

HERE = Endpoint("here")


class Dispatchers:
    """Two of them, with one clock; what one tells both hear, unless it is lost."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_lost = False
        self.told: list[RunningCounts] = []
        self.jobs = {name: RunningJobs(OwnerSettings(max_running_jobs=2)) for name in "ab"}
        self.all = {
            name: RunningElsewhere(jobs, dispatcher=name, tell=self._tell, clock=lambda: self.now)
            for name, jobs in self.jobs.items()
        }

    async def _tell(self, counts: RunningCounts) -> None:
        self.told.append(counts)
        if not self.is_lost:
            for each in self.all.values():
                each.hear(counts)

    async def look(self, *names: str, after_s: float = 0.25) -> list[RunningCounts]:
        """What is told by then."""
        self.now += after_s
        self.told.clear()
        for name in names:
            await self.all[name].look()
        return list(self.told)


async def test_the_number_holds_over_both() -> None:
    both = Dispatchers()
    both.jobs["a"].add("alice", HERE)
    both.jobs["b"].add("alice", HERE)
    await both.look("a", "b")
    assert not both.jobs["a"].may_start("alice")
    assert not both.jobs["b"].may_start("alice")
    assert both.jobs["a"].may_start("bob")
    assert both.jobs["a"].of("alice", HERE) == 1
    both.jobs["a"].remove("alice", HERE)
    assert both.jobs["a"].may_start("alice")
    await both.look("a", "b")
    assert both.jobs["b"].may_start("alice")


async def test_an_end_elsewhere_is_told_to_those_who_wait() -> None:
    both, ended = Dispatchers(), list[str]()
    both.jobs["a"].add("alice", HERE)
    await both.look("a")
    with both.jobs["b"].telling(ended.append):
        both.jobs["a"].add("alice", HERE)
        await both.look("a")
        assert ended == []
        both.jobs["a"].remove("alice", HERE)
        await both.look("a")
    assert ended == ["alice"]


async def test_changes_are_told_as_they_come_and_all_once_a_second() -> None:
    both = Dispatchers()
    both.jobs["a"].add("alice", HERE)
    [whole] = await both.look("a")
    assert whole == RunningCounts("a", {"alice": 1}, is_whole=True)
    assert await both.look("a") == []
    both.jobs["a"].add("bob", HERE)
    both.jobs["a"].remove("alice", HERE)
    assert await both.look("a") == [RunningCounts("a", {"alice": 0, "bob": 1}, is_whole=False)]
    assert await both.look("a", after_s=0.6) == [RunningCounts("a", {"bob": 1}, is_whole=True)]


async def test_what_was_lost_is_made_good() -> None:
    both = Dispatchers()
    both.jobs["a"].add("alice", HERE)
    both.jobs["a"].add("alice", HERE)
    await both.look("a")
    both.is_lost = True
    both.jobs["a"].remove("alice", HERE)
    both.jobs["a"].remove("alice", HERE)
    both.jobs["a"].add("bob", HERE)
    both.jobs["a"].add("bob", HERE)
    await both.look("a")
    both.is_lost = False
    assert not both.jobs["b"].may_start("alice")
    await both.look("a", after_s=1)
    assert both.jobs["b"].may_start("alice")
    assert not both.jobs["b"].may_start("bob")


async def test_one_that_is_silent_is_forgotten() -> None:
    both, ended = Dispatchers(), list[str]()
    for _ in range(2):
        both.jobs["a"].add("alice", HERE)
    await both.look("a")
    with both.jobs["b"].telling(ended.append):
        await both.look("b", after_s=4)
        assert not both.jobs["b"].may_start("alice")
        await both.look("b", after_s=1)
    assert both.jobs["b"].may_start("alice")
    assert ended == ["alice"]
    await both.look("a")
    assert not both.jobs["b"].may_start("alice")
