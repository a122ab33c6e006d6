"""The next step of a delivery: callbacks before and at the end, and presigned uploads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest

from events.delivery import Delivery, fold_delivery
from events.delivery_steps import (
    CallbackEvent,
    CallbackMessage,
    DeliveryStep,
    NothingLeft,
    callback_events_of,
    next_before_end,
    next_delivery_step,
)
from events.types import (
    AttemptFailed,
    CallbackAttempted,
    CallbackExhausted,
    CallbackWithheld,
    Cancelled,
    Completed,
    Erased,
    EventData,
    Failed,
    Flavour,
    Started,
    Submitted,
)
from tests.support.events import START, folded, history_of, image, submitted

URL = "https://you.example/done"
STARTED = Started(attempt=1, actor="a")


def asked(*events: str, **changes: Any) -> Submitted:
    return submitted(callback_url=URL, callback_events=events or None, images=3, **changes)


def over(*abouts: str) -> list[EventData]:
    return [
        CallbackAttempted(attempt=1, status=200, latency_s=0.1, about=about, is_last=True)
        for about in abouts
    ]


def all_before_end(*events: EventData, most_images: int = 9) -> list[CallbackMessage]:
    """Each taken by its receiver before the next one is looked for."""
    told: list[CallbackMessage] = []
    while message := next_before_end(
        history_of(*events),
        fold_delivery(history_of(*over(*(str(each.about) for each in told)))),
        most_images=most_images,
    ):
        told.append(message)
    return told


def names(messages: list[CallbackMessage]) -> list[str | None]:
    return [each.about for each in messages]


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (("started", "image"), ["started", "image-1", "image-0"]),
        (("started",), ["started"]),
        (("image",), ["image-1", "image-0"]),
        ((), []),
        (("started", "of_a_later_version"), ["started"]),
    ],
)
def test_what_was_asked_for_is_told_in_the_order_in_which_it_happened(
    events: tuple[str, ...], told: list[str]
) -> None:
    job = (asked(*events), STARTED, image(1), image(0), Completed(images=2))
    assert names(all_before_end(*job)) == told


def test_another_attempt_tells_nothing_again() -> None:
    again = Started(attempt=2, actor="b")
    job = (asked("started", "image"), STARTED, image(0), AttemptFailed(attempt=1, message="no"))
    assert names(all_before_end(*job, again, image(0, attempt=2), image(1, attempt=2))) == [
        "started",
        "image-0",
        "image-1",
    ]


@pytest.mark.parametrize("end", [Cancelled(), Failed(message="It did not start.")])
def test_of_a_job_that_never_started_the_end_alone_is_told(end: EventData) -> None:
    assert all_before_end(asked("started", "image"), end) == []


def test_of_an_erased_job_nothing_is_told() -> None:
    erased = Erased(
        flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START
    )
    job = (asked("started", "image"), STARTED, image(0), Cancelled(), erased)
    assert all_before_end(*job) == []


def test_no_more_images_are_told_of_than_are_allowed() -> None:
    images = [image(index) for index in range(64)]
    told = names(all_before_end(asked("started", "image"), STARTED, *images, most_images=2))
    assert told == ["started", "image-0", "image-1"]
    assert all_before_end(asked("image"), STARTED, *images, most_images=0) == []


@pytest.mark.parametrize(
    "event",
    [
        CallbackAttempted(attempt=1, status=500, latency_s=0.1, retry_at=START),
        CallbackExhausted(attempts=0, message="The service could not make it."),
        CallbackWithheld(),
    ],
    ids=["tried", "given up", "withheld"],
)
def test_once_the_end_is_told_nothing_before_it_is(event: EventData) -> None:
    job = history_of(asked("started"), STARTED, Completed(images=0))
    delivery = fold_delivery(history_of(event))
    assert next_before_end(job, delivery, most_images=9) is None


def test_bodies_are_the_result_as_it_was_then() -> None:
    job = (asked("started", "image"), STARTED, image(1), image(0), Completed(images=2))
    started, first, second = [
        json.loads(each.body(lambda job_id, image: f"/{image.index}"))
        for each in all_before_end(*job)
    ]
    assert (started["event"], started["state"], started["status"]) == ("started", "running", 0)
    assert [each["status"] for each in started["results"]] == [0, 0, 0]
    assert (first["event"], first["index"]) == ("image", 1)
    assert [each.get("url") for each in first["results"]] == [None, "/1", None]
    assert second["index"] == 0
    assert [each.get("url") for each in second["results"]] == ["/0", "/1", None]


def test_the_end_says_so_where_more_was_asked_for() -> None:
    for end, state in ((Completed(images=0), "completed"), (Cancelled(), "cancelled")):
        job = folded([asked("started"), end])
        body = json.loads(CallbackMessage(CallbackEvent.COMPLETED, job).body(lambda *_: ""))
        assert (body["event"], body["state"]) == ("completed", state)


def test_who_has_no_address_is_told_nothing() -> None:
    assert callback_events_of(submitted(callback_events=("started",))) == set()
    assert callback_events_of(submitted(callback_url=URL)) == {"completed"}
    assert callback_events_of(asked("started", "image")) == {"started", "image", "completed"}


# Images that are put.

PUTS = ("at 0", "at 1", "at 2")


def due(
    *events: EventData,
    over: Iterable[str] = (),
    now: datetime = START,
    since: datetime | None = None,
) -> DeliveryStep | NothingLeft | None:
    delivery = Delivery(finished_steps=frozenset(over))
    return next_delivery_step(
        history_of(*events), folded(events), delivery, now=now, since=since, before_end_s=60
    )


def step(*events: EventData, **options: Any) -> DeliveryStep:
    found = due(*events, **options)
    assert isinstance(found, DeliveryStep)
    return found


def test_images_are_put_in_order_between_what_is_told_before_the_end_and_the_end() -> None:
    asked = submitted(callback_url="u", callback_events=("started",), image_puts=PUTS)
    events = (asked, STARTED, image(1), image(0), Completed(images=2))
    order = ["started", "put-0", "put-1", None]
    for count, about in enumerate(order):
        assert step(*events, over=order[:count]).about == about
    late = START + timedelta(seconds=100)  # the callback of the start is over
    assert step(*events, now=late).about == "put-0"


def test_an_image_that_is_not_there_or_has_no_address_is_not_put() -> None:
    asked = submitted(image_puts=PUTS[:1], images=2)
    events = (asked, STARTED, image(1), Cancelled())
    assert isinstance(due(*events), NothingLeft)


def test_a_put_is_given_up_some_time_after_the_end_or_after_somebody_can_make_it() -> None:
    events = (submitted(image_puts=PUTS), STARTED, image(0), Completed(images=1))
    found = step(*events)
    ended_at = START + timedelta(seconds=3)
    assert found.not_after == ended_at + timedelta(seconds=600)
    assert found.no_later(found.not_after + timedelta(seconds=1)) == found.not_after
    assert found.no_later(START) == START
    since = START + timedelta(hours=1)
    assert step(*events, now=since, since=since).not_after == since + timedelta(seconds=600)
