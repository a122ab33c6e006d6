"""The state of a callback's delivery, folded from its own events; commands, and what they add.

Pure, as for jobs (`events.job`, `events.decisions`): no clock, no id, no chance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from events.delivery_policy import Delivered, Exhausted, RetryAt, SendResult, Step, next_step
from events.job import is_readable, unreadable
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    DeliveryEvent,
    Event,
    RedeliveryRequested,
    Submitted,
)


def is_wanted(submitted: Submitted) -> bool:
    """Whether a job has a delivery: somebody is called back, or its images are put somewhere."""
    return submitted.callback_url is not None or bool(submitted.image_puts)


def about_put(index: int) -> str:
    """The name of an image that is put somewhere, among what is done before the end is told."""
    return f"put-{index}"


@dataclass(frozen=True, slots=True)
class TriesBeforeEnd:
    """Tries to tell of something before the end of the job, which are not over."""

    about: str
    tries: int
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the delivery events of one job say so far. It is that of the job's end.

    What its caller is told of before that comes one after the other, then images are put where the
    caller said, and then the end; see `events.wire.callbacks` and `events.wire.image_puts`.
    """

    version: int = 0
    position: int = 0
    tries: int = 0
    """Tries since the delivery was last asked for."""
    retry_at: datetime | None = None
    withheld_at: datetime | None = None
    """When a breaker first kept it from its receiver since it was last asked for."""
    delivered: bool = False
    exhausted: bool = False
    redeliveries: int = 0
    """How often it was asked for once more."""
    over: frozenset[str] = frozenset()
    """What was told before the end or put, or given up."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why what was given up of that failed the last time."""
    before_end: TriesBeforeEnd | None = None
    is_at_end: bool = False
    """The end was told, or tried to: nothing before it is told any more."""

    @property
    def ended(self) -> bool:
        return self.delivered or self.exhausted

    def tries_to_tell(self, about: str) -> int:
        """How often it was tried to tell of this, before the end."""
        before = self.before_end
        return before.tries if before is not None and before.about == about else 0

    @property
    def was_tried(self) -> bool:
        """Whether it can be asked for once more. Where no try was made, it is due already."""
        return self.ended or self.tries > 0


def fold_delivery(events: Iterable[Event], delivery: Delivery | None = None) -> Delivery:
    """Raises JobOfLaterVersion, JobDamaged at an event that cannot be read; see `events.job`."""
    delivery = delivery or Delivery()
    for event in events:
        if not is_readable(event) and event.position > delivery.position:
            raise unreadable(event)
        if event.version > delivery.version:
            delivery = _next(delivery, event)
    return delivery


def _next(delivery: Delivery, event: Event) -> Delivery:
    delivery = replace(delivery, version=event.version, position=event.position)
    match event.data:
        case CallbackAttempted(about=str()) as attempted:
            return _tried_before_end(delivery, attempted)
        case CallbackAttempted() | CallbackDelivered() | CallbackExhausted() | CallbackWithheld():
            return _at_end(replace(delivery, is_at_end=True), event)
        case RedeliveryRequested():
            return Delivery(
                version=delivery.version,
                position=delivery.position,
                redeliveries=delivery.redeliveries + 1,
                over=delivery.over,
                failures=delivery.failures,
                is_at_end=True,
            )
        case _:
            return delivery


def _tried_before_end(delivery: Delivery, attempted: CallbackAttempted) -> Delivery:
    about = attempted.about
    assert about is not None
    if attempted.is_last:
        result = SendResult(attempted.latency_s, status=attempted.status, error=attempted.error)
        failed = {} if result.is_taken else {about: str(result)}
        return replace(
            delivery,
            over=delivery.over | {about},
            failures={**delivery.failures, **failed},
            before_end=None,
        )
    tries = delivery.tries_to_tell(about) + 1
    return replace(delivery, before_end=TriesBeforeEnd(about, tries, attempted.retry_at))


def _at_end(delivery: Delivery, event: Event) -> Delivery:
    match event.data:
        case CallbackAttempted(retry_at=retry_at):
            return replace(delivery, tries=delivery.tries + 1, retry_at=retry_at)
        case CallbackDelivered():
            return replace(delivery, delivered=True, retry_at=None)
        case CallbackExhausted():
            return replace(delivery, exhausted=True, retry_at=None)
        case CallbackWithheld():
            return replace(delivery, withheld_at=delivery.withheld_at or event.time)
        case _:
            return delivery


