from datetime import UTC, datetime, timedelta

import pytest

from events.delivery_policy import (
    LONGEST_RETRY_AFTER_S,
    Delivered,
    Exhausted,
    RetryAt,
    SendResult,
    Step,
    longest_delivery_s,
    next_step,
)
from settings.callbacks import CallbackSettings

NOW = datetime(2026, 1, 31, tzinfo=UTC)
DELAYS_S = CallbackSettings().delays_s


def after(result: SendResult, *, tries: int = 1, spread: float = 1.0) -> Step:
    return next_step(result, tries=tries, delays_s=DELAYS_S, now=NOW, spread=spread)


def answered(status: int, retry_after_s: float | None = None) -> SendResult:
    return SendResult(0.1, status=status, retry_after_s=retry_after_s)


def in_s(seconds: float) -> RetryAt:
    return RetryAt(NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_taken_however_late(status: int) -> None:
    assert after(answered(status), tries=1) == Delivered()
    assert after(answered(status), tries=99) == Delivered()


@pytest.mark.parametrize(
    "result",
    [*map(answered, [408, 425, 429, 500, 502, 503, 504, 599]), SendResult(0.1, error="reset")],
)
def test_what_passes_by_itself_is_tried_as_often_as_the_settings_say(result: SendResult) -> None:
    steps = [after(result, tries=tries) for tries in range(1, 11)]
    assert steps[:9] == [in_s(delay) for delay in DELAYS_S[1:]]
    assert isinstance(steps[9], Exhausted)


def test_ten_tries_are_spread_over_about_a_day() -> None:
    assert len(DELAYS_S) == 10
    assert 22 * 3600 < sum(DELAYS_S) < 24 * 3600


@pytest.mark.parametrize("status", [101, 300, 302, 307, 400, 401, 403, 404, 422, 451])
def test_a_firm_answer_stops_after_three_tries(status: int) -> None:
    result = answered(status)
    assert after(result, tries=1) == in_s(5)
    assert after(result, tries=2) == in_s(30)
    assert after(result, tries=3) == Exhausted(
        f"Given up after 3 tries; the last one: the receiver answered {status}."
    )


def test_410_stops_at_once() -> None:
    assert after(answered(410)) == Exhausted("Stopped at try 1: the receiver answered 410.")


def test_an_address_that_is_not_allowed_stops_at_once_with_the_reason() -> None:
    refused = SendResult(0.0, error="10.0.0.1 is not a public address", refused=True)
    assert after(refused) == Exhausted("Stopped at try 1: 10.0.0.1 is not a public address.")


@pytest.mark.parametrize("spread", [0.8, 1.0, 1.2])
def test_the_delay_is_spread(spread: float) -> None:
    assert after(answered(500), tries=3, spread=spread) == in_s(120 * spread)


def test_retry_after_lengthens_the_delay_within_bounds() -> None:
    assert after(answered(429, retry_after_s=60)) == in_s(60)
    assert after(answered(503, retry_after_s=0)) == in_s(5)
    assert after(answered(503, retry_after_s=10**9)) == in_s(LONGEST_RETRY_AFTER_S)
    assert after(answered(503, retry_after_s=10**9), tries=9) == in_s(DELAYS_S[9])


def test_settings_with_one_delay_allow_one_try() -> None:
    step = next_step(answered(500), tries=1, delays_s=(0.0,), now=NOW, spread=1)
    assert isinstance(step, Exhausted)


def test_the_longest_delivery_covers_every_pause_and_what_a_breaker_may_withhold() -> None:
    longest_s = longest_delivery_s(delays_s=(0, 7200, 60), jitter=0.5, withheld_s=1000)
    assert longest_s == 1.5 * (3600 + 7200 + 3600) + 1000


@pytest.mark.parametrize(
    ("result", "answered"),
    [
        (SendResult(0.1, status=200), True),
        (SendResult(0.1, status=429), True),
        (SendResult(0.1, status=404), True),
        (SendResult(0.1, status=500), False),
        (SendResult(0.1, error="reset"), False),
        (SendResult(0.1, error="not public", refused=True), None),
    ],
)
def test_a_receiver_works_if_it_says_anything_but_5xx(
    result: SendResult, answered: bool | None
) -> None:
    assert result.answered is answered
