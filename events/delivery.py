"""Folds the state of a delivery, and decides which events a command adds to it.

The functions are pure, as in `events.job` and `events.decisions`. They use no clock and no random
values, and make no ids.

The answer determines the number of attempts. The status 410 ends the delivery at once. Redirects
and other 4xx statuses allow three attempts, because a new deployment of the receiver may correct
them. Time-outs and the statuses 408, 425, 429 and 5xx are usually temporary, so they allow as many
attempts as `delays_s` has entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

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
from settings.constant import constant

JITTER = constant("CALLBACK_JITTER", 0.2)
"""The largest random change of a pause, as a fraction of the pause."""
WITHHELD_S = constant("CALLBACK_WITHHELD_S", 172_800.0)
"""The longest time in seconds for which a circuit breaker withholds a delivery. Then the delivery
is given up.
"""
LONGEST_RETRY_AFTER_S = 3600.0
"""The longest pause that a receiver may request with Retry-After."""

_GONE = 410
_TEMPORARY_STATUSES = frozenset({408, 425, 429})
_TRIES_OF_A_PERMANENT_ERROR = 3


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of one attempt: the `status` of the answer, or the `error` without an answer."""

    latency_s: float
    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None
    refused: bool = False
    """Whether nothing was sent, because the address, the URL or the image cannot be used. No
    further attempt follows.
    """
    stalled: bool = False
    """Whether this process was stalled during the attempt, which then does not count, because the
    receiver may have answered in time.
    """

    @property
    def is_accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_transient(self) -> bool:
        return self.status is None or self.status >= 500 or self.status in _TEMPORARY_STATUSES

    @property
    def answered(self) -> bool | None:
        """Whether the receiver works, even if it refused this callback; None if unknown."""
        if self.refused or self.stalled:
            return None
        return self.status is not None and self.status < 500

    def __str__(self) -> str:
        return self.error or f"the receiver answered {self.status}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver accepted the callback."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    at: datetime


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No further attempt is made, unless a caller requests another delivery."""

    message: str


AttemptVerdict = Delivered | RetryAt | Exhausted


def judge_attempt(
    sent: SendResult, *, attempts: int, delays_s: Sequence[float], now: datetime, spread: float
) -> AttemptVerdict:
    """Decide what follows attempt number `attempts`, counted from 1.

    `delays_s` has the delay in seconds before each attempt. `spread` is a random factor of the next
    delay, so that deliveries that failed together are not repeated together.
    """
    if sent.is_accepted:
        return Delivered()
    if sent.refused or sent.status == _GONE:
        return Exhausted(f"Stopped at attempt {attempts}: {sent}.")
    most = len(delays_s) if sent.is_transient else min(len(delays_s), _TRIES_OF_A_PERMANENT_ERROR)
    if attempts >= most:
        return Exhausted(f"Given up after {attempts} attempts. The last attempt: {sent}.")
    delay_s = delays_s[attempts] * spread
    if sent.retry_after_s is not None:
        delay_s = max(delay_s, min(sent.retry_after_s, LONGEST_RETRY_AFTER_S))
    return RetryAt(now + timedelta(seconds=delay_s))


def longest_delivery_s(
    *, delays_s: Sequence[float], jitter: float = JITTER, withheld_s: float = WITHHELD_S
) -> float:
    """Return the longest time in seconds that a delivery takes while the service runs."""
    pauses_s = sum(max(delay_s, LONGEST_RETRY_AFTER_S) for delay_s in delays_s)
    return pauses_s * (1 + jitter) + withheld_s


def has_delivery(submitted: Submitted) -> bool:
    """Return whether a job has a callback URL, or presigned uploads for its images."""
    return submitted.callback_url is not None or bool(submitted.image_puts)


def about_put(index: int) -> str:
    """Return the name of an image's presigned upload among the steps before the end."""
    return f"put-{index}"


