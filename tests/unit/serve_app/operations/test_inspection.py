"""What an operator sees of one job."""

from __future__ import annotations

import pytest

from events.ids import new_id
from serve_app.operations.inspection import inspect_job
from tests.support.operations.installation import Installation


async def test_where_a_job_stands_in_every_place(installation: Installation) -> None:
    job_id = installation.ids["running"]
    found = await inspect_job(installation.places, job_id, with_request=False)
    assert found is not None
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
    found = await inspect_job(installation.places, job_id, with_request=False)
    assert found is not None
    assert found.now["images"] == [{"index": 0, "key": key, "stored_bytes": None}]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("waiting", "waiting"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("cancelled", "cancelled"),
        ("erased", "erased"),
    ],
)
async def test_the_state_of_a_job(installation: Installation, kind: str, state: str) -> None:
    found = await inspect_job(installation.places, installation.ids[kind], with_request=False)
    assert found is not None
    assert found.now["state"] == state


async def test_an_archived_job_tells_the_same_story(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    before = await inspect_job(installation.places, job_id, with_request=True)
    ref = await installation.archive(job_id)
    found = await inspect_job(installation.places, job_id, with_request=True)
    assert before is not None
    assert found is not None
    assert (found.steps, found.request) == (before.steps, before.request)
    assert len(found.steps) == 7
    assert found.now == before.now | {"kept_in": [ref.key]}


async def test_what_was_asked_for_is_shown_only_on_request(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    found = await inspect_job(installation.places, job_id, with_request=False)
    assert "red circle" not in repr(found)
    assert "receiver.example" not in repr(found)
    found = await inspect_job(installation.places, job_id, with_request=True)
    assert found is not None
    assert found.request is not None
    assert found.request["request"]["prompt"] == "a red circle"
    assert found.request["callback_url"] == "https://receiver.example/ended"


async def test_a_job_that_nothing_knows(installation: Installation) -> None:
    assert await inspect_job(installation.places, new_id(), with_request=False) is None
