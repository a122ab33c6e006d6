"""In which order owners are served: by cost and weight, none before another for long."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.waiting.rings import Rings
from actors.waiting.turns import Turns, Waiting

TURN = 10.0


class Line:
    """Turns, and how much of each owner runs."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.turns = Turns(turn_cost=TURN, runs_some=lambda owner: self.running[owner] > 0)
        self.served: defaultdict[str, float] = defaultdict(float)
        self._jobs = 0

    def put(self, owner: str, *, cost: float = TURN, weight: float = 1.0, count: int = 1) -> None:
        for _ in range(count):
            self._jobs += 1
            self.turns.put(Waiting(f"job-{self._jobs}", owner, cost, weight))

    def start(self, job: Waiting | None = None) -> Waiting:
        job = job or self.turns.candidates(1)[0]
        self.running[job.owner] += 1
        self.turns.take(job)
        self.turns.note_running(job.owner)
        assert job.cost is not None
        self.served[job.owner] += job.cost
        return job

    def end(self, job: Waiting) -> None:
        self.running[job.owner] -= 1
        self.turns.note_running(job.owner)

    def serve(self, count: int = 1) -> list[str]:
        """The owners of the next jobs, each of which ends before the next one starts."""
        owners: list[str] = []
        for _ in range(count):
            job = self.start()
            self.end(job)
            owners.append(job.owner)
        return owners


@pytest.fixture
def line() -> Line:
    return Line()


costs = st.sampled_from([0.5, 4.0, 10.0, 25.0, 200.0])
weights = st.sampled_from([0.25, 1.0, 3.0])


@given(owners=st.lists(st.tuples(costs, weights), min_size=2, max_size=6))
def test_owners_who_always_wait_share_by_weight_within_a_job_and_a_turn(
    owners: list[tuple[float, float]],
) -> None:
    line = Line()
    for number, (cost, weight) in enumerate(owners):
        line.put(f"o{number}", cost=cost, weight=weight, count=400)
    line.serve(300)
    shares = [line.served[f"o{number}"] / weight for number, (_, weight) in enumerate(owners)]
    most = max(cost / weight for cost, weight in owners)
    assert max(shares) - min(shares) <= most + TURN + 1e-6


@given(
    backlogs=st.integers(1, 30),
    before=st.integers(0, 200),
    cost=costs,
    own_cost=costs,
)
def test_a_single_job_waits_for_one_turn_of_each_other_at_most(
    backlogs: int, before: int, cost: float, own_cost: float
) -> None:
    line = Line()
    for number in range(backlogs):
        line.put(f"big{number}", cost=cost, count=400)
    line.serve(before)
    line.put("single", cost=own_cost)
    waited = 0.0
    while line.serve() != ["single"]:
        waited += cost
    assert waited <= backlogs * (TURN + cost)


def test_who_comes_back_one_job_at_a_time_gains_nothing(line: Line) -> None:
    line.put("big", count=2000)
    line.put("sly", cost=50.0)
    for _ in range(1500):
        if line.serve() == ["sly"]:
            line.put("sly", cost=50.0)
    assert line.served["sly"] == pytest.approx(line.served["big"], rel=0.02)


def test_who_was_alone_owes_their_last_job_at_most(line: Line) -> None:
    for _ in range(100):
        line.put("first", cost=50.0)
        line.serve()
    line.put("first", count=9)
    line.put("second", count=9)
    assert line.serve(7)[5:] == ["first", "second"]


def test_who_asked_for_nothing_has_saved_nothing(line: Line) -> None:
    line.put("idle")
    line.serve()
    line.put("busy", count=200)
    line.serve(100)
    line.put("idle", count=100)
    owners = Counter(line.serve(20))
    assert owners["idle"] <= 11


def test_jobs_of_an_owner_keep_their_order_and_one_may_come_first(line: Line) -> None:
    line.put("a", count=3)
    job = line.start()
    assert job.job_id == "job-1"
    line.end(job)
    line.turns.put(job, first=True)
    started = [line.start().job_id for _ in range(3)]
    assert started == ["job-1", "job-2", "job-3"]
    assert len(line.turns) == 0


def test_of_jobs_that_are_put_first_the_earlier_one_comes_first(line: Line) -> None:
    line.put("a")
    for name in ("failed", "failed again"):
        line.turns.put(Waiting(name, "a", TURN), first=True)
    assert [line.start().job_id for _ in range(3)] == ["failed", "failed again", "job-1"]


def test_of_one_turn_those_who_run_nothing_come_first(line: Line) -> None:
    line.put("a", cost=1.0, count=3)
    line.put("b", cost=1.0)
    running = line.start()
    assert line.turns.candidates(2)[0].owner == "b"
    assert [each.owner for each in line.turns.candidates(9, only_idle=True)] == ["b"]
    line.end(running)
    assert {each.owner for each in line.turns.candidates(9, only_idle=True)} == {"a", "b"}


