"""The state of a delivery, what is appended to it, and when it is tried again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from events.delivery import (
    LONGEST_RETRY_AFTER_S,
    AttemptVerdict,
    Delivered,
    Delivery,
    DeliveryCommand,
    EndAfterAttempt,
    EndWithoutCallback,
    Exhausted,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordAttempt,
    RecordAttemptBeforeEnd,
    RequestRedelivery,
    RetryAt,
    SendResult,
    Withhold,
    decide_delivery,
    fold_delivery,
    has_delivery,
    judge_attempt,
    longest_delivery_s,
)
from events.errors import JobDamaged, JobOfLaterVersion
from events.types import (
    Broken,
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    EventData,
    RedeliveryRequested,
    Unknown,
)
from settings.callbacks import CallbackSettings
from tests.support.events import START, history_of, submitted

TRIED = CallbackAttempted(attempt=1, status=500, latency_s=0.1, retry_at=START)
ENDS: list[EventData] = [
    CallbackDelivered(attempt=1),
    CallbackExhausted(attempts=1, message="no"),
]


def delivery_of(*events: EventData) -> Delivery:
    return fold_delivery(history_of(*events))


def test_tries_are_counted_and_the_last_says_when_to_come_again() -> None:
    delivery = delivery_of(TRIED, TRIED)
    assert (delivery.attempts, delivery.retry_at, delivery.ended) == (2, START, False)
    assert (delivery.version, delivery.position) == (2, 20)


def test_what_is_withheld_is_no_try_and_its_first_time_stands() -> None:
    delivery = delivery_of(CallbackWithheld(), TRIED, CallbackWithheld())
    assert delivery.attempts == 1
    assert delivery.withheld_at == START


@pytest.mark.parametrize("end", ENDS)
def test_an_end_stands_until_it_is_asked_for_again(end: EventData) -> None:
    events = (CallbackWithheld(), TRIED, end)
    assert delivery_of(*events).ended
    anew = delivery_of(*events, RedeliveryRequested())
    assert (anew.ended, anew.attempts) == (False, 0)
    assert anew.retry_at is anew.withheld_at is None
    assert (anew.version, anew.position) == (4, 40)


def test_an_event_that_cannot_be_read_stops_the_delivery() -> None:
    unknown = Unknown(original_type="darkroom.callback.of_a_later_version.v9")
    with pytest.raises(JobOfLaterVersion):
        delivery_of(TRIED, unknown)
    with pytest.raises(JobDamaged):
        delivery_of(TRIED, Broken(why="cut off"))


# Decisions.

DELAYS_S = (0.0, 5.0, 30.0)
FAILED = SendResult(0.25, status=500)
GONE = SendResult(0.25, status=410)
TAKEN = SendResult(0.25, status=204)


BEFORE = CallbackAttempted(attempt=1, status=500, latency_s=0.1, retry_at=START, about="started")


def before_end(result: SendResult, about: str = "started") -> RecordAttemptBeforeEnd:
    return RecordAttemptBeforeEnd(about, RecordAttempt(result, delays_s=(0, 5), now=START))


def made(result: SendResult) -> RecordAttempt:
    return RecordAttempt(result, DELAYS_S, now=START, spread=1.0)


@pytest.mark.parametrize(
    ("result", "pause_s"),
    [(FAILED, 30), (TAKEN, None), (GONE, None)],
    ids=["failed", "taken", "gone"],
)
def test_a_try_is_recorded_with_its_number_and_the_time_of_the_next_one(
    result: SendResult, pause_s: float | None
) -> None:
    [event] = decide_delivery(made(result), delivery_of(TRIED))
    retry_at = None if pause_s is None else START + timedelta(seconds=pause_s)
    assert event == CallbackAttempted(
        attempt=2, status=result.status, latency_s=0.25, retry_at=retry_at
    )


STOPPED = "Stopped at attempt 1: the receiver answered 410."
GIVEN_UP = "Given up after 3 attempts. The last attempt: the receiver answered 500."


@pytest.mark.parametrize(
    ("result", "tries", "end"),
    [
        (TAKEN, 2, CallbackDelivered(attempt=2)),
        (FAILED, 1, None),
        (FAILED, 3, CallbackExhausted(attempts=3, message=GIVEN_UP)),
        (GONE, 1, CallbackExhausted(attempts=1, message=STOPPED)),
    ],
    ids=["taken", "tries left", "the last", "gone"],
)
def test_a_delivery_ends_with_the_try_that_was_taken_or_is_the_last(
    result: SendResult, tries: int, end: EventData | None
) -> None:
    added = decide_delivery(EndAfterAttempt(made(result)), delivery_of(*[TRIED] * tries))
    assert added == (() if end is None else (end,))


def test_what_is_withheld_is_recorded_once_and_given_up_after_its_time() -> None:
    withheld = delivery_of(TRIED, CallbackWithheld())
    since = START + timedelta(seconds=1)
    assert decide_delivery(Withhold(START, 60), delivery_of(TRIED)) == (CallbackWithheld(),)
    assert decide_delivery(Withhold(since + timedelta(seconds=59), 60), withheld) == ()
    [end] = decide_delivery(Withhold(since + timedelta(seconds=60), 60), withheld)
    assert isinstance(end, CallbackExhausted)
    assert end.attempts == 1


@pytest.mark.parametrize(
    "command",
    [
        made(TAKEN),
        EndAfterAttempt(made(TAKEN)),
        Withhold(START, 0),
        GiveUpDelivery("no"),
        before_end(TAKEN),
    ],
)
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_added_behind_an_end(command: DeliveryCommand, end: EventData) -> None:
    assert decide_delivery(command, delivery_of(TRIED, end)) == ()


def test_a_redelivery_is_requested_only_where_a_try_was_made() -> None:
    assert decide_delivery(RequestRedelivery(), delivery_of()) == ()
    for events in ([TRIED], [TRIED, CallbackDelivered(attempt=1)]):
        [requested] = decide_delivery(RequestRedelivery(), delivery_of(*events))
        assert requested == RedeliveryRequested()
    anew = delivery_of(BEFORE, TRIED, RedeliveryRequested())
    assert (anew.end_was_attempted, anew.attempts) == (True, 0)
    for nothing_new in (anew, delivery_of(BEFORE)):
        assert decide_delivery(RequestRedelivery(), nothing_new) == ()


@pytest.mark.parametrize("result", [FAILED, TAKEN, GONE])
def test_a_redelivery_that_was_requested_during_a_try_is_not_ended_by_it(
    result: SendResult,
) -> None:
    anew = delivery_of(TRIED, RedeliveryRequested())
    assert decide_delivery(EndAfterAttempt(made(result)), anew) == ()


# What is told before the end.
def test_tries_before_the_end_are_not_tries_of_the_end() -> None:
    delivery = delivery_of(BEFORE)
    assert (delivery.attempts, delivery.retry_at, delivery.was_tried) == (0, None, False)
    assert (delivery.attempts_of("started"), delivery.attempts_of("image-0")) == (1, 0)
    assert delivery.before_end is not None
    assert delivery.before_end.retry_at == START
    assert not delivery.end_was_attempted


def test_what_was_taken_or_given_up_is_over() -> None:
    for events, result in (([], TAKEN), ([BEFORE], FAILED)):
        delivery = delivery_of(*events)
        [last] = decide_delivery(before_end(result), delivery)
        assert isinstance(last, CallbackAttempted)
        assert (last.about, last.is_last, last.attempt) == ("started", True, len(events) + 1)
        ended = delivery_of(*events, last)
        assert (ended.finished_steps, ended.before_end, ended.ended) == ({"started"}, None, False)
        assert decide_delivery(before_end(TAKEN), ended) == ()


def test_what_cannot_be_told_is_over_and_the_end_is_not() -> None:
    [given_up] = decide_delivery(GiveUpBeforeEnd("started", "no"), fold_delivery([]))
    delivery = delivery_of(given_up)
    assert delivery.finished_steps == {"started"}
    assert not delivery.ended


def test_what_was_given_up_says_why_and_a_redelivery_forgets_nothing_of_it() -> None:
    tried = CallbackAttempted(attempt=1, status=403, latency_s=0.1, about="put-0", is_last=True)
    lost = tried.model_copy(update={"status": None, "error": "no answer", "about": "put-1"})
    there = tried.model_copy(update={"status": 201, "about": "put-2"})
    again = tried.model_copy(update={"is_last": None, "about": "put-3", "retry_at": START})
    history = history_of(tried, lost, there, again, CallbackDelivered(attempt=1))
    told = fold_delivery(history)
    assert told.finished_steps == {"put-0", "put-1", "put-2"}
    assert told.failures == {"put-0": "the receiver answered 403", "put-1": "no answer"}
    anew = fold_delivery([*history, *history_of(*[RedeliveryRequested()] * 6)[5:]])
    assert (anew.finished_steps, anew.failures) == (told.finished_steps, told.failures)


def test_a_delivery_of_no_callback_ends_once() -> None:
    [end] = decide_delivery(EndWithoutCallback(), Delivery())
    assert end == CallbackDelivered(attempt=0)
    assert delivery_of(end).ended
    assert decide_delivery(EndWithoutCallback(), delivery_of(end)) == ()


def test_a_job_has_a_delivery_where_there_is_something_to_deliver() -> None:
    assert not has_delivery(submitted())
    assert not has_delivery(submitted(image_puts=()))
    assert has_delivery(submitted(image_puts=("x",)))
    assert has_delivery(submitted(callback_url="u"))


# When it is tried again.

NOW = datetime(2026, 1, 31, tzinfo=UTC)
POLICY_S = CallbackSettings().delays_s


def after(result: SendResult, *, tries: int = 1, spread: float = 1.0) -> AttemptVerdict:
    return judge_attempt(result, attempts=tries, delays_s=POLICY_S, now=NOW, spread=spread)


def answered(status: int, retry_after_s: float | None = None) -> SendResult:
    return SendResult(0.1, status=status, retry_after_s=retry_after_s)


def in_s(seconds: float) -> RetryAt:
    return RetryAt(NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_taken_however_late(status: int) -> None:
    assert after(answered(status), tries=1) == after(answered(status), tries=99) == Delivered()


@pytest.mark.parametrize(
    "result",
    [*map(answered, [408, 425, 429, 500, 502, 503, 504, 599]), SendResult(0.1, error="reset")],
)
def test_what_passes_by_itself_is_tried_as_often_as_the_settings_say(result: SendResult) -> None:
    steps = [after(result, tries=tries) for tries in range(1, 11)]
    assert steps[:9] == [in_s(delay) for delay in POLICY_S[1:]]
    assert isinstance(steps[9], Exhausted)


@pytest.mark.parametrize("status", [101, 300, 302, 307, 400, 401, 403, 404, 422, 451])
def test_a_firm_answer_stops_after_three_tries(status: int) -> None:
    result = answered(status)
    assert after(result, tries=1) == in_s(5)
    assert after(result, tries=2) == in_s(30)
    assert after(result, tries=3) == Exhausted(
        f"Given up after 3 attempts. The last attempt: the receiver answered {status}."
    )


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (answered(410), "the receiver answered 410"),
        (SendResult(0.0, error="10.0.0.1 is private", refused=True), "10.0.0.1 is private"),
    ],
)
def test_what_will_never_pass_stops_at_once(result: SendResult, why: str) -> None:
    assert after(result) == Exhausted(f"Stopped at attempt 1: {why}.")


@pytest.mark.parametrize("spread", [0.8, 1.0, 1.2])
def test_the_delay_is_spread(spread: float) -> None:
    assert after(answered(500), tries=3, spread=spread) == in_s(120 * spread)


def test_retry_after_lengthens_the_delay_within_bounds() -> None:
    assert after(answered(429, retry_after_s=60)) == in_s(60)
    assert after(answered(503, retry_after_s=0)) == in_s(5)
    assert after(answered(503, retry_after_s=10**9)) == in_s(LONGEST_RETRY_AFTER_S)
    assert after(answered(503, retry_after_s=10**9), tries=9) == in_s(POLICY_S[9])


def test_the_longest_delivery_covers_every_pause_and_what_a_breaker_may_withhold() -> None:
    longest_s = longest_delivery_s(delays_s=(0, 7200, 60), jitter=0.5, withheld_s=1000)
    assert longest_s == 1.5 * (3600 + 7200 + 3600) + 1000


def test_a_receiver_works_if_it_says_anything_but_5xx() -> None:
    assert [answered(status).answered for status in (200, 404, 429)] == [True] * 3
    assert answered(500).answered is False
    assert SendResult(0.1, error="reset").answered is False
    assert SendResult(0.1, error="not public", refused=True).answered is None
