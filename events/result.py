"""The result of a job, as in answers of the API and in callbacks. The functions are pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum, StrEnum

from pydantic import BaseModel, ConfigDict, Field

from events.delivery import Delivery, about_put
from events.job import Job
from events.types import (
    Cancelled,
    Completed,
    DeadLetter,
    End,
    Failed,
    ImageStored,
    JobCost,
    Poster,
)
from storage.file_names import PNG, FileKind, kind_of


class Status(IntEnum):
    """States of a job and of each of its results."""

    RUNNING = 0
    COMPLETED = 1
    FAILED = 2


class State(StrEnum):
    """A finer state than `Status`: whether a job waits or runs, and why it has no result."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class FailureCode(StrEnum):
    """Why a job failed. Events store the code as text, so a code of a later version is kept."""

    CANCELLED = "cancelled"
    """The caller or an administrator cancelled the job."""
    TIMEOUT = "timeout"
    """The deadline of the job passed before its end."""
    INVALID_INPUT = "invalid_input"
    """The input cannot be run: a value or size is invalid, or an input file no longer exists."""
    MODEL_UNAVAILABLE = "model_unavailable"
    """A model file is missing, damaged, or of a kind that is not supported."""
    OUT_OF_MEMORY = "out_of_memory"
    """The device has too little memory for the job. Reduce the width, height or batch size."""
    NODE_FAILED = "node_failed"
    """A node of the graph failed, and would fail again."""
    ENGINE_FAILED = "engine_failed"
    """Every attempt ended with a failure of the engine, of its device, or of its machine."""
    ENDPOINT_REMOVED = "endpoint_removed"
    """The endpoint was removed before the end of the job."""
    SERVICE_FAILED = "service_failed"
    """The service could not dispatch or run the job."""
    QUARANTINED = "quarantined"
    """An administrator stopped the job."""
    UNKNOWN = "unknown"
    """The job failed under a version that recorded no code."""


_RETRYABLE = {FailureCode.TIMEOUT, FailureCode.ENGINE_FAILED, FailureCode.SERVICE_FAILED}


def failure_code(end: Failed | Cancelled) -> str:
    if isinstance(end, Cancelled):
        return FailureCode.CANCELLED
    if end.code is None and end.dead_letter is DeadLetter.QUARANTINED:
        return FailureCode.QUARANTINED
    return end.code or FailureCode.UNKNOWN


def is_retryable(code: str) -> bool:
    """Return whether the same request may succeed when it is submitted again."""
    return code in _RETRYABLE


