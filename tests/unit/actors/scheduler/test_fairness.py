"""In which order owners and priority classes are served."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.scheduler.fairness import (
    DeficitRoundRobin,
    Rounds,
    RunningJobs,
    WaitingJob,
    WaitingJobs,
    waiting_job,
)
from events.store.records import Endpoint
from events.types import JobCost, Priority
from settings.keys import OwnerSettings
from tests.support.events import folded, submitted
from tests.support.polling import eventually
from tests.support.scheduler.bench import Bench

TURN = 10.0


class Line:
    """DeficitRoundRobin, and how much of each owner runs."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.turns = DeficitRoundRobin(
            quantum=TURN, runs_some=lambda owner: self.running[owner] > 0
        )
        self.served: defaultdict[str, float] = defaultdict(float)
        self._jobs = 0

    def put(self, owner: str, *, cost: float = TURN, weight: float = 1.0, count: int = 1) -> None:
        for _ in range(count):
            self._jobs += 1
            self.turns.put(WaitingJob(f"job-{self._jobs}", owner, cost, weight))

    def start(self, job: WaitingJob | None = None) -> WaitingJob:
        job = job or self.turns.candidates(1)[0]
        self.running[job.owner] += 1
        self.turns.charge(job)
        self.turns.note_running(job.owner)
        assert job.cost is not None
        self.served[job.owner] += job.cost
        return job

    def end(self, job: WaitingJob) -> None:
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
    for each in (job, WaitingJob("failed again", "a", TURN)):
        line.turns.put(each, first=True)
    started = [line.start().job_id for _ in range(4)]
    assert started == ["job-1", "failed again", "job-2", "job-3"]
    assert len(line.turns) == 0


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


@example(steps=[(0, 2), (2, 0), (3, 2), (4, 2), (0, 2)])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=200))
def test_it_counts_and_offers_what_waits_whatever_happens(steps: list[tuple[int, int]]) -> None:
    """Against a plain list: nothing is lost, doubled, or offered that does not wait."""
    line, waits, held = Line(), list[WaitingJob](), set[str]()
    for step, (action, who) in enumerate(steps):
        owner = f"o{who}"
        mine = [each for each in waits if each.owner == owner]
        if action == 0:
            job = WaitingJob(f"j{step}", owner, cost=float(1 + step % 40))
            line.turns.put(job)
            waits.append(job)
        elif action == 1 and mine:
            line.turns.remove(mine[len(mine) // 2])
            waits.remove(mine[len(mine) // 2])
        elif action == 2 and (found := line.turns.candidates(1)):
            waits.remove(found[0])
            line.start(found[0])
        elif action == 3 and line.running[owner]:
            line.end(WaitingJob("any", owner, 1.0))
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


def test_owners_without_jobs_and_debts_are_removed(line: Line) -> None:
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
        forget, walk = DeficitRoundRobin._forget, Rounds.first

        def counted_forget(turns: DeficitRoundRobin, owner: Any) -> None:
            self.owners += 1
            forget(turns, owner)

        def counted_walk(rings: Rounds[Any], most: int) -> list[tuple[int, Any]]:
            found = walk(rings, most)
            self.owners += len(found)
            return found

        monkeypatch.setattr(DeficitRoundRobin, "_forget", counted_forget)
        monkeypatch.setattr(Rounds, "first", counted_walk)


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


@pytest.mark.parametrize("most", [1, 3, 100])
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5))))
def test_first_are_those_of_the_first_turns(most: int, steps: list[tuple[bool, int, int]]) -> None:
    rings, plain = Rounds[int](), defaultdict[int, list[int]](list)
    for is_added, member, turn in steps:
        before = next((each for each in plain if member in plain[each]), None)
        assert (member in rings) == (before is not None)
        if before is not None and is_added:
            rings.make_first(member)
            plain[before].remove(member)
            plain[before].insert(0, member)
        elif before is not None:
            assert rings.remove(member) == before
            plain[before].remove(member)
        elif is_added:
            rings.add(member, turn)
            plain[turn].append(member)
    every = [(turn, member) for turn in sorted(plain) for member in plain[turn]]
    assert rings.first(most) == every[:most]
    assert rings.lowest == (every[0][0] if every else None)


HIGH, NORMAL, LOW = Priority


@pytest.fixture
def jobs() -> WaitingJobs:
    return WaitingJobs(quantum=10.0, runs_some=lambda _: False)


def put(jobs: WaitingJobs, priority: Priority, count: int, *, cost: float | None = 10.0) -> None:
    for number in range(count):
        owner = f"{priority}-{number % 7}"
        jobs.put(WaitingJob(f"{priority}-{number}", owner, cost, priority=priority))


def serve(jobs: WaitingJobs, count: int) -> Counter[Priority]:
    served: Counter[Priority] = Counter()
    for _ in range(count):
        job = next(jobs.candidates(1))
        jobs.charge(job)
        served[job.priority] += 1
    return served


