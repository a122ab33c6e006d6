"""One event of each type, as subscribers get it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from events.result import FailureCode
from events.types import (
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    DispatchFailed,
    Erased,
    Event,
    Failed,
    Flavour,
    ImageStored,
    JobCost,
    JobEvent,
    Started,
    Submitted,
    Terms,
    Timing,
)

JOB_ID = "0199aaaa-0000-7000-8000-000000000001"
_BEGAN = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
_DATA: tuple[JobEvent, ...] = (
    Submitted(
        flavour=Flavour.DIFFUSION,
        owner="alice",
        key_id="k1",
        endpoint="default",
        lane=3,
        request={"prompt": "a large red circle on white", "width": 64, "height": 64, "seed": 7},
        fingerprint="3f6c",
        images=1,
        callback_url="https://you.example/task_completed",
        cost=JobCost(work=0.08, live_bytes=2_097_152, rows=2, tokens=77, outputs=1),
        terms=Terms(max_pixels=16_777_216, max_steps=1000, max_cost=0),
    ),
    Started(attempt=1, actor="job-01-1"),
    ImageStored(
        index=0,
        attempt=1,
        key="0199aaaa/1/0.png",
        size_bytes=4_123,
        digest="sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        width=64,
        height=64,
        seed=7,
    ),
    AttemptFailed(attempt=1, message="The worker was lost."),
    DispatchFailed(failure=1, message="The job actor died."),
    CancelRequested(),
    Completed(images=1, timing=Timing(stage_s={"denoise": 1.25, "store": 0.03}, rows_per_call=6.4)),
    Failed(message="Timed out: the job did not end within 60 s.", code=FailureCode.TIMEOUT),
    Cancelled(),
    Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=_BEGAN),
)


def example_events() -> dict[str, Event]:
    """Return the examples by the name of the type. The examples do not form the history of one
    job.
    """
    return {
        data.type_name: Event(
            id=f"0199aaaa-0000-7000-8000-0000000000e{number:x}",
            job_id=JOB_ID,
            version=number,
            time=_BEGAN + timedelta(seconds=number),
            data=data,
            position=41 + number,
        )
        for number, data in enumerate(_DATA, start=1)
    }
