"""What is looked up when somebody asks: queues, workers, log, archive, projection."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from events.archive.archive import SegmentRef
from events.ids import new_id
from events.log import StreamState
from events.memory.queues import MemoryJobQueue
from events.store.archiving.segments import Segments
from events.store.read_model import ReadModel
from events.types import Unknown
from telemetry.dispatch_metrics import DispatchMetrics
from telemetry.labels import EndpointLabels
from telemetry.store_metrics import ArchiveMetrics, LogMetrics
from telemetry.streams import Streams
from tests.support.database import database_in
from tests.support.events import MORNING, History, submitted
from tests.support.telemetry.samples import Samples

LOG = StreamState(messages=40, size_bytes=500, max_bytes=2000, last_sequence=3)
QUEUE = StreamState(messages=7, size_bytes=90, max_bytes=-1, last_sequence=99)


async def test_queues_and_workers_are_those_that_the_dispatcher_tells_of() -> None:
    queue = MemoryJobQueue()
    for job_id in ("a", "b", "c"):
        await queue.add("fast", 1, job_id)
    workers = [{"state": "ready", "running": 2}, {"state": "starting", "running": 0}]

    async def statuses() -> Mapping[str, Mapping[str, Any]]:
        return {
            "fast": {"workers": workers, "oldest_waiting_s": 4.5},
            "idle": {"workers": [], "oldest_waiting_s": None},
        }

    metrics = DispatchMetrics(queue=queue, statuses=statuses, endpoints=EndpointLabels(9))
    samples = Samples(await metrics.look())
    assert samples("queue_jobs", endpoint="fast") == 3
    assert samples("queue_oldest_seconds", endpoint="fast") == 4.5
    assert samples("jobs_running", endpoint="fast") == 2
    assert samples("workers", endpoint="fast", state="ready") == 1
    assert samples("workers", endpoint="fast", state="starting") == 1
    assert samples("workers", endpoint="fast", state="leaving") == 0
    assert samples("queue_jobs", endpoint="idle") == 0
    assert samples("queue_oldest_seconds", endpoint="idle") == 0
    assert samples("workers", endpoint="idle", state="ready") == 0


@pytest.fixture
def stored_at() -> list[datetime]:
    """When the log stored each event."""
    return [MORNING + timedelta(seconds=second) for second in range(3)]


async def test_the_log_and_what_the_projection_lags_behind_it(
    tmp_path: Path, stored_at: list[datetime]
) -> None:
    async def states() -> Mapping[str, StreamState]:
        return {"JOBS": LOG, "QUEUE": QUEUE}

    async def stored_after(position: int) -> datetime | None:
        return stored_at[position] if position < len(stored_at) else None

    async with database_in(tmp_path) as database:
        model, history = ReadModel(database), History()
        now = MORNING + timedelta(seconds=10)
        streams = Streams(states, ["JOBS"], stored_after)
        metrics = LogMetrics(streams, model, now=lambda: now)
        history.add(new_id(), submitted())
        await model.apply(history.events, expected=0)
        samples = Samples(await metrics.look())
        assert samples("stream_bytes", stream="JOBS") == 500
        assert samples("stream_messages", stream="QUEUE") == 7
        assert samples("log_fill_ratio") == 0.25
        assert samples("projection_lag_events") == 2
        assert samples("projection_lag_seconds") == 9
        assert samples("jobs_blocked") == 0
        unreadable = history.add(new_id(), submitted(), Unknown(original_type="later"))
        await model.apply(unreadable, expected=1)
        samples = Samples(await metrics.look())
        assert samples("projection_lag_events") == 0
        assert samples("projection_lag_seconds") == 0
        assert samples("jobs_blocked") == 1


async def test_an_empty_log_lags_behind_nothing(tmp_path: Path) -> None:
    async def states() -> Mapping[str, StreamState]:
        return {"JOBS": StreamState(0, 0, max_bytes=-1, last_sequence=0)}

    async def stored_after(position: int) -> datetime | None:
        raise AssertionError("there is nothing to look for")

    async with database_in(tmp_path) as database:
        streams = Streams(states, ["JOBS"], stored_after)
        samples = Samples(await LogMetrics(streams, ReadModel(database)).look())
    assert samples("log_fill_ratio") == 0
    assert samples("projection_lag_events") == 0


async def test_the_archive_is_what_its_segments_hold(tmp_path: Path) -> None:
    async with database_in(tmp_path) as database:
        segments = Segments(database)
        metrics = ArchiveMetrics(database)
        assert Samples(await metrics.look())("archive_segments") == 0
        for number in range(2):
            ref = SegmentRef(MORNING.date(), 0, f"s{number}")
            await segments.add(ref, jobs=3, size_bytes=1000, now=MORNING)
        await segments.begin(SegmentRef(MORNING.date(), 0, "unfinished"), MORNING)
        samples = Samples(await metrics.look())
    assert samples("archive_segments") == 2
    assert samples("archive_bytes") == 2000


def test_a_stream_state_without_a_limit_is_never_full() -> None:
    assert QUEUE.fill == 0
    assert LOG.fill == 0.25
