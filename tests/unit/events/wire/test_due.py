"""What a delivery does next, of callbacks and of images that are put."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from events.delivery import Delivery, about_put
from events.job import fold
from events.types import Cancelled, Completed, EventData, Started
from events.wire.due import Due, NothingLeft, WhatIsDue
from tests.support.events import START, history_of, image, submitted

WHAT = WhatIsDue(most_images=32, before_end_s=60, puts_s=600)
PUTS = ("at 0", "at 1", "at 2")
STARTED = Started(attempt=1, actor="a")
ALL = frozenset({"started", "put-0", "put-1"})


def due(
    *events: EventData, over: frozenset[str] = frozenset(), now: datetime = START
) -> Due | NothingLeft | None:
    history = history_of(*events)
    job = fold(history)
    assert job is not None
    return WHAT.of(history, job, Delivery(over=over), now=now)


def name(*events: EventData, over: Sequence[str] = (), after_s: float = 0) -> str | None:
    found = due(*events, over=frozenset(over), now=START + timedelta(seconds=after_s))
    assert isinstance(found, Due)
    return found.about


def test_images_are_put_in_order_between_what_is_told_before_the_end_and_the_end() -> None:
    asked = submitted(callback_url="u", callback_events=("started",), image_puts=PUTS)
    events = (asked, STARTED, image(1), image(0), Completed(images=2))
    assert name(*events) == "started"
    assert name(*events, over=["started"]) == "put-0"
    assert name(*events, over=["started", "put-0"]) == "put-1"
    assert name(*events, over=ALL) is None
    assert name(*events, after_s=100) == "put-0"  # nobody is told of the start any more


def test_nothing_is_put_while_the_job_runs() -> None:
    assert due(submitted(image_puts=PUTS), STARTED, image(0)) is None


def test_an_image_that_is_not_there_or_has_no_address_is_not_put() -> None:
    asked = submitted(image_puts=PUTS[:1], images=2)
    events = (asked, STARTED, image(1), Cancelled())
    assert isinstance(due(*events), NothingLeft)


def test_a_put_is_given_up_some_time_after_the_end() -> None:
    events = (submitted(image_puts=PUTS), STARTED, image(0), Completed(images=1))
    found = due(*events)
    assert isinstance(found, Due)
    ended_at = START + timedelta(seconds=3)
    assert found.not_after == ended_at + timedelta(seconds=600)
    assert found.no_later(found.not_after + timedelta(seconds=1)) == found.not_after
    assert found.no_later(START) == START


def test_its_time_begins_when_somebody_can_put_it() -> None:
    events = history_of(submitted(image_puts=PUTS), STARTED, image(0), Completed(images=1))
    job, since = fold(events), START + timedelta(hours=1)
    assert job is not None
    found = replace(WHAT, since=since).of(events, job, Delivery(), now=since)
    assert isinstance(found, Due)
    assert found.not_after == since + timedelta(seconds=600)


@pytest.mark.parametrize("index", [0, 7])
def test_its_name_is_of_no_other(index: int) -> None:
    assert about_put(index) == f"put-{index}"
