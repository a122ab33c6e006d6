"""Classes share an endpoint by cost: none starves, none saves anything up."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from actors.waiting.classes import WaitingJobs, waiting_of
from actors.waiting.turns import Waiting
from events.job_cost import JobCost
from events.types import Priority
from tests.support.events import folded, submitted

HIGH, NORMAL, LOW = Priority


@pytest.fixture
def jobs() -> WaitingJobs:
    return WaitingJobs(turn_cost=10.0, runs_some=lambda _: False)


def put(jobs: WaitingJobs, priority: Priority, count: int, *, cost: float | None = 10.0) -> None:
    for number in range(count):
        owner = f"{priority}-{number % 7}"
        jobs.put(Waiting(f"{priority}-{number}", owner, cost, priority=priority))


def serve(jobs: WaitingJobs, count: int) -> Counter[Priority]:
    served: Counter[Priority] = Counter()
    for _ in range(count):
        job = next(jobs.candidates(1))
        jobs.take(job)
        served[job.priority] += 1
    return served


def test_classes_that_all_wait_share_as_16_4_and_1(jobs: WaitingJobs) -> None:
    for priority in Priority:
        put(jobs, priority, 2000)
    served = serve(jobs, 2100)
    assert served[HIGH] == pytest.approx(1600, abs=3)
    assert served[NORMAL] == pytest.approx(400, abs=3)
    assert served[LOW] == pytest.approx(100, abs=3)


def test_what_a_class_does_not_use_goes_to_the_others(jobs: WaitingJobs) -> None:
    put(jobs, LOW, 50)
    assert serve(jobs, 50)[LOW] == 50


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
    silent = Waiting("silent", "an-owner")
    jobs.put(silent)
    assert silent.cost == pytest.approx(3.0, rel=0.05)


def test_a_refund_counts_for_owner_and_class(jobs: WaitingJobs) -> None:
    put(jobs, LOW, 2)
    put(jobs, NORMAL, 100)
    first = next(job for job in jobs.candidates(1) if job.priority is LOW)
    jobs.take(first)
    jobs.refund(first)
    assert serve(jobs, 5)[LOW] >= 1


@pytest.mark.parametrize(
    ("work", "weight"), [(0.0, 0.0), (1e308, 1e-300), (math.inf, math.nan), (math.nan, -1.0)]
)
def test_no_cost_and_no_weight_of_an_event_stops_the_turns(
    jobs: WaitingJobs, work: float, weight: float
) -> None:
    cost = JobCost(work=work, live_bytes=0, rows=0, tokens=0, outputs=0)
    odd = waiting_of(folded([submitted(owner="odd", cost=cost, weight=weight)]))
    assert odd.cost is not None
    assert 1.0 <= odd.cost <= 1e9
    jobs.put(odd)
    put(jobs, NORMAL, 20)
    assert serve(jobs, 21)[NORMAL] == 21
