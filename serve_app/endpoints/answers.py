"""Endpoints as they are answered: their rows, and what is known of their workers and queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from events.store.records import StoredEndpoint
from serve_app.openapi.request_bodies import EXAMPLE_CHECKPOINT

_EXAMPLE: dict[str, Any] = {
    "id": "portraits",
    "owner": "alice",
    "revision": 3,
    "state": "open",
    "checkpoint": EXAMPLE_CHECKPOINT,
    "checkpoints": [EXAMPLE_CHECKPOINT],
    "gpus": 0,
    "cpus": 1,
    "min_workers": 0,
    "max_workers": 2,
    "jobs_per_worker": 0,
    "max_queued": 1000,
    "max_pixels": 16777216,
    "max_steps": 10000,
}


class EndpointInfo(BaseModel):
    """A member that is absent is as the settings have it."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    id: str
    owner: str | None = Field(default=None, description="Absent: it takes everybody's jobs")
    revision: int = Field(description="One more with each change")
    state: Literal["open", "draining", "deleting"]
    ends_at: datetime | None = Field(
        default=None, description="Of one that is deleted: when the jobs fail that still wait"
    )
    checkpoint: str | None = None
    checkpoints: list[str] | None = None
    gpus: float | None = None
    cpus: float
    resources: dict[str, float] | None = None
    labels: dict[str, str] | None = None
    min_workers: int
    max_workers: int
    jobs_per_worker: int
    idle_timeout_s: float | None = None
    job_timeout_s: float | None = None
    queue_timeout_s: float | None = None
    max_attempts: int | None = None
    max_queued: int
    max_pixels: int
    max_steps: int
    max_cost: float | None = None
    precision: str | None = None
    channels_last: bool | None = None
    compiler: str | None = None
    compatibility: str | None = None

    @classmethod
    def of(cls, stored: StoredEndpoint, /, **more: Any) -> Self:
        endpoint = stored.endpoint
        members = asdict(endpoint)
        is_draining = members.pop("draining")
        state = "deleting" if endpoint.ends_at else "draining" if is_draining else "open"
        return cls.model_validate(members | {"revision": stored.revision, "state": state} | more)


class WorkerInfo(BaseModel):
    model_config = ConfigDict(extra="ignore")

    state: str = Field(
        description="`starting`, `ready`, or `leaving`: it gets no more jobs, and goes then"
    )
    is_current: bool = Field(
        description="Whether it is made as the endpoint says now; otherwise it is replaced soon"
    )
    running: int = Field(description="Jobs")
    checkpoints: list[str] = Field(description="That it was asked for since it started")
    trouble: str | None = Field(default=None, description="What keeps it from being ready")


class EndpointDetail(EndpointInfo):
    queued: int | None = Field(
        default=None, description="Jobs that wait or run; absent while the queue does not answer"
    )
    workers: list[WorkerInfo] | None = Field(
        default=None,
        description="Absent, as what follows, while no dispatcher says anything of the endpoint",
    )
    running: int | None = Field(default=None, description="Jobs on workers")
    oldest_waiting_s: float | None = Field(
        default=None, description="Since the submission of the job that waits longest, if any"
    )
    warm_checkpoints: list[str] | None = Field(
        default=None, description="Of ready workers: a job with one of them waits for no loading"
    )
    rate_per_s: float | None = Field(
        default=None, description="Jobs that ended a second over the last minute, if any did"
    )


class EndpointPage(BaseModel):
    endpoints: list[EndpointInfo] = Field(description="By id")


def detail(
    stored: StoredEndpoint, *, queued: int | None, status: Mapping[str, Any] | None
) -> EndpointDetail:
    """`status`: what the dispatcher says, or None."""
    if status is None:
        return EndpointDetail.of(stored, queued=queued)
    workers = [WorkerInfo.model_validate(each) for each in status.get("workers", ())]
    ready = [worker for worker in workers if worker.state == "ready"]
    return EndpointDetail.of(
        stored,
        queued=queued,
        workers=workers,
        running=sum(worker.running for worker in workers),
        oldest_waiting_s=status.get("oldest_waiting_s"),
        warm_checkpoints=sorted({name for worker in ready for name in worker.checkpoints}),
        rate_per_s=status.get("rate_per_s"),
    )
