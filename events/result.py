"""The result body, which is the callback body too: one function makes both. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import IntEnum

from pydantic import BaseModel, ConfigDict, Field

from events.job import Job
from events.job_cost import JobCost
from events.types import Cancelled, Completed, End, Failed, ImageStored


class Status(IntEnum):
    """States of a job and of each of its results (service document, section 3)."""

    RUNNING = 0
    COMPLETED = 1
    FAILED = 2


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


class ResultResponse(BaseModel):
    """The state of a job: body of the result endpoint and of the callback."""

    model_config = ConfigDict(frozen=True)

    request_id: str = Field(description="Unique identifier of the request")
    status: Status = Field(description="0 running, 1 completed, 2 failed")
    message: str | None = Field(default=None, description="Why it failed; only with status 2")
    results: tuple[ImageResult, ...] = ()
    progress: float | None = Field(default=None, ge=0, le=1, description="Part of the steps done")
    cost: JobCost | None = Field(default=None, description="Estimated when it was accepted")
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retry_of: str | None = Field(
        default=None,
        description="The failed job that this one repeats, submitted again by an administrator",
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


def result_of(job: Job, url_for: UrlFor) -> ResultResponse:
    """What a caller is told of `job`."""
    absent = ImageResult(status=Status.RUNNING if job.end is None else Status.FAILED)
    asked_for = job.submitted.images
    count = max([asked_for, *(image.index + 1 for image in job.images)])
    stored = {image.index: image for image in job.images}
    return ResultResponse(
        request_id=job.id,
        status=status_of(job.end),
        message=job.end.message if isinstance(job.end, Failed | Cancelled) else None,
        results=tuple(
            _item(job.id, image, url_for) if (image := stored.get(index)) else absent
            for index in range(count)
        ),
        cost=job.submitted.cost,
        created_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        retry_of=job.submitted.retry_of,
    )


def _item(job_id: str, image: ImageStored, url_for: UrlFor) -> ImageResult:
    return ImageResult(
        status=Status.COMPLETED,
        url=url_for(job_id, image),
        seed=image.seed,
        width=image.width,
        height=image.height,
    )
