"""What follows a try to deliver a callback. Pure.

A receiver is tried again for as long as its answer may change: never after 410, three times for
what a deployment may put right (other 4xx, redirects), and as often as the policy says for what
passes by itself (time-outs, 408, 425, 429, 5xx).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

LONGEST_RETRY_AFTER_S = 3600.0
"""What a receiver may ask for beyond our own delay."""

_GONE = 410
_PASSING = frozenset({408, 425, 429})
_TRIES_OF_A_FIRM_ANSWER = 3


@dataclass(frozen=True, slots=True)
class SendResult:
    """What came of one try: the `status` of the answer, or the `error` in its place."""

    latency_s: float
    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None
    refused: bool = False
    """The address is not allowed; nothing was dialled."""
    stalled: bool = False
    """This process stood still meanwhile: no try, for the receiver may have answered."""

    @property
    def is_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def may_pass(self) -> bool:
        return self.status is None or self.status >= 500 or self.status in _PASSING

    @property
    def answered(self) -> bool | None:
        """Whether the receiver works, whatever it said of this callback; None: it was not asked."""
        if self.refused or self.stalled:
            return None
        return self.status is not None and self.status < 500

    def __str__(self) -> str:
        return self.error or f"the receiver answered {self.status}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver took it."""


@dataclass(frozen=True, slots=True)
class RetryAt:
    at: datetime


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Never tried again, unless somebody asks for it."""

    message: str


Step = Delivered | RetryAt | Exhausted


def next_step(
    sent: SendResult, *, tries: int, delays_s: Sequence[float], now: datetime, spread: float
) -> Step:
    """What follows the try number `tries`, from 1.

    `delays_s` holds one delay per try; the first try's, 0, was the queue's. `spread` is the factor
    by which this delay is lengthened or shortened, so that what failed together is not tried
    together.
    """
    if sent.is_taken:
        return Delivered()
    if sent.refused or sent.status == _GONE:
        return Exhausted(f"Stopped at try {tries}: {sent}.")
    most = len(delays_s) if sent.may_pass else min(len(delays_s), _TRIES_OF_A_FIRM_ANSWER)
    if tries >= most:
        return Exhausted(f"Given up after {tries} tries; the last one: {sent}.")
    delay_s = delays_s[tries] * spread
    if sent.retry_after_s is not None:
        delay_s = max(delay_s, min(sent.retry_after_s, LONGEST_RETRY_AFTER_S))
    return RetryAt(now + timedelta(seconds=delay_s))


def longest_delivery_s(*, delays_s: Sequence[float], jitter: float, withheld_s: float) -> float:
    """A delivery has ended within this time, if the service runs: every pause at its longest."""
    pauses_s = sum(max(delay_s, LONGEST_RETRY_AFTER_S) for delay_s in delays_s)
    return pauses_s * (1 + jitter) + withheld_s
