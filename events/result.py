"""The result body, which is the callback body too: one function makes both. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum, StrEnum

from pydantic import BaseModel, ConfigDict, Field

from events.delivery import Delivery, about_put
from events.job import Job
from events.job_cost import JobCost
from events.types import Cancelled, Completed, DeadLetter, End, Failed, ImageStored


class Status(IntEnum):
    """States of a job and of each of its results."""

    RUNNING = 0
    COMPLETED = 1
    FAILED = 2


class State(StrEnum):
    """What `Status` leaves open: whether a job waits or runs, and why it has no result."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FailureCode(StrEnum):
    """Events hold it as a text: one of a later version is passed on as it is."""

    CANCELLED = "cancelled"
    """Its caller or an administrator cancelled it."""
    TIMEOUT = "timeout"
    """Its time was over before it had ended."""
    INVALID_INPUT = "invalid_input"
    """What it was given cannot be run: a value, a size, or an input file that is gone."""
    MODEL_UNAVAILABLE = "model_unavailable"
    """A model file is missing, damaged, or of a kind that is not supported."""
    OUT_OF_MEMORY = "out_of_memory"
    """The device's memory does not hold it: lower the width, height or batch size."""
    NODE_FAILED = "node_failed"
    """A node of its graph failed, and would fail again."""
    ENGINE_FAILED = "engine_failed"
    """Every attempt ended with a death of the engine, of its device, or of its machine."""
    ENDPOINT_REMOVED = "endpoint_removed"
    """Its endpoint was removed before it had ended."""
    SERVICE_FAILED = "service_failed"
    """The service could not dispatch or handle it."""
    QUARANTINED = "quarantined"
    """An administrator stopped it."""
    UNKNOWN = "unknown"
    """It failed under a version that recorded no code."""


_RETRYABLE = {FailureCode.TIMEOUT, FailureCode.ENGINE_FAILED, FailureCode.SERVICE_FAILED}


def failure_code(end: Failed | Cancelled) -> str:
    if isinstance(end, Cancelled):
        return FailureCode.CANCELLED
    if end.code is None and end.dead_letter is DeadLetter.QUARANTINED:
        return FailureCode.QUARANTINED
    return end.code or FailureCode.UNKNOWN


def is_retryable(code: str) -> bool:
    """Whether the same request may well succeed when it is submitted again as it is."""
    return code in _RETRYABLE