def test_an_owner_who_is_held_is_passed_and_keeps_their_place(line: Line) -> None:
    line.put("a", count=2)
    line.put("b", count=2)
    line.turns.hold("a")
    assert line.serve(2) == ["b", "b"]
    assert not line.turns.has_candidates
    line.turns.release("a")
    assert line.serve(2) == ["a", "a"]


def test_a_start_in_vain_costs_nothing(line: Line) -> None:
    line.put("a", cost=100.0, count=2)
    line.put("b", count=9)
    job = line.start()
    line.turns.refund(job)
    line.end(job)
    line.turns.put(job, first=True)
    assert "a" in line.serve(2)


def test_an_owner_whose_jobs_had_all_ended_but_one_has_lost_no_turn(line: Line) -> None:
    line.put("a", count=20)
    line.put("b", count=9)
    for _ in range(19):
        job = line.start()
        line.end(job)
        line.turns.refund(job)
    assert line.serve(3) == ["a", "b", "b"]


@example(steps=[(0, 2), (2, 0), (3, 2), (4, 2), (0, 2)])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=200))
def test_it_counts_and_offers_what_waits_whatever_happens(steps: list[tuple[int, int]]) -> None:
    """Against a plain list: nothing is lost, doubled, or offered that does not wait."""
    line, waits, held = Line(), list[Waiting](), set[str]()
    for step, (action, who) in enumerate(steps):
        owner = f"o{who}"
        mine = [each for each in waits if each.owner == owner]
        if action == 0:
            job = Waiting(f"j{step}", owner, cost=float(1 + step % 40))
            line.turns.put(job)
            waits.append(job)
        elif action == 1 and mine:
            line.turns.remove(mine[len(mine) // 2])
            waits.remove(mine[len(mine) // 2])
        elif action == 2 and (found := line.turns.candidates(1)):
            waits.remove(found[0])
            line.start(found[0])
        elif action == 3 and line.running[owner]:
            line.end(Waiting("any", owner, 1.0))
        elif action == 4 and (mine or line.running[owner]):  # nobody else is held
            line.turns.hold(owner)
            held.add(owner)
        elif action == 5:
            line.turns.release(owner)
            held.discard(owner)
        assert len(line.turns) == len(waits)
        offered = line.turns.candidates(1000)
        assert set(offered) <= set(waits)
        assert len({each.owner for each in offered}) == len(offered)
        assert {each.owner for each in waits} - held <= {each.owner for each in offered}
        assert line.turns.has_candidates == bool(offered)


def test_owners_who_are_gone_are_forgotten(line: Line) -> None:
    line.put("stays", cost=1.0, count=3000)
    for number in range(1000):
        line.put(f"o{number}", cost=1.0)
    line.serve(4000)
    line.put("last")
    line.serve()
    assert len(line.turns._owners) <= 64 + 2


class Looked:
    """What a step looks at of the owners that there are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owners = 0
        forget, walk = Turns._forget, Rings.first

        def counted_forget(turns: Turns, owner: Any) -> None:
            self.owners += 1
            forget(turns, owner)

        def counted_walk(rings: Rings[Any], most: int) -> list[tuple[int, Any]]:
            found = walk(rings, most)
            self.owners += len(found)
            return found

        monkeypatch.setattr(Turns, "_forget", counted_forget)
        monkeypatch.setattr(Rings, "first", counted_walk)


@pytest.mark.parametrize("only_idle", [True, False])
@pytest.mark.parametrize("owners", [100, 10_000])
def test_a_choice_looks_at_as_many_owners_as_it_offers(
    line: Line, monkeypatch: pytest.MonkeyPatch, owners: int, *, only_idle: bool
) -> None:
    for number in range(owners):
        line.running[f"o{number}"] += number > 0  # so all but one run something
        line.put(f"o{number}", cost=TURN * (1 + number), count=2)
    for _ in range(owners):
        line.start()  # so each is in a turn of its own
    looked = Looked(monkeypatch)
    found = line.turns.candidates(16, only_idle=only_idle)
    assert len(found) == (0 if only_idle else 16)
    assert looked.owners <= 2 * 16


def test_owners_with_debts_are_not_looked_through_for_each_turn(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2000):
        line.put(f"o{number}", cost=1e6)
    line.serve(2000)  # now each owes, and none waits
    looked = Looked(monkeypatch)
    for number in range(1000):
        line.put(f"cheap-{number % 10}")
        line.serve()
    # Each job: its choice, its owner as it leaves, and its part of a look through all.
    assert looked.owners < 1000 * 10
