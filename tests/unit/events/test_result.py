"""The result of a job, and the reason of its failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.worker.attempt import code_of
from engine.errors import (
    CheckpointUnavailable,
    DeviceFailed,
    EngineError,
    FieldError,
    GraphInvalid,
    InputsInvalid,
    NodeFailed,
    OutOfMemory,
    ParametersInvalid,
    TooLarge,
)
from events.decisions import Start, decide
from events.result import (
    FailureCode,
    ResultResponse,
    State,
    Status,
    error_of,
    failure_code,
    is_retryable,
    result_of,
    state_of,
)
from events.types import (
    AttemptFailed,
    Blame,
    Cancelled,
    CancelRequested,
    Completed,
    DeadLetter,
    DispatchFailed,
    EventData,
    Failed,
    Flavour,
    ImageStored,
    Poster,
    Started,
)
from tests.support.events import JOB_ID, START, folded, image, submitted

STARTED = Started(attempt=1, actor="a")


def url_for(job_id: str, stored: ImageStored | Poster) -> str:
    return f"http://host/files/{job_id}/{stored.name}"


def result(*events: EventData) -> ResultResponse:
    return result_of(folded(events), url_for)


def body(*events: EventData) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(result(*events).body())
    return decoded


def test_a_job_that_was_accepted_shows_an_item_per_image_asked_for() -> None:
    assert body(submitted(images=2)) == {
        "request_id": JOB_ID,
        "status": 0,
        "endpoint": "default",
        "state": "queued",
        "results": [{"status": 0}, {"status": 0}],
        "created_at": "2026-03-01T08:30:00Z",
    }


def test_a_workflow_shows_items_as_they_are_stored() -> None:
    asked = submitted(flavour=Flavour.WORKFLOW, images=0)
    assert body(asked, STARTED)["results"] == []
    statuses = [item["status"] for item in body(asked, STARTED, image(0), image(1))["results"]]
    assert statuses == [1, 1]


def test_a_completed_job() -> None:
    answer = body(submitted(images=1), STARTED, image(0), Completed(images=1))
    assert answer == {
        "request_id": JOB_ID,
        "status": 1,
        "endpoint": "default",
        "state": "completed",
        "results": [
            {
                "status": 1,
                "url": f"http://host/files/{JOB_ID}/0.png",
                "seed": 7,
                "kind": "image",
                "media_type": "image/png",
                "size_bytes": image(0).size_bytes,
                "width": 512,
                "height": 768,
            }
        ],
        "created_at": "2026-03-01T08:30:00Z",
        "started_at": "2026-03-01T08:30:01Z",
        "ended_at": "2026-03-01T08:30:03Z",
    }


def test_a_video_has_a_duration_and_a_poster_and_a_text_has_its_content() -> None:
    poster = Poster(key="job/1/0-poster.jpg", size_bytes=3, digest="sha256:00")
    video = image(0, media_type="video/mp4", duration_s=2.5, poster=poster)
    text = image(1, media_type="text/plain", width=0, height=0, text="")
    shown = body(submitted(images=2), STARTED, video, text)["results"]
    assert [each["kind"] for each in shown] == ["video", "text"]
    assert shown[0]["duration_s"] == 2.5
    assert shown[0]["poster_url"] == f"http://host/files/{JOB_ID}/0-poster.jpg"
    assert shown[1]["text"] == ""
    assert not {"duration_s", "poster_url", "width"} & shown[1].keys()


@pytest.mark.parametrize("end", [Failed(message="Out of memory."), Cancelled()])
def test_at_a_failed_end_items_without_an_image_have_failed(end: Failed | Cancelled) -> None:
    answer = result(submitted(images=2), STARTED, image(1), end)
    assert answer.status is Status.FAILED
    assert answer.message == end.message
    assert [item.status for item in answer.results] == [Status.FAILED, Status.COMPLETED]
    said = body(submitted(images=1), Failed(message="Timed out.", code="timeout"))
    assert (said["state"], said["error"]) == ("failed", {"code": "timeout", "retryable": True})
    assert "started_at" not in said


def test_what_was_done_otherwise_than_asked_is_said() -> None:
    completed = Completed(images=1, notes=("vae_tiled",))
    assert body(submitted(), STARTED, image(0), completed)["notes"] == ["vae_tiled"]
    without = submitted(notes=("lora_left_out: ink",))
    assert body(without)["notes"] == ["lora_left_out: ink"]
    both = body(without, STARTED, image(0), completed)["notes"]
    assert both == ["lora_left_out: ink", "vae_tiled"]
    assert "notes" not in body(submitted(), STARTED, image(0), Completed(images=1))


later_events = st.sampled_from(
    [
        STARTED,
        image(0),
        image(2),
        AttemptFailed(attempt=1, message="Lost."),
        CancelRequested(),
        Completed(images=1),
        Failed(message="No."),
        Cancelled(),
    ]
)


def shows_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(shows_null, value.values()))
    return any(map(shows_null, value)) if isinstance(value, list) else value is None


@given(st.integers(0, 3), st.lists(later_events, max_size=6))
def test_every_answer_keeps_the_documents_rules(images: int, events: list[EventData]) -> None:
    answer = body(submitted(images=images), *events)
    assert ("message" in answer) == ("error" in answer) == (answer["status"] == 2)
    assert ("ended_at" in answer) == (answer["status"] != 0)
    assert len(answer["results"]) >= images
    for item in answer["results"]:
        assert ("url" in item) == (item["status"] == 1)
        assert item["status"] != 0 or answer["status"] == 0
    assert not shows_null(answer)


# Why a job failed, for programs.

NO_ROOM = AttemptFailed(attempt=1, message="No room.", blame=Blame.SUSPECT, code="out_of_memory")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GraphInvalid("no_prompt", "No prompt."), "invalid_input"),
        (ParametersInvalid(()), "invalid_input"),
        (ParametersInvalid((FieldError("value_not_in_list", "gone", "x"),)), "model_unavailable"),
        (
            GraphInvalid("x", "x", node_errors={"3": {"errors": [{"type": "value_not_in_list"}]}}),
            "model_unavailable",
        ),
        (TooLarge("Too many."), "invalid_input"),
        (CheckpointUnavailable("No such model."), "model_unavailable"),
        (OutOfMemory(), "out_of_memory"),
        (NodeFailed("3", "KSampler", "no"), "node_failed"),
        (InputsInvalid("3", "KSampler", "no"), "invalid_input"),
        (
            GraphInvalid(
                "x", "x", node_errors={"3": {"errors": [{"type": "model_not_supported"}]}}
            ),
            "model_unavailable",
        ),
        (DeviceFailed("lost", True), "engine_failed"),
        (EngineError("?"), "engine_failed"),
    ],
)
def test_each_error_of_the_engine_has_a_code(error: EngineError, code: str) -> None:
    assert code_of(error) == code


def test_the_last_attempt_says_why_a_job_was_given_up() -> None:
    def last(*events: EventData) -> str | None:
        start = Start("b", max_attempts=1, max_attempts_total=1, now=START)
        [end] = decide(start, folded([submitted(), STARTED, *events]))
        assert isinstance(end, Failed)
        return end.code

    assert last(NO_ROOM) == "out_of_memory"
    assert last(NO_ROOM, DispatchFailed(failure=1, message="It died.")) == "engine_failed"
    assert last() == "engine_failed"  # it broke off without a word


@pytest.mark.parametrize(
    ("end", "code", "retryable"),
    [
        (Cancelled(), "cancelled", False),
        (Failed(message="Late.", code="timeout"), "timeout", True),
        (Failed(message="It died.", code="engine_failed"), "engine_failed", True),
        (Failed(message="No room.", code="out_of_memory"), "out_of_memory", False),
        (Failed(message="Bad."), "unknown", False),
        (Failed(message="Stop.", dead_letter=DeadLetter.QUARANTINED), "quarantined", False),
        (Failed(message="?", code="of_a_later_version"), "of_a_later_version", False),
    ],
)
def test_a_caller_is_told_the_code_and_whether_to_try_again(
    end: Failed | Cancelled, code: str, retryable: bool
) -> None:
    assert (failure_code(end), is_retryable(code)) == (code, retryable)
    error = error_of(end)
    assert error is not None
    assert error.model_dump() == {"code": code, "retryable": retryable}
    assert error_of(Completed(images=1)) is error_of(None) is None


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), State.QUEUED),
        ((STARTED,), State.RUNNING),
        ((STARTED, CancelRequested()), State.RUNNING),
        ((STARTED, NO_ROOM), State.QUEUED),
        ((STARTED, Completed(images=0)), State.COMPLETED),
        ((Failed(message="Late."),), State.FAILED),
        ((Cancelled(),), State.CANCELLED),
    ],
)
def test_a_job_tells_whether_it_waits_or_runs(events: tuple[EventData, ...], state: State) -> None:
    assert state_of(folded([submitted(), *events])) is state


def test_every_code_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    assert [code for code in FailureCode if f"| `{code}` |" not in text] == []
