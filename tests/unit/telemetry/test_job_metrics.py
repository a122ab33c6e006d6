"""What the projection counts, as it folds events into rows of a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from events.ids import new_id
from events.job_cost import JobCost, Timing
from events.store.read_model import ReadModel
from events.types import (
    AttemptFailed,
    Blame,
    Cancelled,
    Completed,
    DeadLetter,
    DispatchFailed,
    Erased,
    EventData,
    Failed,
    Flavour,
    Started,
    Submitted,
)
from telemetry.job_metrics import JobMetrics
from tests.support.database import database_in
from tests.support.events import MORNING, History, image, submitted
from tests.support.telemetry.samples import Samples

COST = JobCost(work=12.5, live_bytes=1, rows=1, tokens=1, outputs=1)
STARTED = Started(attempt=1, actor="a")
AGAIN = Started(attempt=2, actor="b")
ERASED = Erased(flavour=Flavour.WORKFLOW, owner="alice", endpoint="default", submitted_at=MORNING)


class Bench:
    def __init__(self, model: ReadModel, registry: CollectorRegistry) -> None:
        self.model = model
        self.registry = registry
        self.history = History()

    async def happens(self, *events: EventData, job_id: str = "", after_s: float = 0) -> str:
        job_id, before = job_id or new_id(), self.history.end
        at = MORNING + timedelta(seconds=after_s)
        assert await self.model.apply(self.history.add(job_id, *events, at=at), expected=before)
        return job_id

    @property
    def samples(self) -> Samples:
        return Samples.of(self.registry)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry, most_endpoints=2)
    async with database_in(tmp_path) as database:
        yield Bench(ReadModel(database, on_folded=metrics.note), registry)


def job(**changes: object) -> Submitted:
    return submitted(**({"cost": COST} | changes))


async def test_a_job_is_counted_as_it_is_accepted_and_as_it_ends(bench: Bench) -> None:
    job_id = await bench.happens(job())
    labels = {"endpoint": "default", "flavour": "diffusion"}
    assert bench.samples("jobs_accepted_total", **labels) == 1
    assert bench.samples("jobs_accepted_megapixel_steps_total", endpoint="default") == 12.5
    assert bench.samples("jobs_ended_total", **labels, status="completed") == 0
    await bench.happens(STARTED, job_id=job_id, after_s=2)
    await bench.happens(image(0), Completed(images=1), job_id=job_id, after_s=7)
    samples = bench.samples
    assert samples("jobs_ended_total", **labels, status="completed") == 1
    assert samples("jobs_completed_megapixel_steps_total", endpoint="default") == 12.5
    assert samples("images_stored_total", endpoint="default") == 1
    assert samples("images_stored_bytes_total", endpoint="default") == 2**33
    assert samples("attempts_started_total", endpoint="default") == 1
    assert samples("job_queue_seconds_sum", endpoint="default") == 2
    assert samples("job_queue_seconds_bucket", endpoint="default", le="1.0") == 0
    assert samples("job_queue_seconds_bucket", endpoint="default", le="2.5") == 1
    ended = {"endpoint": "default", "status": "completed"}
    assert samples("job_duration_seconds_sum", **ended) == 7


@pytest.mark.parametrize(
    ("end", "status"),
    [(Failed(message="No."), "failed"), (Cancelled(), "cancelled"), (ERASED, "cancelled")],
)
async def test_each_end_has_its_status(bench: Bench, end: EventData, status: str) -> None:
    await bench.happens(job(flavour=Flavour.WORKFLOW), end)
    labels = {"endpoint": "default", "flavour": "workflow", "status": status}
    assert bench.samples("jobs_ended_total", **labels) == 1


async def test_what_follows_an_end_is_not_counted(bench: Bench) -> None:
    job_id = await bench.happens(job(), STARTED, Cancelled())
    await bench.happens(AttemptFailed(attempt=1, message="late"), job_id=job_id)
    await bench.happens(ERASED, job_id=job_id)
    labels = {"endpoint": "default", "flavour": "diffusion", "status": "cancelled"}
    assert bench.samples("jobs_ended_total", **labels) == 1
    assert bench.samples("attempts_failed_total", endpoint="default", cause="job") == 0


async def test_an_event_that_is_folded_again_is_not_counted_again(bench: Bench) -> None:
    await bench.happens(job())
    assert not await bench.model.apply(bench.history.events, expected=0)
    labels = {"endpoint": "default", "flavour": "diffusion"}
    assert bench.samples("jobs_accepted_total", **labels) == 1


@pytest.mark.parametrize(
    ("blame", "cause"),
    [(None, "job"), (Blame.SUSPECT, "suspect"), (Blame.BYSTANDER, "bystander")],
)
async def test_failed_attempts_are_counted_by_their_cause(
    bench: Bench, blame: Blame | None, cause: str
) -> None:
    await bench.happens(job(), STARTED, AttemptFailed(attempt=1, message="no", blame=blame), AGAIN)
    assert bench.samples("attempts_failed_total", endpoint="default", cause=cause) == 1
    assert bench.samples("attempts_started_total", endpoint="default") == 2
    assert bench.samples("leases_lost_total", endpoint="default") == 0


async def test_an_attempt_that_ended_without_a_word_lost_its_lease(bench: Bench) -> None:
    await bench.happens(job(), STARTED, AGAIN)
    assert bench.samples("leases_lost_total", endpoint="default") == 1
    assert bench.samples("job_queue_seconds_count", endpoint="default") == 1


async def test_dispatches_that_failed_and_dead_letters_are_counted(bench: Bench) -> None:
    dead = Failed(message="No actor took it.", dead_letter=DeadLetter.UNDISPATCHABLE)
    await bench.happens(job(), DispatchFailed(failure=1, message="it died"), dead)
    assert bench.samples("dispatches_failed_total", endpoint="default") == 1
    letters = {"endpoint": "default", "reason": "undispatchable"}
    assert bench.samples("jobs_dead_letters_total", **letters) == 1


async def test_stages_and_shared_calls_come_from_the_end(bench: Bench) -> None:
    timing = Timing(stage_s={"text": 0.02, "denoise": 3.0}, rows_per_call=6.0)
    await bench.happens(job(), STARTED, Completed(images=1, timing=timing))
    samples = bench.samples
    assert samples("job_stage_seconds_sum", endpoint="default", stage="text") == 0.02
    assert samples("job_stage_seconds_sum", endpoint="default", stage="denoise") == 3
    assert samples("job_rows_per_call_bucket", endpoint="default", le="4.0") == 0
    assert samples("job_rows_per_call_bucket", endpoint="default", le="8.0") == 1


async def test_endpoints_beyond_the_most_are_counted_together(bench: Bench) -> None:
    for endpoint in ("default", "fast", "third", "fourth", "fast"):
        await bench.happens(job(endpoint=endpoint))
    counts = {
        endpoint: bench.samples("jobs_accepted_total", endpoint=endpoint, flavour="diffusion")
        for endpoint in ("default", "fast", "third", "other")
    }
    assert counts == {"default": 1, "fast": 2, "third": None, "other": 2}


async def test_no_owner_key_or_job_is_in_a_label(bench: Bench) -> None:
    job_id = await bench.happens(
        job(owner="alice-owns-this", key_id="key-of-alice"), STARTED, Completed(images=0)
    )
    for metric in bench.registry.collect():
        for sample in metric.samples:
            said = " ".join(sample.labels.values())
            assert "alice" not in said
            assert job_id not in said
