from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.result import ResultResponse, Status, result_of
from events.types import (
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    EventData,
    Failed,
    Flavour,
    ImageStored,
    Started,
)
from tests.support.events import JOB_ID, folded, image, submitted

STARTED = Started(attempt=1, actor="a")


def url_for(job_id: str, stored: ImageStored) -> str:
    return f"http://host/files/{job_id}/{stored.index}.png"


def result(*events: EventData) -> ResultResponse:
    return result_of(folded(events), url_for)


def body(*events: EventData) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(result(*events).body())
    return decoded


def test_a_job_that_was_accepted_shows_an_item_per_image_asked_for() -> None:
    assert body(submitted(images=2)) == {
        "request_id": JOB_ID,
        "status": 0,
        "state": "queued",
        "results": [{"status": 0}, {"status": 0}],
        "created_at": "2026-03-01T08:30:00Z",
    }


def test_a_workflow_shows_items_as_they_are_stored() -> None:
    asked = submitted(flavour=Flavour.WORKFLOW, images=0)
    assert body(asked, STARTED)["results"] == []
    statuses = [item["status"] for item in body(asked, STARTED, image(0), image(1))["results"]]
    assert statuses == [1, 1]


def test_an_image_shows_while_the_rest_still_runs() -> None:
    answer = body(submitted(images=3), STARTED, image(1))
    assert answer["status"] == 0
    assert answer["results"] == [
        {"status": 0},
        {
            "status": 1,
            "url": f"http://host/files/{JOB_ID}/1.png",
            "seed": 8,
            "width": 512,
            "height": 768,
        },
        {"status": 0},
    ]


def test_a_completed_job() -> None:
    answer = body(submitted(images=1), STARTED, image(0), Completed(images=1))
    assert answer == {
        "request_id": JOB_ID,
        "status": 1,
        "state": "completed",
        "results": [
            {
                "status": 1,
                "url": f"http://host/files/{JOB_ID}/0.png",
                "seed": 7,
                "width": 512,
                "height": 768,
            }
        ],
        "created_at": "2026-03-01T08:30:00Z",
        "started_at": "2026-03-01T08:30:01Z",
        "ended_at": "2026-03-01T08:30:03Z",
    }


@pytest.mark.parametrize("end", [Failed(message="Out of memory."), Cancelled()])
def test_at_a_failed_end_items_without_an_image_have_failed(end: Failed | Cancelled) -> None:
    answer = result(submitted(images=2), STARTED, image(1), end)
    assert answer.status is Status.FAILED
    assert answer.message == end.message
    assert [item.status for item in answer.results] == [Status.FAILED, Status.COMPLETED]


def test_what_was_done_otherwise_than_asked_is_said() -> None:
    assert "notes" not in body(submitted(images=1), STARTED, image(0), Completed(images=1))
    assert body(submitted(images=1), STARTED, image(0), Completed(images=1, notes=("vae_tiled",)))[
        "notes"
    ] == ["vae_tiled"]


def test_a_job_that_failed_before_any_image() -> None:
    answer = body(submitted(images=1), Failed(message="Timed out.", code="timeout"))
    assert (answer["status"], answer["message"]) == (2, "Timed out.")
    assert answer["results"] == [{"status": 2}]
    assert (answer["state"], answer["error"]) == (
        "failed",
        {"code": "timeout", "retryable": True},
    )
    assert "started_at" not in answer


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
    job = folded([submitted(images=images), *events])
    answer = json.loads(result_of(job, url_for).body())
    assert ("message" in answer) == ("error" in answer) == (answer["status"] == 2)
    assert ("ended_at" in answer) == (answer["status"] != 0)
    assert len(answer["results"]) >= images
    for item in answer["results"]:
        assert ("url" in item) == (item["status"] == 1)
        assert item["status"] != 0 or answer["status"] == 0
    assert not shows_null(answer)