class JobError(BaseModel):
    """Why a job failed, for programs."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(
        description=f"{', '.join(FailureCode)}; later versions may have more",
        examples=[FailureCode.OUT_OF_MEMORY],
    )
    retryable: bool = Field(
        description="Whether the same request may well succeed when it is submitted again"
    )


class PutResult(BaseModel):
    """Whether an image is where its caller wanted it put."""

    model_config = ConfigDict(frozen=True)

    status: Status = Field(
        default=Status.RUNNING, description="0 not yet, 1 it is there, 2 given up"
    )
    message: str | None = Field(default=None, description="Why it was given up")


_LEFT_OUT = PutResult(status=Status.FAILED, message="it was not put before the end was told")
"""By a role of a version that knows no such addresses."""


class ImageResult(BaseModel):
    """One image of a job."""

    model_config = ConfigDict(frozen=True)

    status: Status = Field(
        default=Status.RUNNING, description="0 not completed, 1 completed, 2 failed"
    )
    url: str | None = Field(default=None, description="Where the finished image is")
    seed: int | None = Field(default=None, description="Seed that gives this image alone")
    width: int | None = Field(default=None, description="Pixels")
    height: int | None = Field(default=None, description="Pixels")
    data: str | None = Field(
        default=None,
        description="The file in base64, where a result was asked for with `inline` and it is "
        "small enough; never in callbacks",
    )
    put: PutResult | None = Field(
        default=None, description="Of an image that has one of the job's `image_put_urls`"
    )


class ResultResponse(BaseModel):
    """The state of a job: body of the result endpoint and of the callback."""

    model_config = ConfigDict(frozen=True)

    request_id: str = Field(description="Unique identifier of the request")
    status: Status = Field(description="0 running, 1 completed, 2 failed")
    state: State | None = Field(
        default=None, description="Whether it waits or runs, and how it ended"
    )
    message: str | None = Field(default=None, description="Why it failed; only with status 2")
    error: JobError | None = Field(default=None, description="The same for programs")
    results: tuple[ImageResult, ...] = ()
    progress: float | None = Field(default=None, ge=0, le=1, description="Part of the steps done")
    queue_position: int | None = Field(
        default=None,
        ge=1,
        description="While it waits: 1 is next, in the order of submission",
    )
    starts_in_s: float | None = Field(
        default=None,
        ge=0,
        description="While it waits: an estimate, by how many jobs of its endpoint ended lately",
    )
    cost: JobCost | None = Field(default=None, description="Estimated when it was accepted")
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retry_of: str | None = Field(
        default=None,
        description="The failed job that this one repeats, submitted again by an administrator",
    )
    notes: tuple[str, ...] | None = Field(
        default=None,
        description="What was done otherwise than asked: `vae_tiled`, where memory ran out and an "
        "image was decoded or encoded tile by tile, so that its pixels differ a little; later "
        "versions may have more",
        examples=[["vae_tiled"]],
    )

    def body(self) -> bytes:
        """The bytes that are answered and delivered: members without a value are left out."""
        return self.model_dump_json(exclude_none=True).encode()


UrlFor = Callable[[str, ImageStored], str]
"""(job id, image) -> URL."""


def status_of(end: End | None) -> Status:
    match end:
        case None:
            return Status.RUNNING
        case Completed():
            return Status.COMPLETED
        case Failed() | Cancelled():
            return Status.FAILED


def state_of(job: Job) -> State:
    """A job that waits for another attempt is queued."""
    match job.end:
        case None:
            return State.RUNNING if job.is_attempted else State.QUEUED
        case Completed():
            return State.COMPLETED
        case Failed():
            return State.FAILED
        case Cancelled():
            return State.CANCELLED


def message_of(end: End | None) -> str | None:
    return end.message if isinstance(end, Failed | Cancelled) else None


def error_of(end: End | None) -> JobError | None:
    if not isinstance(end, Failed | Cancelled):
        return None
    code = failure_code(end)
    return JobError(code=code, retryable=is_retryable(code))


def result_of(job: Job, url_for: UrlFor, *, delivery: Delivery | None = None) -> ResultResponse:
    """What a caller is told of `job`. `delivery`: to tell what became of images that are put."""
    return ResultResponse(
        request_id=job.id,
        status=status_of(job.end),
        state=state_of(job),
        message=message_of(job.end),
        error=error_of(job.end),
        results=images_of(job, url_for, delivery=delivery),
        cost=job.submitted.cost,
        created_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        retry_of=job.submitted.retry_of,
        notes=job.end.notes if isinstance(job.end, Completed) else None,
    )


def image_count(job: Job) -> int:
    """How many images `job` was asked for, or has by now, if that is more."""
    return max([job.submitted.images, *(image.index + 1 for image in job.images)])


def images_of(
    job: Job, url_for: UrlFor, *, most: int | None = None, delivery: Delivery | None = None
) -> tuple[ImageResult, ...]:
    """The images of `job`, in order, present or not; the first ones only, where `most` is given."""
    absent = ImageResult(status=Status.RUNNING if job.end is None else Status.FAILED)
    count = image_count(job) if most is None else min(image_count(job), most)
    stored = {image.index: image for image in job.images}
    return tuple(
        _item(job, image, url_for, delivery) if (image := stored.get(index)) else absent
        for index in range(count)
    )


def _item(job: Job, image: ImageStored, url_for: UrlFor, delivery: Delivery | None) -> ImageResult:
    return ImageResult(
        status=Status.COMPLETED,
        url=url_for(job.id, image),
        seed=image.seed,
        width=image.width,
        height=image.height,
        put=_put(job, image.index, delivery),
    )


def _put(job: Job, index: int, delivery: Delivery | None) -> PutResult | None:
    if delivery is None or index >= len(job.submitted.image_puts or ()):
        return None
    about = about_put(index)
    if about not in delivery.over:
        return _LEFT_OUT if delivery.is_at_end else PutResult()
    why = delivery.failures.get(about)
    return PutResult(status=Status.COMPLETED if why is None else Status.FAILED, message=why)
