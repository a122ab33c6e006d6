from __future__ import annotations

from engine.admission import Admission, EngineMemory


class Runs(Admission[str]):
    """A queue within a budget of 10 bytes; `start` has all that may start now."""

    def __init__(self) -> None:
        super().__init__(10)

    def start(self) -> list[str]:
        started = []
        while (run := self.admit()) is not None:
            started.append(run)
        return started


def test_runs_that_fit_beside_each_other_start_together() -> None:
    runs = Runs()
    for name in "ab":
        runs.enter(name, 5)
    runs.enter("c", 1)
    assert runs.start() == ["a", "b"]
    assert runs.memory(7) == EngineMemory(7, 10, 1, budget_bytes=10)
    runs.leave("a")
    assert runs.start() == ["c"]
    assert runs.memory(7) == EngineMemory(7, 6, 0, budget_bytes=10)


def test_a_run_larger_than_the_budget_runs_alone() -> None:
    runs = Runs()
    runs.enter("a", 1)
    runs.enter("huge", 100)
    assert runs.start() == ["a"]
    runs.leave("a")
    assert runs.start() == ["huge"]
    runs.enter("b", 0)
    assert runs.start() == []
    runs.leave("huge")
    assert runs.start() == ["b"]


def test_small_runs_pass_a_large_one_but_not_for_ever() -> None:
    runs = Runs()
    runs.enter("first", 3)
    runs.enter("large", 10)
    assert runs.start() == ["first"]
    running = ["first"]
    for number in range(100):
        runs.enter(f"small {number}", 3)
        running += runs.start()
        runs.leave(running.pop(0))
        running += runs.start()
        if "large" in running:
            break
    assert running == ["large"]
    assert 1 < number < 20


def test_an_exclusive_run_shares_the_engine_with_none() -> None:
    runs = Runs()
    runs.enter("a", 1)
    runs.enter("lone", 1, is_exclusive=True)
    runs.enter("b", 1)
    assert runs.start() == ["a"]
    runs.leave("a")
    assert runs.start() == ["lone"]
    assert runs.start() == []
    runs.leave("lone")
    assert runs.start() == ["b"]


def test_none_passes_an_exclusive_run_even_behind_one_that_may_be_passed() -> None:
    runs = Runs()
    runs.enter("a", 5)
    runs.enter("large", 10)
    runs.enter("lone", 1, is_exclusive=True)
    runs.enter("b", 1)
    assert runs.start() == ["a"]
    runs.leave("a")
    assert runs.start() == ["large"]
    runs.leave("large")
    assert runs.start() == ["lone"]


def test_a_run_that_no_longer_waits_holds_nobody_back() -> None:
    runs = Runs()
    runs.enter("a", 1)
    runs.enter("lone", 1, is_exclusive=True)
    runs.enter("b", 1)
    assert runs.start() == ["a"]
    runs.leave("lone")
    assert runs.start() == ["b"]


def test_without_a_budget_all_run_beside_each_other() -> None:
    unlimited: Admission[str] = Admission(0)
    for name in ("a", "b"):
        unlimited.enter(name, 2**60)
    assert [unlimited.admit(), unlimited.admit()] == ["a", "b"]


def test_an_exclusive_run_keeps_the_others_back_for_its_time_alone() -> None:
    now = 0.0
    runs: Admission[str] = Admission(0, exclusive_s=10, now=lambda: now)
    runs.enter("lone", 1, is_exclusive=True)
    now = 100.0  # it waited
    assert runs.admit() == "lone"
    runs.enter("b", 1)
    now = 109.9
    assert runs.admit() is None
    assert runs.joined == []
    now = 110.0
    assert runs.admit() == "b"
    assert runs.joined == ["lone"]
    runs.enter("another", 1, is_exclusive=True)
    assert runs.admit() is None


def test_an_exclusive_run_is_there_from_when_it_waits_until_it_has_ended() -> None:
    runs: Admission[str] = Admission(10)
    runs.enter("first", 1)
    assert runs.admit() == "first"
    assert not runs.has_exclusive
    runs.enter("lone", 1, is_exclusive=True)
    assert runs.has_exclusive
    runs.leave("first")
    assert runs.admit() == "lone"
    assert runs.has_exclusive
    runs.leave("lone")
    assert not runs.has_exclusive
