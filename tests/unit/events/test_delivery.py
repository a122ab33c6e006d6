from datetime import UTC, datetime, timedelta

from events.delivery import fold_delivery
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    Event,
    EventData,
    RedeliveryRequested,
)

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
TRIED = CallbackAttempted(attempt=1, status=500, latency_s=0.1, retry_at=BEGAN)


def history(*events: EventData) -> list[Event]:
    return [
        Event(
            id=str(version),
            job_id="job",
            version=version,
            time=BEGAN + timedelta(seconds=version),
            data=data,
            position=10 * version,
        )
        for version, data in enumerate(events, 1)
    ]


def test_tries_are_counted_and_the_last_says_when_to_come_again() -> None:
    delivery = fold_delivery(history(TRIED, TRIED))
    assert (delivery.tries, delivery.retry_at, delivery.ended) == (2, BEGAN, False)
    assert (delivery.version, delivery.position) == (2, 20)


def test_what_is_withheld_is_no_try_and_its_first_time_stands() -> None:
    delivery = fold_delivery(history(CallbackWithheld(), TRIED, CallbackWithheld()))
    assert delivery.tries == 1
    assert delivery.withheld_at == BEGAN + timedelta(seconds=1)


def test_an_end_stands_until_it_is_asked_for_again() -> None:
    for end in (CallbackDelivered(attempt=1), CallbackExhausted(attempts=1, message="no")):
        ended = history(CallbackWithheld(), TRIED, end)
        assert fold_delivery(ended).ended
        anew = fold_delivery(history(CallbackWithheld(), TRIED, end, RedeliveryRequested()))
        assert (anew.ended, anew.tries, anew.retry_at, anew.withheld_at) == (False, 0, None, None)
        assert (anew.version, anew.position) == (4, 40)


def test_folding_twice_changes_nothing() -> None:
    events = history(TRIED, RedeliveryRequested(), TRIED)
    assert fold_delivery(events, fold_delivery(events)) == fold_delivery(events)
