"""The history of a job in sentences, and what each store holds of it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from events.ids import new_id
from events.types import (
    AttemptFailed,
    Blame,
    Broken,
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    Cancelled,
    CancelRequested,
    Completed,
    DeadLetter,
    DispatchFailed,
    Erased,
    EventData,
    Failed,
    Flavour,
    RedeliveryRequested,
    Started,
    Unknown,
)
from operations.inspection import Inspection, inspect_job, story
from tests.support.events import START, history_of, image, submitted
from tests.support.operations.installation import Installation


def told(*events: EventData) -> list[tuple[str, str, bool | None]]:
    return [(step.who, step.what, step.charged) for step in story(history_of(*events), [])]


def test_a_job_that_was_tried_twice() -> None:
    steps = told(
        submitted(retry_of="r", deadline_s=60, images=0),
        Started(attempt=1, actor="a"),
        AttemptFailed(attempt=1, message="No memory.", blame=Blame.BYSTANDER),
        Started(attempt=2, actor="b", exclusive=True),
        image(0, attempt=2),
        AttemptFailed(attempt=2, message="No memory."),
        Started(attempt=3, actor="c"),
        Completed(images=1),
    )
    submission = "submitted a diffusion job to default, lane 3, within 60 s"
    assert steps == [
        ("alice, key k1", f"{submission}, as a new submission of the job r", None),
        ("a", "began attempt 1", None),
        ("a", "attempt 1 failed (bystander): No memory.", False),
        ("b", "began attempt 2, alone on the engine", None),
        ("b", "stored image 0 of attempt 2: 512 × 768, 8,589,934,592 bytes", None),
        ("b", "attempt 2 failed: No memory.", True),
        ("c", "began attempt 3", None),
        ("c", "completed with 1 images", None),
    ]


def test_an_attempt_that_ended_without_a_word_shows_at_the_next() -> None:
    steps = told(submitted(), Started(attempt=1, actor="a"), Started(attempt=2, actor="b"))
    what = "began attempt 2; the attempt before ended without an event"
    assert steps[-1] == ("b", what, False)


def test_ends_and_who_made_them() -> None:
    begun = (submitted(), Started(attempt=1, actor="a"))
    quarantined = Failed(message="Stop.", dead_letter=DeadLetter.QUARANTINED)
    erased = Erased(
        flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START
    )
    for events, who, what in (
        ((*begun, Failed(message="Bad.")), "a", "failed: Bad."),
        ((submitted(), Failed(message="Late.")), "the service", "failed: Late."),
        ((*begun, quarantined), "an administrator", "failed, a dead letter (quarantined): Stop."),
        ((*begun, CancelRequested()), "a caller", "requested the cancellation"),
        ((*begun, Cancelled()), "a", "cancelled: The job was cancelled."),
        ((submitted(), Cancelled()), "a caller", "cancelled: The job was cancelled."),
        ((*begun, erased), "a caller", "erased: a diffusion job of alice on default"),
        (
            (submitted(), DispatchFailed(failure=2, message="Gone.")),
            "dispatcher",
            "the job could not be dispatched (failure 2): Gone.",
        ),
    ):
        assert told(*events)[-1] == (who, what, None)


def test_what_cannot_be_read_is_a_step_and_hides_no_other() -> None:
    later, broken = Unknown(original_type="darkroom.job.moved.v1"), Broken(why="x")
    steps = told(submitted(), later, Completed(images=1), broken)
    assert [step[:2] for step in steps[1:]] == [
        ("a later version", "an event that this version cannot read: darkroom.job.moved.v1"),
        ("the service", "completed with 1 images"),
        ("the service", "a message that is not an event"),
    ]


def test_tries_of_the_callback_stand_among_the_rest_by_their_time() -> None:
    events = history_of(submitted(callback_url="https://r.example/"), Cancelled())
    deliveries = history_of(
        CallbackAttempted(attempt=1, latency_s=0.25, status=503, retry_at=START),
        CallbackAttempted(attempt=2, latency_s=9, error="It timed out."),
        CallbackWithheld(),
        CallbackExhausted(attempts=2, message="Given up."),
        RedeliveryRequested(),
        CallbackDelivered(attempt=1),
    )
    steps = story(events, deliveries)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert steps[0].what.endswith("within 3600 s, with a callback")
    assert [(step.who, step.what) for step in steps if ".callback." in step.type] == [
        ("callbacks", "attempt 1 took 0.250 s: answer 503, next attempt at 08:30:00"),
        ("callbacks", "attempt 2 took 9.000 s: It timed out."),
        ("callbacks", "withheld for a while, because the receiver keeps failing"),
        ("callbacks", "given up after 2 attempts: Given up."),
        ("a caller", "requested another delivery"),
        ("callbacks", "delivered with attempt 1"),
    ]
    assert steps[-1].at - steps[0].at == timedelta(seconds=5)


def test_images_that_are_put_are_told_of_without_their_addresses() -> None:
    asked = submitted(image_puts=("sealed", "too"))
    put = CallbackAttempted(attempt=1, latency_s=0.25, status=200, about="put-0", is_last=True)
    steps = story(history_of(asked, Cancelled()), history_of(put, CallbackDelivered(attempt=0)))
    assert [step.what for step in steps if step.who == "callbacks"] == [
        "attempt 1 (put-0) took 0.250 s: answer 200",
        "ended the presigned uploads",
    ]
    assert "with presigned URLs for 2 images" in steps[0].what
    assert "sealed" not in repr(steps)


async def inspected(
    installation: Installation, job_id: str, *, with_request: bool = False
) -> Inspection:
    found = await inspect_job(installation.stores, job_id, with_request=with_request)
    assert found is not None
    return found


async def test_where_a_job_stands_in_every_place(installation: Installation) -> None:
    job_id = installation.ids["running"]
    found = await inspected(installation, job_id)
    assert [step.who for step in found.steps] == ["alice, key k1", "a", "a"]
    key = f"{job_id}/1/0.png"
    assert found.now == {
        "state": "running",
        "attempts": 1,
        "charged_attempts": 0,
        "events": 3,
        "delivery_events": 0,
        "kept_in": ["log"],
        "row_version": 3,
        "job_queue": True,
        "callback_queue": False,
        "images": [{"index": 0, "key": key, "stored_bytes": len(job_id)}],
    }
    await installation.images.delete(key)
    found = await inspected(installation, job_id)
    assert found.now["images"] == [{"index": 0, "key": key, "stored_bytes": None}]


@pytest.mark.parametrize("state", ["waiting", "completed", "failed", "cancelled", "erased"])
async def test_the_state_of_a_job(installation: Installation, state: str) -> None:
    found = await inspected(installation, installation.ids[state])
    assert found.now["state"] == state


async def test_of_an_unknown_job_nothing_is_told(installation: Installation) -> None:
    assert await inspect_job(installation.stores, new_id(), with_request=False) is None


async def test_a_job_that_left_the_log_tells_the_same_story(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    before = await inspected(installation, job_id, with_request=True)
    key = await installation.move(job_id)
    found = await inspected(installation, job_id, with_request=True)
    assert (found.steps, found.request) == (before.steps, before.request)
    assert len(found.steps) == 7
    assert found.now == before.now | {"kept_in": [key]}
    await installation.images.put(key, b"damaged")
    found = await inspected(installation, job_id, with_request=True)
    assert found.now["kept_in"] == [f"{key} (damaged)"]
    await installation.images.delete(key)
    found = await inspected(installation, job_id, with_request=True)
    assert found.now["kept_in"] == [f"{key} (missing)"]


async def test_what_was_asked_for_is_shown_only_on_request(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    found = await inspected(installation, job_id)
    assert "red circle" not in repr(found)
    assert "receiver.example" not in repr(found)
    found = await inspected(installation, job_id, with_request=True)
    assert found.request is not None
    assert found.request["request"]["prompt"] == "a red circle"
    assert found.request["callback_url"] == "https://receiver.example/ended"