@dataclass(frozen=True, slots=True)
class AttemptsBeforeEnd:
    """The attempts of the current step before the end."""

    about: str
    attempts: int
    retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The state of a delivery after its events so far.

    Steps before the end are callbacks and presigned uploads (`events.delivery_steps`). Fields
    without another description are about the callback of the end.
    """

    version: int = 0
    position: int = 0
    attempts: int = 0
    """The number of attempts since the delivery was last requested."""
    retry_at: datetime | None = None
    withheld_at: datetime | None = None
    """When a breaker first withheld the delivery, since it was last requested."""
    delivered: bool = False
    exhausted: bool = False
    redeliveries: int = 0
    """The number of times that another delivery was requested."""
    finished_steps: frozenset[str] = frozenset()
    """The names of the steps before the end that succeeded or were given up."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """The last error of each step that was given up, by name."""
    before_end: AttemptsBeforeEnd | None = None
    end_was_attempted: bool = False
    """Whether the callback of the end was attempted, so that steps before the end are skipped."""

    @property
    def ended(self) -> bool:
        return self.delivered or self.exhausted

    def attempts_of(self, about: str) -> int:
        """Return the number of attempts of this step before the end."""
        before = self.before_end
        return before.attempts if before is not None and before.about == about else 0

    @property
    def was_tried(self) -> bool:
        """Whether the callback of the end was attempted or has ended. Only then may a caller
        request another delivery.
        """
        return self.ended or self.attempts > 0


def fold_delivery(events: Iterable[Event], delivery: Delivery | None = None) -> Delivery:
    """Return the state after `events`, starting from `delivery`.

    Raises JobOfLaterVersion or JobDamaged at an event that cannot be read.
    """
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
            return _at_end(replace(delivery, end_was_attempted=True), event)
        case RedeliveryRequested():
            return Delivery(
                version=delivery.version,
                position=delivery.position,
                redeliveries=delivery.redeliveries + 1,
                finished_steps=delivery.finished_steps,
                failures=delivery.failures,
                end_was_attempted=True,
            )
        case _:
            return delivery


def _tried_before_end(delivery: Delivery, attempted: CallbackAttempted) -> Delivery:
    about = attempted.about
    assert about is not None
    if attempted.is_last:
        result = SendResult(attempted.latency_s, status=attempted.status, error=attempted.error)
        failed = {} if result.is_accepted else {about: str(result)}
        return replace(
            delivery,
            finished_steps=delivery.finished_steps | {about},
            failures={**delivery.failures, **failed},
            before_end=None,
        )
    attempts = delivery.attempts_of(about) + 1
    return replace(delivery, before_end=AttemptsBeforeEnd(about, attempts, attempted.retry_at))


def _at_end(delivery: Delivery, event: Event) -> Delivery:
    match event.data:
        case CallbackAttempted(retry_at=retry_at):
            return replace(delivery, attempts=delivery.attempts + 1, retry_at=retry_at)
        case CallbackDelivered():
            return replace(delivery, delivered=True, retry_at=None)
        case CallbackExhausted():
            return replace(delivery, exhausted=True, retry_at=None)
        case CallbackWithheld():
            return replace(delivery, withheld_at=delivery.withheld_at or event.time)
        case _:
            return delivery


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Record an attempt. `spread` is a factor of the pause that may follow."""

    result: SendResult
    delays_s: Sequence[float]
    now: datetime
    spread: float = 1.0

    def verdict(self, attempts: int) -> AttemptVerdict:
        return judge_attempt(
            self.result, attempts=attempts, delays_s=self.delays_s, now=self.now, spread=self.spread
        )


@dataclass(frozen=True, slots=True)
class RecordAttemptBeforeEnd:
    """Record an attempt of a step before the end."""

    about: str
    tried: RecordAttempt


@dataclass(frozen=True, slots=True)
class GiveUpBeforeEnd:
    """Give up a step before the end. Later steps still follow."""

    about: str
    message: str


@dataclass(frozen=True, slots=True)
class EndAfterAttempt:
    """End the delivery if the last recorded attempt was the final attempt.

    `RecordAttempt` does not do this, because a conflict between two events of one command could
    count the attempt twice or lose the end.
    """

    tried: RecordAttempt


