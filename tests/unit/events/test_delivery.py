from datetime import timedelta
from typing import Any

import pytest

from events.delivery import (
    Delivery,
    DeliveryCommand,
    EndAfterTry,
    EndWithoutCallback,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordTry,
    RecordTryBeforeEnd,
    RequestRedelivery,
    Withhold,
    decide_delivery,
    fold_delivery,
    is_wanted,
)
from events.delivery_policy import SendResult
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
from tests.support.events import START, history_of, submitted

TRIED = CallbackAttempted(attempt=1, status=500, latency_s=0.1, retry_at=START)


def test_tries_are_counted_and_the_last_says_when_to_come_again() -> None:
    delivery = fold_delivery(history_of(TRIED, TRIED))
    assert (delivery.tries, delivery.retry_at, delivery.ended) == (2, START, False)
    assert (delivery.version, delivery.position) == (2, 20)


def test_what_is_withheld_is_no_try_and_its_first_time_stands() -> None:
    delivery = fold_delivery(history_of(CallbackWithheld(), TRIED, CallbackWithheld()))
    assert delivery.tries == 1
    assert delivery.withheld_at == START


def test_an_end_stands_until_it_is_asked_for_again() -> None:
    for end in (CallbackDelivered(attempt=1), CallbackExhausted(attempts=1, message="no")):
        ended = history_of(CallbackWithheld(), TRIED, end)
        assert fold_delivery(ended).ended
        anew = fold_delivery(history_of(CallbackWithheld(), TRIED, end, RedeliveryRequested()))
        assert (anew.ended, anew.tries, anew.retry_at, anew.withheld_at) == (False, 0, None, None)
        assert (anew.version, anew.position) == (4, 40)


def test_an_event_that_cannot_be_read_stops_the_delivery() -> None:
    unknown = Unknown(original_type="darkroom.callback.of_a_later_version.v9")
    with pytest.raises(JobOfLaterVersion):
        fold_delivery(history_of(TRIED, unknown))
    with pytest.raises(JobDamaged):
        fold_delivery(history_of(TRIED, Broken(why="cut off")))


def test_folding_twice_changes_nothing() -> None:
    events = history_of(TRIED, RedeliveryRequested(), TRIED)
    assert fold_delivery(events, fold_delivery(events)) == fold_delivery(events)


# Decisions.

DELAYS_S = (0.0, 5.0, 30.0)
FAILED = SendResult(0.25, status=500)
GONE = SendResult(0.25, status=410)
TAKEN = SendResult(0.25, status=204)


def made(result: SendResult) -> RecordTry:
    return RecordTry(result, DELAYS_S, now=START, spread=1.0)


def delivery_of(*events: EventData) -> Delivery:
    return fold_delivery(history_of(*events))


def test_a_try_is_recorded_with_its_number_and_the_time_of_the_next_one() -> None:
    [event] = decide_delivery(made(FAILED), delivery_of(TRIED))
    retry_at = START + timedelta(seconds=30)
    assert event == CallbackAttempted(attempt=2, status=500, latency_s=0.25, retry_at=retry_at)


def test_the_pause_behind_a_try_is_lengthened_by_its_spread() -> None:
    spread = RecordTry(FAILED, DELAYS_S, now=START, spread=1.5)
    [event] = decide_delivery(spread, delivery_of())
    assert isinstance(event, CallbackAttempted)
    assert event.retry_at == START + timedelta(seconds=7.5)


@pytest.mark.parametrize("result", [TAKEN, GONE])
def test_a_last_try_names_no_next_one(result: SendResult) -> None:
    [event] = decide_delivery(made(result), delivery_of())
    assert isinstance(event, CallbackAttempted)
    assert event.retry_at is None


def test_a_delivery_ends_with_the_try_that_was_taken() -> None:
    events = decide_delivery(EndAfterTry(made(TAKEN)), delivery_of(TRIED, TRIED))
    assert events == (CallbackDelivered(attempt=2),)


def test_a_delivery_ends_with_its_last_try() -> None:
    [end] = decide_delivery(EndAfterTry(made(FAILED)), delivery_of(TRIED, TRIED, TRIED))
    assert isinstance(end, CallbackExhausted)
    assert end.attempts == 3


def test_an_address_that_was_refused_is_tried_once() -> None:
    refused = SendResult(0.0, error="10.0.0.1 is not a public address", refused=True)
    [end] = decide_delivery(EndAfterTry(made(refused)), delivery_of(TRIED))
    message = "Stopped at try 1: 10.0.0.1 is not a public address."
    assert end == CallbackExhausted(attempts=1, message=message)


def test_a_delivery_with_tries_left_goes_on() -> None:
    assert decide_delivery(EndAfterTry(made(FAILED)), delivery_of(TRIED)) == ()


def test_what_is_withheld_is_recorded_once_and_given_up_after_its_time() -> None:
    withheld = delivery_of(TRIED, CallbackWithheld())
    since = START + timedelta(seconds=1)
    assert decide_delivery(Withhold(START, 60), delivery_of(TRIED)) == (CallbackWithheld(),)
    assert decide_delivery(Withhold(since + timedelta(seconds=59), 60), withheld) == ()
    [end] = decide_delivery(Withhold(since + timedelta(seconds=60), 60), withheld)
    assert isinstance(end, CallbackExhausted)
    assert end.attempts == 1


