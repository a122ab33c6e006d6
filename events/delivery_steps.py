"""The steps of a delivery, their order, and the bodies of callbacks. The functions are pure.

A delivery has three kinds of steps, in this order:

1. Callbacks before the end, if the caller requested them: one for the start of the job, and one for
each stored image. Their bodies depend only on the events of the job, so all attempts send the same
body.
2. Presigned uploads, which send images to URLs of the caller.
3. The callback of the end. Its result also reports the outcome of the uploads.

Uploads have the same events as callbacks before the end, with other names (`about_put`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from events.delivery import Delivery, about_put, has_delivery
from events.job import Job, fold, from_erasure
from events.result import ResultResponse, UrlFor, result_of
from events.types import Event, ImageStored, Started, Submitted
from settings.constant import constant

MOST_IMAGES = constant("CALLBACK_MAX_IMAGES", 32)
"""The largest number of images of a job that have their own callback, by index."""
BEFORE_END_S = constant("CALLBACK_BEFORE_END_S", 300.0)
"""Seconds after the end of a job at which callbacks before the end are given up, so that they do
not delay the callback of the end any longer.
"""
UPLOADS_S = constant("IMAGE_PUT_LONGEST_S", 600.0)
"""Seconds after the end of a job at which presigned uploads are given up, so that they do not delay
the callback of the end any longer.
"""


@dataclass(frozen=True, slots=True)
class PresignedUpload:
    """One image and its destination."""

    image: ImageStored
    sealed: str
    """The sealed URL; see `storage.service_secret`."""

    @property
    def about(self) -> str:
        """The name of the upload among the steps of the delivery."""
        return about_put(self.image.index)


def next_upload(job: Job, delivery: Delivery) -> PresignedUpload | None:
    """Return the next presigned upload of an ended job, or None if none is left."""
    if job.end is None or delivery.end_was_attempted:
        return None
    return next((each for each in _puts(job) if each.about not in delivery.finished_steps), None)


def _puts(job: Job) -> Iterator[PresignedUpload]:
    addresses = job.submitted.image_puts or ()
    for image in sorted(job.images, key=lambda image: image.index):
        if image.index < len(addresses):
            yield PresignedUpload(image, addresses[image.index])


class CallbackEvent(StrEnum):
    STARTED = "started"
    IMAGE = "image"
    COMPLETED = "completed"
    """The end of the job, including failure and cancellation."""


class CallbackBody(ResultResponse):
    """The result of the job at the time of the event. The body names the event if the job has
    `callback_events`.
    """

    event: CallbackEvent | None = Field(
        default=None,
        description="The event that caused this callback; only for a job with `callback_events`. "
        "`completed` stands for every end, including failure and cancellation",
    )
    index: int | None = Field(
        default=None,
        ge=0,
        description="Only for the event `image`: the index of the image in `results`, from 0",
    )


@dataclass(frozen=True, slots=True)
class CallbackMessage:
    """One callback of a job."""

    event: CallbackEvent
    job: Job
    """The state of the job just after the event."""
    index: int | None = None

    @property
    def about(self) -> str | None:
        """The callback's name in the events of the delivery; None for the callback of the end."""
        if self.event is CallbackEvent.COMPLETED:
            return None
        return self.event if self.index is None else f"{self.event}-{self.index}"

    def is_beyond(self, most_images: int) -> bool:
        return self.index is not None and self.index >= most_images

    def body(self, url_for: UrlFor, delivery: Delivery | None = None) -> bytes:
        """Return the body as JSON: the result, and the event if the job has `callback_events`.

        The callback of the end needs `delivery`, to report the outcome of presigned uploads.
        """
        result = result_of(self.job, url_for, delivery=delivery)
        if not self.job.submitted.callback_events:
            return result.body()
        members = {"event": self.event, "index": self.index}
        return CallbackBody.model_validate(dict(result) | members).body()


