"""What callbacks tell of a job, in which order, and their bodies. Pure.

Each job has one callback, that of its end. Before it come those that its caller asked for: of its
start, and of each image as it is stored. They follow from the events of the job alone, so every
try has the same body, whoever makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from events.delivery import Delivery, is_wanted
from events.job import Job, fold, from_erasure
from events.result import ResultResponse, UrlFor, result_of
from events.types import Event, ImageStored, Started, Submitted


class CallbackEvent(StrEnum):
    STARTED = "started"
    IMAGE = "image"
    COMPLETED = "completed"
    """The end, also where the job failed or was cancelled."""


class CallbackBody(ResultResponse):
    """The result as it was then and, where more than the end was asked for, what happened."""

    event: CallbackEvent | None = Field(
        default=None,
        description="What it tells of; only where the job has `callback_events`. `completed` is "
        "the end, whichever it was",
    )
    index: int | None = Field(
        default=None, ge=0, description="Of the event `image`: its place in `results`, from 0"
    )


@dataclass(frozen=True, slots=True)
class CallbackMessage:
    """What one callback tells."""

    event: CallbackEvent
    job: Job
    """As it was when that had just happened."""
    index: int | None = None
    """Of the image."""

    @property
    def about(self) -> str | None:
        """Its name among those of its job; None is that of the end."""
        if self.event is CallbackEvent.COMPLETED:
            return None
        return self.event if self.index is None else f"{self.event}-{self.index}"

    def is_beyond(self, most_images: int) -> bool:
        return self.index is not None and self.index >= most_images

    def body(self, url_for: UrlFor, delivery: Delivery | None = None) -> bytes:
        """As JSON: the result, and what this tells of where more than the end is asked for.

        `delivery`: to tell what became of images that are put, as is known before the end is told.
        """
        result = result_of(self.job, url_for, delivery=delivery)
        if not self.job.submitted.callback_events:
            return result.body()
        told = {"event": self.event, "index": self.index}
        return CallbackBody.model_validate(dict(result) | told).body()


def told_of(submitted: Submitted) -> frozenset[str]:
    """What the caller is called back for. A later version may know of more than `CallbackEvent`.

    The end is among it, too, where images are put: that begins there.
    """
    if not is_wanted(submitted):
        return frozenset()
    return frozenset({*(submitted.callback_events or ()), CallbackEvent.COMPLETED})


def next_before_end(
    events: Sequence[Event], delivery: Delivery, *, most_images: int
) -> CallbackMessage | None:
    """The first of what is to be told before the end that is not over; None where there is none.

    `events` are those of the job; of its images those with an index below `most_images` are told.
    Once the end was told, or tried to, nothing before it is.
    """
    if delivery.is_at_end:
        return None
    messages = _before_end(events, most_images=most_images)
    return next((each for each in messages if each.about not in delivery.over), None)


def _before_end(events: Sequence[Event], *, most_images: int) -> Iterator[CallbackMessage]:
    """In the order in which it happened. Other attempts begin and store nothing anew."""
    job: Job | None = None
    told: set[str | None] = set()
    for event in from_erasure(events):
        job = fold([event], job)
        message = None if job is None else _message(event, job)
        if message is None or message.about in told or message.is_beyond(most_images):
            continue
        told.add(message.about)
        if message.event in told_of(message.job.submitted):
            yield message


def _message(event: Event, job: Job) -> CallbackMessage | None:
    match event.data:
        case Started():
            return CallbackMessage(CallbackEvent.STARTED, job)
        case ImageStored(index=index):
            return CallbackMessage(CallbackEvent.IMAGE, job, index)
        case _:
            return None
