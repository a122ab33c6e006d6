"""A job's story, told from its events."""

from __future__ import annotations

from datetime import timedelta

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
from serve_app.operations.story import Step, story
from tests.support.events import START, history_of, image, submitted


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
    assert steps == [
        (
            "alice, key k1",
            "submitted a diffusion job to default, lane 3, within 60 s, in the place of r",
            None,
        ),
        ("a", "began attempt 1", None),
        ("a", "attempt 1 failed (bystander): No memory.", False),
        ("b", "began attempt 2, with the engine for itself", None),
        ("b", "stored image 0 of attempt 2: 512 × 768, 8,589,934,592 bytes", None),
        ("b", "attempt 2 failed: No memory.", True),
        ("c", "began attempt 3", None),
        ("c", "completed with 1 images", None),
    ]


def test_an_attempt_that_ended_without_a_word_shows_at_the_next() -> None:
    steps = told(submitted(), Started(attempt=1, actor="a"), Started(attempt=2, actor="b"))
    who, what, charged = steps[-1]
    assert (who, what) == ("b", "began attempt 2; the one before ended without a word")
    assert charged is False


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
        ((*begun, CancelRequested()), "a caller", "asked to cancel"),
        ((*begun, Cancelled()), "a", "cancelled: The job was cancelled."),
        ((submitted(), Cancelled()), "a caller", "cancelled: The job was cancelled."),
        ((*begun, erased), "a caller", "erased: a diffusion job of alice on default"),
        (
            (submitted(), DispatchFailed(failure=2, message="Gone.")),
            "dispatcher",
            "could not be dispatched, time 2: Gone.",
        ),
    ):
        assert told(*events)[-1] == (who, what, None)


def test_what_cannot_be_read_is_a_step_and_hides_no_other() -> None:
    later, broken = Unknown(original_type="darkroom.job.moved.v1"), Broken(why="x")
    steps = told(submitted(), later, Completed(images=1), broken)
    assert [step[:2] for step in steps[1:]] == [
        ("a later version", "what this version cannot read: darkroom.job.moved.v1"),
        ("the service", "completed with 1 images"),
        ("the service", "a message that is no event"),
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
    steps: list[Step] = story(events, deliveries)
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    assert steps[0].what.endswith("within 3600 s, with a callback")
    assert [(step.who, step.what) for step in steps if ".callback." in step.type] == [
        ("callbacks", "try 1 took 0.250 s: answer 503, again at 08:30:00"),
        ("callbacks", "try 2 took 9.000 s: It timed out."),
        ("callbacks", "kept back: the receiver is left alone for a while"),
        ("callbacks", "given up after 2 tries: Given up."),
        ("a caller", "asked for the delivery once more"),
        ("callbacks", "delivered with try 1"),
    ]
    assert steps[-1].at - steps[0].at == timedelta(seconds=5)


def test_images_that_are_put_are_told_of_without_their_addresses() -> None:
    asked = submitted(image_puts=("sealed", "too"))
    put = CallbackAttempted(attempt=1, latency_s=0.25, status=200, about="put-0", is_last=True)
    steps = story(history_of(asked, Cancelled()), history_of(put, CallbackDelivered(attempt=0)))
    assert [step.what for step in steps if step.who == "callbacks"] == [
        "try 1 (put-0) took 0.250 s: answer 200",
        "put its images, as far as that could be done",
    ]
    assert "with addresses for 2 images" in steps[0].what
    assert "sealed" not in repr(steps)


def test_nothing_that_was_asked_for_is_told() -> None:
    asked = submitted(request={"prompt": "a secret"}, callback_url="https://secret.example/")
    assert "secret" not in repr(story(history_of(asked, Cancelled()), []))