class JobError(BaseModel):
    """Why a job failed, for programs."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(
        description=f"One of {', '.join(FailureCode)}. Later versions may have more codes",
        examples=[FailureCode.OUT_OF_MEMORY],
    )
    retryable: bool = Field(
        description="Whether the same request may succeed if it is submitted again"
    )


class PutResult(BaseModel):
    """Whether an image was sent to its presigned URL."""

    model_config = ConfigDict(frozen=True)

    status: Status = Field(
        default=Status.RUNNING, description="0: not sent yet; 1: sent; 2: given up"
    )
    message: str | None = Field(default=None, description="Why the upload was given up")


_LEFT_OUT = PutResult(
    status=Status.FAILED,
    message="the image was not uploaded before the callback of the end was sent",
)
"""The result of an image whose upload was skipped because of the callback of the end."""


class ImageResult(BaseModel):
    """One image of a job."""

    model_config = ConfigDict(frozen=True)

    status: Status = Field(
        default=Status.RUNNING, description="0: not completed; 1: completed; 2: failed"
    )
    url: str | None = Field(default=None, description="The URL of the finished image")
    seed: int | None = Field(
        default=None, description="The seed with which a request makes only this image"
    )
    kind: FileKind | None = Field(
        default=None, description="The kind of the file. A latent has the kind `file`"
    )
    media_type: str | None = Field(
        default=None, description="The media type of the file, such as `image/png`"
    )
    size_bytes: int | None = Field(default=None, description="The size of the file")
    width: int | None = Field(default=None, description="Pixels; absent if the file has none")
    height: int | None = Field(default=None, description="Pixels; absent if the file has none")
    duration_s: float | None = Field(
        default=None, description="The duration of a video or a sound, if it is known"
    )
    poster_url: str | None = Field(
        default=None,
        description="The URL of the first frame of a video, as a JPEG with at most 512 pixels on "
        "the longer side",
    )
    text: str | None = Field(
        default=None, description="The content of a plain text of at most 4,096 bytes"
    )
    data: str | None = Field(
        default=None,
        description="The file in base64, if the request has `inline` and the file is small enough. "
        "Callbacks never have this member",
    )
    output: str | None = Field(
        default=None,
        description="The name of the output of a named workflow that made the file",
    )
    put: PutResult | None = Field(
        default=None,
        description="The result of the upload, for an image with a URL in the `image_put_urls` of "
        "the job",
    )


class ResultResponse(BaseModel):
    """The state of a job. It is the body of the result endpoint and of callbacks."""

    model_config = ConfigDict(frozen=True)

    request_id: str = Field(description="The id of the job")
    status: Status = Field(description="0: running; 1: completed; 2: failed")
    endpoint: str | None = Field(default=None, description="The endpoint that runs the job")
    state: State | None = Field(
        default=None, description="Whether the job waits or runs, or how it ended"
    )
    message: str | None = Field(default=None, description="Why the job failed; only with status 2")
    error: JobError | None = Field(default=None, description="Why the job failed, for programs")
    results: tuple[ImageResult, ...] = ()
    progress: float | None = Field(
        default=None, ge=0, le=1, description="The share of the steps that are done, 0 to 1"
    )
    queue_position: int | None = Field(
        default=None,
        ge=1,
        description="The position of a waiting job in the order of submission; 1 is the next job",
    )
    starts_in_s: float | None = Field(
        default=None,
        ge=0,
        description="For a waiting job: the estimated seconds until it starts, from the number of "
        "jobs of its endpoint that ended recently",
    )
    cost: JobCost | None = Field(
        default=None, description="The cost that was estimated at acceptance"
    )
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retry_of: str | None = Field(
        default=None,
        description="The id of the failed job that an administrator submitted again as this job",
    )
    workflow: str | None = Field(
        default=None,
        description="The named workflow of the job with its version",
        examples=["portrait@3"],
    )
    notes: tuple[str, ...] | None = Field(
        default=None,
        description="Differences between the request and its execution. `vae_tiled`: memory ran "
        "out, so an image was decoded or encoded tile by tile, and its pixels differ a little. "
        "`lora_left_out: NAME`, `embedding_left_out: NAME` and `network_left_out: KIND:NAME`: the "
        "prompt names a model that does not exist here or does not fit, so the images are made "
        "without it. Later versions may have more notes",
        examples=[["vae_tiled", "lora_left_out: sketch"]],
    )

    def body(self) -> bytes:
        """Return the body as JSON. Members without a value are left out."""
        return self.model_dump_json(exclude_none=True).encode()


UrlFor = Callable[[str, ImageStored | Poster], str]
"""A function that returns the URL of a file, from the job id and the file."""


def status_of(end: End | None) -> Status:
    match end:
        case None:
            return Status.RUNNING
        case Completed():
            return Status.COMPLETED
        case Failed() | Cancelled():
            return Status.FAILED


def state_of(job: Job) -> State:
    """Return the state of a job, which is queued also between two attempts."""
    match job.end:
        case None:
            return State.RUNNING if job.has_running_attempt else State.QUEUED
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
    """Return the result of `job`. With `delivery`, images report the outcome of their upload."""
    return ResultResponse(
        request_id=job.id,
        status=status_of(job.end),
        endpoint=job.submitted.endpoint,
        state=state_of(job),
        message=message_of(job.end),
        error=error_of(job.end),
        results=images_of(job, url_for, delivery=delivery),
        cost=job.submitted.cost,
        created_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        retry_of=job.submitted.retry_of,
        workflow=workflow_of(job),
        notes=notes_of(job),
    )


def workflow_of(job: Job) -> str | None:
    """Return the name and the version of the named workflow of a job; None if it has none."""
    named = job.submitted.workflow
    return None if named is None else f"{named.name}@{named.version}"


def notes_of(job: Job) -> tuple[str, ...] | None:
    """Return the deviations of a job from its request that are known so far; None if none are."""
    at_end = job.end.notes if isinstance(job.end, Completed) else None
    return tuple(dict.fromkeys((*(job.submitted.notes or ()), *(at_end or ())))) or None


def image_count(job: Job) -> int:
    """Return the number of requested images, or the highest index plus one if that is more."""
    return max([job.submitted.images, *(image.index + 1 for image in job.images)])


def images_of(
    job: Job, url_for: UrlFor, *, most: int | None = None, delivery: Delivery | None = None
) -> tuple[ImageResult, ...]:
    """Return the results of all images of `job` by index, or of the first `most` images.

    Images that are not stored have a result, too.
    """
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
        kind=kind_of(image.media_type),
        media_type=image.media_type or PNG,
        size_bytes=image.size_bytes,
        width=image.width or None,
        height=image.height or None,
        duration_s=image.duration_s,
        poster_url=None if image.poster is None else url_for(job.id, image.poster),
        text=image.text,
        output=_output(job, image.node),
        put=_put(job, image.index, delivery),
    )


def _output(job: Job, node: str | None) -> str | None:
    named = job.submitted.workflow
    return None if named is None or node is None else named.outputs.get(node)


def _put(job: Job, index: int, delivery: Delivery | None) -> PutResult | None:
    if delivery is None or index >= len(job.submitted.image_puts or ()):
        return None
    about = about_put(index)
    if about not in delivery.finished_steps:
        return _LEFT_OUT if delivery.end_was_attempted else PutResult()
    why = delivery.failures.get(about)
    return PutResult(status=Status.COMPLETED if why is None else Status.FAILED, message=why)