def test_classes_that_all_wait_share_as_16_4_and_1(jobs: WaitingJobs) -> None:
    for priority in Priority:
        put(jobs, priority, 2000)
    served = serve(jobs, 2100)
    assert served[HIGH] == pytest.approx(1600, abs=3)
    assert served[NORMAL] == pytest.approx(400, abs=3)
    assert served[LOW] == pytest.approx(100, abs=3)


def test_one_that_was_away_neither_owes_nor_has_saved(jobs: WaitingJobs) -> None:
    put(jobs, LOW, 1000)
    serve(jobs, 500)
    put(jobs, HIGH, 1000)
    assert serve(jobs, 170)[LOW] == pytest.approx(10, abs=2)
    put(jobs, NORMAL, 1000)
    served = serve(jobs, 210)
    assert served[NORMAL] == pytest.approx(40, abs=3)
    assert served[LOW] == pytest.approx(10, abs=3)


def test_one_that_was_held_has_saved_nothing(jobs: WaitingJobs) -> None:
    put(jobs, HIGH, 1000)
    put(jobs, NORMAL, 1000)
    for number in range(7):
        jobs.hold(f"high-{number}")
    assert serve(jobs, 200)[NORMAL] == 200
    for number in range(7):
        jobs.release(f"high-{number}")
    assert serve(jobs, 100)[NORMAL] == pytest.approx(20, abs=2)


def test_a_job_that_says_no_cost_costs_what_others_do(jobs: WaitingJobs) -> None:
    put(jobs, NORMAL, 500, cost=3.0)
    silent = WaitingJob("silent", "an-owner")
    jobs.put(silent)
    assert silent.cost == pytest.approx(3.0, rel=0.05)


def test_a_refund_counts_for_owner_and_class(jobs: WaitingJobs) -> None:
    put(jobs, LOW, 2)
    put(jobs, NORMAL, 100)
    first = next(job for job in jobs.candidates(1) if job.priority is LOW)
    jobs.charge(first)
    jobs.refund(first)
    assert serve(jobs, 5)[LOW] >= 1


@pytest.mark.parametrize(
    ("work", "weight"), [(0.0, 0.0), (1e308, 1e-300), (math.inf, math.nan), (math.nan, -1.0)]
)
def test_no_cost_and_no_weight_of_an_event_stops_the_turns(
    jobs: WaitingJobs, work: float, weight: float
) -> None:
    cost = JobCost(work=work, live_bytes=0, rows=0, tokens=0, outputs=0)
    odd = waiting_job(folded([submitted(owner="odd", cost=cost, weight=weight)]))
    assert odd.cost is not None
    assert 1.0 <= odd.cost <= 1e9
    jobs.put(odd)
    put(jobs, NORMAL, 20)
    assert serve(jobs, 21)[NORMAL] == 21


HERE = Endpoint("here", jobs_per_worker=4)
THERE = Endpoint("there", jobs_per_worker=4)


def owners_at_work(bench: Bench, owner_of: dict[str, str]) -> list[str]:
    actors = bench.cluster.actors.values()
    return sorted(owner_of[each.job_id] for each in actors if each.job_id is not None)


@pytest.mark.parametrize(
    ("slots", "settings", "alone", "beside"),
    [
        (4, {"slots_kept_free": 1}, 3, 1),
        (4, {}, 4, 0),
        (1, {"slots_kept_free": 1}, 1, 0),
        (0, {"slots_kept_free": 1}, 4, 1),
        (4, {"max_running_jobs": 1}, 1, 1),
    ],
    ids=["kept free", "none kept free", "one slot", "as many as the engine takes", "most running"],
)
async def test_an_owner_leaves_as_many_slots_as_the_settings_say(
    bench: Bench, slots: int, settings: dict[str, int], alone: int, beside: int
) -> None:
    owner_of: dict[str, str] = {}

    async def run_in_the_end(owner: str, expected: list[str]) -> None:
        for lane in range(8):
            owner_of[await bench.submit(owner=owner, lane=lane)] = owner
        await eventually(lambda: owners_at_work(bench, owner_of) == expected)
        await bench.settled()  # and no further one starts
        assert owners_at_work(bench, owner_of) == expected

    async with bench.dispatching(slots=slots, **settings):
        await run_in_the_end("alice", ["alice"] * alone)
        await run_in_the_end("bob", ["alice"] * alone + ["bob"] * beside)


def test_the_number_holds_over_all_endpoints() -> None:
    jobs = RunningJobs(OwnerSettings(max_running_jobs=2))
    jobs.add("alice", HERE)
    assert jobs.may_start("alice")
    jobs.add("alice", THERE)
    assert not jobs.may_start("alice")
    assert jobs.may_start("bob")
    jobs.remove("alice", HERE)
    assert jobs.may_start("alice")


def test_listeners_are_notified_of_an_end() -> None:
    jobs, notified = RunningJobs(OwnerSettings()), list[str]()
    jobs.add("alice", HERE)
    with jobs.notifying(notified.append):
        jobs.remove("alice", HERE)
    jobs.add("alice", HERE)
    jobs.remove("alice", HERE)
    assert notified == ["alice"]
