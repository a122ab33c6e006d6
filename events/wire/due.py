"""What is to be done next for a delivery, as far as its events and those of its job say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from events.delivery import Delivery
from events.job import Job
from events.types import Event
from events.wire.callbacks import CallbackEvent, CallbackMessage, next_before_end
from events.wire.image_puts import ImagePut, next_put


@dataclass(frozen=True, slots=True)
class Due:
    """A callback that is to be told, or an image that is to be put."""

    what: CallbackMessage | ImagePut
    job: Job
    """As it is now."""
    delivery: Delivery
    not_after: datetime | None = None
    """When it is given up, if that is known."""

    @property
    def about(self) -> str | None:
        """Its name in the events of the delivery; None is the end."""
        return self.what.about

    @property
    def retry_at(self) -> datetime | None:
        """Not before then, if it was tried."""
        if self.about is None:
            return self.delivery.retry_at
        before = self.delivery.before_end
        return before.retry_at if before and before.about == self.about else None

    def no_later(self, until: datetime) -> datetime:
        """That time, or when it is given up, if that is before."""
        return until if self.not_after is None else min(until, self.not_after)


@dataclass(frozen=True, slots=True)
class NothingLeft:
    """There is no callback to make, and no image left to be put."""

    job: Job
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class WhatIsDue:
    """`most_images`: of so many images a caller is told before the end. The others: how long after
    the end of a job what comes before it, and then its images, may wait. `since`: from when on
    images can be put, since when whoever asks is there.
    """

    most_images: int
    before_end_s: float
    puts_s: float
    since: datetime | None = None

    def of(
        self, events: Sequence[Event], job: Job, delivery: Delivery, *, now: datetime
    ) -> Due | NothingLeft | None:
        """`events`: those of the job. None: it is to happen yet."""
        not_after = self._after_end(job, self.before_end_s)
        if not_after is None or now < not_after:
            message = next_before_end(events, delivery, most_images=self.most_images)
            if message is not None:
                return Due(message, job, delivery, not_after)
        if job.end is None:
            return None
        if put := next_put(job, delivery):
            not_after = self._after_end(job, self.puts_s)
            if not_after is not None and self.since is not None:
                not_after = max(not_after, self.since + timedelta(seconds=self.puts_s))
            return Due(put, job, delivery, not_after)
        if job.submitted.callback_url is None:
            return NothingLeft(job, delivery)
        return Due(CallbackMessage(CallbackEvent.COMPLETED, job), job, delivery)

    @staticmethod
    def _after_end(job: Job, seconds: float) -> datetime | None:
        return None if job.ended_at is None else job.ended_at + timedelta(seconds=seconds)