def callback_events_of(submitted: Submitted) -> frozenset[str]:
    """Return the names of the events for which there are callbacks, perhaps names of a later
    version.

    `completed` is among them for every job with a delivery, because presigned uploads start at the
    end.
    """
    if not has_delivery(submitted):
        return frozenset()
    return frozenset({*(submitted.callback_events or ()), CallbackEvent.COMPLETED})


def next_before_end(
    events: Sequence[Event], delivery: Delivery, *, most_images: int
) -> CallbackMessage | None:
    """Return the first callback before the end that was neither delivered nor given up, or None.

    Only images with an index below `most_images` have callbacks. After an attempt of the callback
    of the end, the result is None.
    """
    if delivery.end_was_attempted:
        return None
    messages = _before_end(events, most_images=most_images)
    return next((each for each in messages if each.about not in delivery.finished_steps), None)


def _before_end(events: Sequence[Event], *, most_images: int) -> Iterator[CallbackMessage]:
    """Yield the callbacks in the order of their events, each name once.

    Later attempts of the job repeat `Started` and may repeat images.
    """
    job: Job | None = None
    seen: set[str | None] = set()
    for event in from_erasure(events):
        job = fold([event], job)
        message = None if job is None else _message(event, job)
        if message is None or message.about in seen or message.is_beyond(most_images):
            continue
        seen.add(message.about)
        if message.event in callback_events_of(message.job.submitted):
            yield message


def _message(event: Event, job: Job) -> CallbackMessage | None:
    match event.data:
        case Started():
            return CallbackMessage(CallbackEvent.STARTED, job)
        case ImageStored(index=index):
            return CallbackMessage(CallbackEvent.IMAGE, job, index)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class DeliveryStep:
    """A callback to make, or an image to upload."""

    what: CallbackMessage | PresignedUpload
    job: Job
    delivery: Delivery
    not_after: datetime | None = None
    """The time at which the step is given up; None if this time is not known."""

    @property
    def about(self) -> str | None:
        """The name of the step in the events of the delivery; None for the callback of the end."""
        return self.what.about

    @property
    def retry_at(self) -> datetime | None:
        """The earliest time of the next attempt; None before the first attempt."""
        if self.about is None:
            return self.delivery.retry_at
        before = self.delivery.before_end
        return before.retry_at if before and before.about == self.about else None

    def is_late(self, now: datetime) -> bool:
        """Whether the step must be given up."""
        return self.not_after is not None and now >= self.not_after

    def no_later(self, until: datetime) -> datetime:
        """Return the earlier of `until` and the time at which the step is given up."""
        return until if self.not_after is None else min(until, self.not_after)


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """A delivery without a callback of the end, and without uploads that are left."""

    job: Job
    delivery: Delivery


def next_delivery_step(
    events: Sequence[Event],
    job: Job,
    delivery: Delivery,
    *,
    now: datetime,
    most_images: int = MOST_IMAGES,
    before_end_s: float = BEFORE_END_S,
    uploads_s: float = UPLOADS_S,
    since: datetime | None = None,
) -> DeliveryStep | NothingLeft | None:
    """Return the next step of a delivery, or None if it depends on a future event of the job.

    `events` are the events of the job. `most_images` is the number of images with callbacks before
    the end. These callbacks are given up `before_end_s` seconds after the end of the job, and
    presigned uploads `uploads_s` seconds after it. If the job ended before this process started, at
    `since`, uploads get `uploads_s` seconds from `since`, so that an outage of the service does not
    shorten their time.
    """
    not_after = job.ended_at and job.ended_at + timedelta(seconds=before_end_s)
    if not_after is None or now < not_after:
        message = next_before_end(events, delivery, most_images=most_images)
        if message is not None:
            return DeliveryStep(message, job, delivery, not_after)
    if job.end is None or job.ended_at is None:
        return None
    if put := next_upload(job, delivery):
        not_after = max(job.ended_at, since or job.ended_at) + timedelta(seconds=uploads_s)
        return DeliveryStep(put, job, delivery, not_after)
    if job.submitted.callback_url is None:
        return NothingLeft(job, delivery)
    return DeliveryStep(CallbackMessage(CallbackEvent.COMPLETED, job), job, delivery)