@dataclass(frozen=True, slots=True)
class RecordTry:
    """One try was made. `spread` lengthens or shortens the pause that may follow it."""

    result: SendResult
    delays_s: Sequence[float]
    now: datetime
    spread: float = 1.0

    def step(self, tries: int) -> Step:
        return next_step(
            self.result, tries=tries, delays_s=self.delays_s, now=self.now, spread=self.spread
        )


@dataclass(frozen=True, slots=True)
class RecordTryBeforeEnd:
    """One try was made to tell of something before the end."""

    about: str
    tried: RecordTry


@dataclass(frozen=True, slots=True)
class GiveUpBeforeEnd:
    """The service cannot tell of this; what follows it is told."""

    about: str
    message: str


@dataclass(frozen=True, slots=True)
class EndAfterTry:
    """End the delivery if the try that was recorded last was its last.

    A command of its own: after a conflict the try must be counted once, and the end follow it.
    """

    tried: RecordTry


@dataclass(frozen=True, slots=True)
class Withhold:
    """A breaker keeps the delivery from its receiver, at most for `longest_s` in all."""

    now: datetime
    longest_s: float


@dataclass(frozen=True, slots=True)
class GiveUpDelivery:
    """The service cannot make the callback."""

    message: str


@dataclass(frozen=True, slots=True)
class EndWithoutCallback:
    """Nobody is called back, and nothing is left to be put."""


@dataclass(frozen=True, slots=True)
class RequestRedelivery:
    """A caller asks for the delivery once more, with all its tries."""


_BeforeEnd = RecordTryBeforeEnd | GiveUpBeforeEnd
DeliveryCommand = (
    _BeforeEnd
    | RecordTry
    | EndAfterTry
    | Withhold
    | GiveUpDelivery
    | EndWithoutCallback
    | RequestRedelivery
)


def decide_delivery(command: DeliveryCommand, delivery: Delivery) -> tuple[DeliveryEvent, ...]:
    """The events that `command` adds to `delivery`; none where it changes nothing."""
    if isinstance(command, RequestRedelivery):
        return (RedeliveryRequested(),) if delivery.was_tried else ()
    if delivery.ended:
        return ()
    if isinstance(command, _BeforeEnd):
        is_over = delivery.is_at_end or command.about in delivery.over
        return () if is_over else (_before_end(command, delivery),)
    match command:
        case RecordTry():
            return (tried(command, attempt=delivery.tries + 1),)
        case EndAfterTry(tried=made):
            # No try: somebody asked for the delivery once more after this one was recorded.
            return _end(made.step(delivery.tries), delivery.tries) if delivery.tries else ()
        case Withhold():
            return _withhold(command, delivery)
        case GiveUpDelivery(message=message):
            return (CallbackExhausted(attempts=delivery.tries, message=message),)
        case EndWithoutCallback():
            return (CallbackDelivered(attempt=0),)


def _before_end(command: _BeforeEnd, delivery: Delivery) -> CallbackAttempted:
    attempt = delivery.tries_to_tell(command.about) + 1
    match command:
        case RecordTryBeforeEnd(about=about, tried=made):
            event = tried(made, attempt=attempt)
            is_last: Literal[True] | None = True if event.retry_at is None else None
            return event.model_copy(update={"about": about, "is_last": is_last})
        case GiveUpBeforeEnd(about=about, message=message):
            return CallbackAttempted(
                attempt=attempt, latency_s=0, error=message, about=about, is_last=True
            )


def tried(command: RecordTry, *, attempt: int) -> CallbackAttempted:
    """The event of try number `attempt`, from 1."""
    step = command.step(attempt)
    return CallbackAttempted(
        attempt=attempt,
        status=command.result.status,
        latency_s=round(command.result.latency_s, 6),
        error=command.result.error,
        retry_at=step.at if isinstance(step, RetryAt) else None,
    )


def _end(step: Step, tries: int) -> tuple[DeliveryEvent, ...]:
    match step:
        case Delivered():
            return (CallbackDelivered(attempt=tries),)
        case Exhausted(message=message):
            return (CallbackExhausted(attempts=tries, message=message),)
        case RetryAt():
            return ()


def _withhold(command: Withhold, delivery: Delivery) -> tuple[DeliveryEvent, ...]:
    if delivery.withheld_at is None:
        return (CallbackWithheld(),)
    if command.now < delivery.withheld_at + timedelta(seconds=command.longest_s):
        return ()
    message = (
        f"Given up after {delivery.tries} tries: the receiver was left alone, for it failed "
        f"time after time, and {command.longest_s:g} s were over."
    )
    return (CallbackExhausted(attempts=delivery.tries, message=message),)