@pytest.mark.parametrize("command", [made(TAKEN), EndAfterTry(made(TAKEN)), Withhold(START, 0)])
@pytest.mark.parametrize(
    "end", [CallbackDelivered(attempt=1), CallbackExhausted(attempts=1, message="no")]
)
def test_nothing_is_added_behind_an_end(command: DeliveryCommand, end: EventData) -> None:
    assert decide_delivery(command, delivery_of(TRIED, end)) == ()


def test_a_redelivery_is_requested_only_where_a_try_was_made() -> None:
    assert decide_delivery(RequestRedelivery(), delivery_of()) == ()
    for events in ([TRIED], [TRIED, CallbackDelivered(attempt=1)]):
        assert decide_delivery(RequestRedelivery(), delivery_of(*events)) == (
            RedeliveryRequested(),
        )
    anew = delivery_of(TRIED, RedeliveryRequested())
    assert decide_delivery(RequestRedelivery(), anew) == ()


@pytest.mark.parametrize("result", [FAILED, TAKEN, GONE])
def test_a_redelivery_that_was_requested_during_a_try_is_not_ended_by_it(
    result: SendResult,
) -> None:
    anew = delivery_of(TRIED, RedeliveryRequested())
    assert decide_delivery(EndAfterTry(made(result)), anew) == ()


def test_a_callback_that_cannot_be_made_is_given_up_once() -> None:
    [end] = decide_delivery(GiveUpDelivery("no"), fold_delivery(history_of(TRIED)))
    assert end == CallbackExhausted(attempts=1, message="no")
    assert decide_delivery(GiveUpDelivery("no"), fold_delivery(history_of(TRIED, end))) == ()


# What is told before the end.

TOLD = SendResult(latency_s=0.1, status=200)
REFUSED = SendResult(latency_s=0.1, status=500)
BEFORE = CallbackAttempted(attempt=1, status=500, latency_s=0.1, retry_at=START, about="started")


def before_end(result: SendResult, about: str = "started") -> RecordTryBeforeEnd:
    return RecordTryBeforeEnd(about, RecordTry(result, delays_s=(0, 5), now=START))


def test_tries_before_the_end_are_not_tries_of_the_end() -> None:
    delivery = fold_delivery(history_of(BEFORE))
    assert (delivery.tries, delivery.retry_at, delivery.was_tried) == (0, None, False)
    assert (delivery.tries_to_tell("started"), delivery.tries_to_tell("image-0")) == (1, 0)
    assert delivery.before_end is not None
    assert delivery.before_end.retry_at == START
    assert not delivery.is_at_end


def test_what_was_taken_or_given_up_is_over() -> None:
    for events, result in (([], TOLD), ([BEFORE], REFUSED)):
        delivery = fold_delivery(history_of(*events))
        [last] = decide_delivery(before_end(result), delivery)
        assert isinstance(last, CallbackAttempted)
        assert (last.about, last.is_last, last.attempt) == ("started", True, len(events) + 1)
        ended = fold_delivery(history_of(*events, last))
        assert (ended.over, ended.before_end, ended.ended) == ({"started"}, None, False)
        assert decide_delivery(before_end(TOLD), ended) == ()


def test_what_cannot_be_told_is_over_and_the_end_is_not() -> None:
    [given_up] = decide_delivery(GiveUpBeforeEnd("started", "no"), fold_delivery([]))
    delivery = fold_delivery(history_of(given_up))
    assert delivery.over == {"started"}
    assert not delivery.ended


def test_a_late_try_before_the_end_adds_nothing() -> None:
    delivery = fold_delivery(history_of(TRIED))
    assert decide_delivery(before_end(TOLD), delivery) == ()


def test_a_redelivery_is_one_of_the_end_alone() -> None:
    delivery = fold_delivery(history_of(BEFORE, TRIED, RedeliveryRequested()))
    assert delivery.is_at_end
    assert delivery.tries == 0
    assert decide_delivery(RequestRedelivery(), fold_delivery(history_of(BEFORE))) == ()


def test_what_was_given_up_says_why_and_a_redelivery_forgets_nothing_of_it() -> None:
    tried = CallbackAttempted(attempt=1, status=403, latency_s=0.1, about="put-0", is_last=True)
    lost = tried.model_copy(update={"status": None, "error": "no answer", "about": "put-1"})
    there = tried.model_copy(update={"status": 201, "about": "put-2"})
    again = tried.model_copy(update={"is_last": None, "about": "put-3", "retry_at": START})
    history = history_of(tried, lost, there, again, CallbackDelivered(attempt=1))
    told = fold_delivery(history)
    assert told.over == {"put-0", "put-1", "put-2"}
    assert told.failures == {"put-0": "the receiver answered 403", "put-1": "no answer"}
    anew = fold_delivery([*history, *history_of(*[RedeliveryRequested()] * 6)[5:]])
    assert (anew.over, anew.failures) == (told.over, told.failures)


def test_a_delivery_of_no_callback_ends_once() -> None:
    [end] = decide_delivery(EndWithoutCallback(), Delivery())
    assert end == CallbackDelivered(attempt=0)
    assert fold_delivery(history_of(end)).ended
    assert decide_delivery(EndWithoutCallback(), fold_delivery(history_of(end))) == ()


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, False),
        ({"image_puts": ()}, False),
        ({"image_puts": ("x",)}, True),
        ({"callback_url": "u"}, True),
    ],
)
def test_a_job_has_a_delivery_where_there_is_something_to_deliver(
    asked: dict[str, Any], wanted: bool
) -> None:
    assert is_wanted(submitted(**asked)) is wanted