@dataclass(frozen=True, slots=True)
class Withhold:
    """Record that a breaker withholds the delivery, or give it up after `longest_s` seconds."""

    now: datetime
    longest_s: float


@dataclass(frozen=True, slots=True)
class GiveUpDelivery:
    """Give up the callback of the end, because the service cannot make it."""

    message: str


@dataclass(frozen=True, slots=True)
class EndWithoutCallback:
    """End a delivery that has no callback of the end and no uploads left."""


@dataclass(frozen=True, slots=True)
class RequestRedelivery:
    """Request the callback of the end again, with the full number of attempts."""


_BeforeEnd = RecordAttemptBeforeEnd | GiveUpBeforeEnd
DeliveryCommand = (
    _BeforeEnd
    | RecordAttempt
    | EndAfterAttempt
    | Withhold
    | GiveUpDelivery
    | EndWithoutCallback
    | RequestRedelivery
)


def decide_delivery(command: DeliveryCommand, delivery: Delivery) -> tuple[DeliveryEvent, ...]:
    """Return the events that `command` adds to `delivery`; none if it changes nothing."""
    if isinstance(command, RequestRedelivery):
        return (RedeliveryRequested(),) if delivery.was_tried else ()
    if delivery.ended:
        return ()
    if isinstance(command, _BeforeEnd):
        is_over = delivery.end_was_attempted or command.about in delivery.finished_steps
        return () if is_over else (_before_end(command, delivery),)
    match command:
        case RecordAttempt():
            return (tried(command, attempt=delivery.attempts + 1),)
        case EndAfterAttempt(tried=made):
            # If `attempts` is 0, another delivery was requested after this attempt was recorded.
            attempts = delivery.attempts
            return _end(made.verdict(attempts), attempts) if attempts else ()
        case Withhold():
            return _withhold(command, delivery)
        case GiveUpDelivery(message=message):
            return (CallbackExhausted(attempts=delivery.attempts, message=message),)
        case EndWithoutCallback():
            return (CallbackDelivered(attempt=0),)


def _before_end(command: _BeforeEnd, delivery: Delivery) -> CallbackAttempted:
    attempt = delivery.attempts_of(command.about) + 1
    match command:
        case RecordAttemptBeforeEnd(about=about, tried=made):
            event = tried(made, attempt=attempt)
            is_last: Literal[True] | None = True if event.retry_at is None else None
            return event.model_copy(update={"about": about, "is_last": is_last})
        case GiveUpBeforeEnd(about=about, message=message):
            return CallbackAttempted(
                attempt=attempt, latency_s=0, error=message, about=about, is_last=True
            )


def tried(command: RecordAttempt, *, attempt: int) -> CallbackAttempted:
    """Return the event of attempt number `attempt`, counted from 1."""
    verdict = command.verdict(attempt)
    return CallbackAttempted(
        attempt=attempt,
        status=command.result.status,
        latency_s=round(command.result.latency_s, 6),
        error=command.result.error,
        retry_at=verdict.at if isinstance(verdict, RetryAt) else None,
    )


def _end(verdict: AttemptVerdict, attempts: int) -> tuple[DeliveryEvent, ...]:
    match verdict:
        case Delivered():
            return (CallbackDelivered(attempt=attempts),)
        case Exhausted(message=message):
            return (CallbackExhausted(attempts=attempts, message=message),)
        case RetryAt():
            return ()


def _withhold(command: Withhold, delivery: Delivery) -> tuple[DeliveryEvent, ...]:
    if delivery.withheld_at is None:
        return (CallbackWithheld(),)
    if command.now < delivery.withheld_at + timedelta(seconds=command.longest_s):
        return ()
    message = (
        f"Given up after {delivery.attempts} attempts: the receiver kept failing, so the callback "
        f"was withheld, and {command.longest_s:g} s have passed."
    )
    return (CallbackExhausted(attempts=delivery.attempts, message=message),)
