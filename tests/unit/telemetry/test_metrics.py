"""What the projection, the dispatcher and the callbacks role count, and what is looked up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine.activity import ModelUse
from events.delivery import SendResult
from events.ids import new_id
from events.log import StreamState
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
    JobCost,
    Started,
    Submitted,
    Timing,
    Unknown,
)
from telemetry.dispatcher_metrics import DispatchMetrics, EngineMetrics
from telemetry.exposition import EndpointLabels
from telemetry.projection_metrics import JobMetrics, LogMetrics
from tests.support.callbacks.bench import Bench as CallbackBench
from tests.support.database import temporary_database
from tests.support.events import LATER, MORNING, History, image, submitted
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually
from tests.support.telemetry.samples import Samples

COST = JobCost(work=12.5, live_bytes=1, rows=1, tokens=1, outputs=1)
DIFFUSION = {"endpoint": "default", "flavour": "diffusion"}
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
async def bench() -> AsyncIterator[Bench]:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry, most_endpoints=2)
    async with temporary_database() as database:
        yield Bench(ReadModel(database, on_folded=metrics.note), registry)


def job(**changes: object) -> Submitted:
    return submitted(cost=COST, **changes)


async def test_a_job_is_counted_as_it_is_accepted_and_as_it_ends(bench: Bench) -> None:
    job_id = await bench.happens(job())
    assert bench.samples("jobs_accepted_total", **DIFFUSION) == 1
    assert bench.samples("jobs_accepted_megapixel_steps_total", endpoint="default") == 12.5
    assert bench.samples("jobs_ended_total", **DIFFUSION, status="completed") == 0
    await bench.happens(STARTED, job_id=job_id, after_s=2)
    await bench.happens(image(0), Completed(images=1), job_id=job_id, after_s=7)
    samples = bench.samples
    assert samples("jobs_ended_total", **DIFFUSION, status="completed") == 1
    assert samples("jobs_completed_megapixel_steps_total", endpoint="default") == 12.5
    assert samples("images_stored_total", endpoint="default") == 1
    assert samples("images_stored_bytes_total", endpoint="default") == 2**33
    assert samples("attempts_started_total", endpoint="default") == 1
    assert samples("job_queue_seconds_sum", endpoint="default") == 2
    assert samples("job_queue_seconds_bucket", endpoint="default", le="1.0") == 0
    assert samples("job_queue_seconds_bucket", endpoint="default", le="2.5") == 1
    assert samples("job_duration_seconds_sum", endpoint="default", status="completed") == 7


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
    assert bench.samples("jobs_ended_total", **DIFFUSION, status="cancelled") == 1
    assert bench.samples("attempts_failed_total", endpoint="default", cause="job") == 0


async def test_an_event_that_is_folded_again_is_not_counted_again(bench: Bench) -> None:
    await bench.happens(job())
    assert not await bench.model.apply(bench.history.events, expected=0)
    assert bench.samples("jobs_accepted_total", **DIFFUSION) == 1


@pytest.mark.parametrize(
    ("blame", "cause"), [(None, "job"), (Blame.SUSPECT, "suspect"), (Blame.BYSTANDER, "bystander")]
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
    samples = [each for metric in bench.registry.collect() for each in metric.samples]
    said = {value for each in samples for value in each.labels.values()}
    assert [value for value in said if "alice" in value or job_id in value] == []


# Callbacks.


ADDRESS = "http://127.0.0.1/"


async def test_a_delivery_is_counted_by_its_tries_and_by_its_end() -> None:
    bench = CallbackBench()
    unanswered = SendResult(latency_s=9.0, error="no answer within 9 s")
    bench.sender.outcomes = [SendResult(latency_s=0.3, status=500), unanswered]
    bench.limits = replace(bench.limits, delays_s=(0, 0, 0))
    await bench.deliver(await bench.ended_job(ADDRESS))
    samples = Samples.of(bench.registry)
    assert samples("callback_tries_total", outcome="rejected") == 1
    assert samples("callback_tries_total", outcome="unanswered") == 1  # without a latency
    assert samples("callback_tries_total", outcome="taken") == 1
    assert samples("callback_try_seconds_sum") == pytest.approx(0.4)
    assert samples("callbacks_ended_total", outcome="delivered") == 1


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (SendResult(latency_s=0.0, error="not allowed", refused=True), "refused"),
        (SendResult(latency_s=0.1, status=410), "rejected"),
    ],
)
async def test_a_delivery_that_is_given_up_is_exhausted(result: SendResult, outcome: str) -> None:
    bench = CallbackBench()
    bench.sender.outcomes = [result]
    await bench.ended_job(ADDRESS)
    async with bench.running():
        await eventually(bench.nothing_is_due)
    samples = Samples.of(bench.registry)
    assert samples("callback_tries_total", outcome=outcome) == 1
    assert samples("callbacks_ended_total", outcome="exhausted") == 1


# Engines, added up over their processes.


OF_DEFAULT = {"endpoint": "default"}


class EngineBench:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.metrics = EngineMetrics(
            self.registry, endpoints=EndpointLabels(9), clock=lambda: self.now
        )

    def starts(self, *workers: str) -> None:
        """Their engines are asked before they get a job."""
        for worker in workers:
            self.says(worker, ModelUse())

    def says(self, worker: str, models: ModelUse, *, memory_bytes: int = 0) -> None:
        self.metrics.note(worker, "default", models, memory_bytes)

    @property
    def samples(self) -> Samples:
        return Samples.of(self.registry)

    async def looked_up(self) -> Samples:
        return Samples(await self.metrics.collect())


@pytest.fixture
def engines() -> EngineBench:
    """The engine of `w1` has started."""
    bench = EngineBench()
    bench.starts("w1")
    return bench


def test_what_an_engine_says_twice_counts_once(engines: EngineBench) -> None:
    use = ModelUse(loaded=2, loaded_bytes=900, evicted=1, evicted_bytes=400, hits=5)
    for _ in range(3):
        engines.says("w1", use)
    samples = engines.samples
    assert samples("models_loaded_total", **OF_DEFAULT) == 2
    assert samples("models_loaded_bytes_total", **OF_DEFAULT) == 900
    assert samples("models_evicted_total", **OF_DEFAULT) == 1
    assert samples("models_evicted_bytes_total", **OF_DEFAULT) == 400
    assert samples("model_cache_hits_total", **OF_DEFAULT) == 5


def test_a_new_process_takes_nothing_away(engines: EngineBench) -> None:
    engines.starts("w2")
    engines.says("w1", ModelUse(loaded=3, hits=9))
    engines.says("w2", ModelUse(loaded=1))
    engines.says("w1", ModelUse(loaded=1, hits=2))
    engines.says("w1", ModelUse(loaded=2, hits=2))
    assert engines.samples("models_loaded_total", **OF_DEFAULT) == 6
    assert engines.samples("model_cache_hits_total", **OF_DEFAULT) == 11


def test_a_new_process_that_says_less_of_one_thing_alone_takes_nothing_away(
    engines: EngineBench,
) -> None:
    engines.says("w1", ModelUse(loaded=3, loaded_bytes=900))
    engines.says("w1", ModelUse(loaded=3, loaded_bytes=200))
    assert engines.samples("models_loaded_bytes_total", **OF_DEFAULT) == 1100


async def test_memory_is_that_of_all_engines_that_were_heard_of_lately() -> None:
    bench = EngineBench()
    bench.says("w1", ModelUse(held_bytes=500), memory_bytes=1000)
    bench.now = 20
    bench.says("w2", ModelUse(held_bytes=300), memory_bytes=800)
    samples = await bench.looked_up()
    assert samples("models_bytes", **OF_DEFAULT) == 800
    assert samples("engine_resident_memory_bytes", **OF_DEFAULT) == 1800
    bench.now = 40
    samples = await bench.looked_up()
    assert samples("models_bytes", **OF_DEFAULT) == 300
    assert samples("engine_resident_memory_bytes", **OF_DEFAULT) == 800


async def test_an_engine_that_was_silent_for_minutes_is_not_counted_again(
    engines: EngineBench,
) -> None:
    engines.says("w1", ModelUse(loaded=2, hits=5))
    engines.now = 600
    assert (await engines.looked_up())("models_bytes", **OF_DEFAULT) is None
    engines.says("w1", ModelUse(loaded=3, hits=5))
    assert engines.samples("models_loaded_total", **OF_DEFAULT) == 3


def test_what_an_engine_did_before_it_was_found_was_counted_elsewhere() -> None:
    bench = EngineBench()
    bench.says("w1", ModelUse(loaded=7, hits=20))
    bench.says("w1", ModelUse(loaded=8, hits=21))
    assert bench.samples("models_loaded_total", **OF_DEFAULT) == 1
    assert bench.samples("model_cache_hits_total", **OF_DEFAULT) == 1


async def test_the_engines_of_an_endpoint_that_is_elsewhere_are_neither_told_nor_counted(
    engines: EngineBench,
) -> None:
    engines.metrics.note("w9", "other", ModelUse(held_bytes=10), 30)
    engines.says("w1", ModelUse(loaded=2, held_bytes=500), memory_bytes=1000)
    engines.metrics.forget("default")
    samples = await engines.looked_up()
    assert samples("models_bytes", **OF_DEFAULT) is None
    assert samples("models_bytes", endpoint="other") == 10
    engines.says("w1", ModelUse(loaded=5, held_bytes=500), memory_bytes=1000)
    engines.says("w1", ModelUse(loaded=6, held_bytes=500), memory_bytes=1000)
    assert engines.samples("models_loaded_total", **OF_DEFAULT) == 3
    assert (await engines.looked_up())("models_bytes", **OF_DEFAULT) == 500


# Queues, workers, log and projection.


LOG = StreamState(messages=40, size_bytes=500, max_bytes=2000, last_sequence=3)
QUEUE = StreamState(messages=7, size_bytes=90, max_bytes=-1, last_sequence=99)


async def test_queues_and_workers_are_those_that_the_dispatcher_tells_of() -> None:
    queue = MemoryJobQueue()
    for job_id in ("a", "b", "c"):
        await queue.add("fast", 1, job_id, deadline=LATER)
    workers = [{"state": "ready", "running": 2}, {"state": "starting", "running": 0}]

    async def statuses() -> Mapping[str, Mapping[str, Any]]:
        return {
            "fast": {"workers": workers, "oldest_waiting_s": 4.5},
            "idle": {"workers": [], "oldest_waiting_s": None},
        }

    metrics = DispatchMetrics(queue=queue, statuses=statuses, endpoints=EndpointLabels(9))
    samples = Samples(await metrics.collect())
    assert samples("queue_jobs", endpoint="fast") == 3
    assert samples("queue_oldest_seconds", endpoint="fast") == 4.5
    assert samples("jobs_running", endpoint="fast") == 2
    assert samples("workers", endpoint="fast", state="ready") == 1
    assert samples("workers", endpoint="fast", state="starting") == 1
    assert samples("workers", endpoint="fast", state="leaving") == 0
    assert samples("queue_jobs", endpoint="idle") == 0
    assert samples("queue_oldest_seconds", endpoint="idle") == 0
    assert samples("workers", endpoint="idle", state="ready") == 0


async def test_the_log_and_what_the_projection_lags_behind_it() -> None:
    stored_at = [MORNING + timedelta(seconds=second) for second in range(3)]

    async def states() -> Mapping[str, StreamState]:
        return {"JOBS": LOG, "QUEUE": QUEUE}

    async def stored_after(position: int) -> datetime | None:
        return stored_at[position] if position < len(stored_at) else None

    async with temporary_database() as database:
        model, history = ReadModel(database), History()
        now = MORNING + timedelta(seconds=10)
        metrics = LogMetrics(model, states=states, stored_after=stored_after, now=lambda: now)
        history.add(new_id(), submitted())
        await model.apply(history.events, expected=0)
        samples = Samples(await metrics.collect())
        assert samples("stream_bytes", stream="JOBS") == 500
        assert samples("stream_messages", stream="QUEUE") == 7
        assert samples("log_fill_ratio") == 0.25
        assert samples("projection_lag_events") == 2
        assert samples("projection_lag_seconds") == 9
        assert samples("jobs_blocked") == 0
        unreadable = history.add(new_id(), submitted(), Unknown(original_type="later"))
        await model.apply(unreadable, expected=1)
        samples = Samples(await metrics.collect())
        assert samples("projection_lag_events") == 0
        assert samples("projection_lag_seconds") == 0
        assert samples("jobs_blocked") == 1


async def test_an_empty_log_lags_behind_nothing() -> None:
    async def states() -> Mapping[str, StreamState]:
        return {"JOBS": StreamState(0, 0, max_bytes=-1, last_sequence=0)}

    async def stored_after(position: int) -> datetime | None:
        raise AssertionError("there is nothing to look for")

    async with temporary_database() as database:
        metrics = LogMetrics(ReadModel(database), states=states, stored_after=stored_after)
        samples = Samples(await metrics.collect())
    assert samples("log_fill_ratio") == 0
    assert samples("projection_lag_events") == 0
