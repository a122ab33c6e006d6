"""Histories of one job, as a log would hand them out."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from events.job import Job, fold
from events.types import Event, EventData, ImageStored

JOB_ID = "0199aaaa-0000-7000-8000-000000000001"
START = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)


def history(*events: EventData) -> list[Event]:
    """Versions from 1, a second apart; between the positions there is room for other jobs."""
    return [
        Event(
            id=f"event-{version}",
            job_id=JOB_ID,
            version=version,
            time=START + timedelta(seconds=version - 1),
            data=data,
            position=version * 10,
        )
        for version, data in enumerate(events, start=1)
    ]


def folded(events: Iterable[EventData]) -> Job:
    job = fold(history(*events))
    assert job is not None
    return job


def image(index: int, *, attempt: int = 1) -> ImageStored:
    return ImageStored(
        index=index,
        attempt=attempt,
        key=f"{JOB_ID}/{attempt}/{index}",
        size_bytes=1000 + index,
        digest="sha256:00",
        width=512,
        height=768,
        seed=7 + index,
    )
