"""What `darkroom verify` tells of the read model and of files, each time exactly that."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from events.ids import new_id
from events.store.maintenance.contents import DatabaseContents
from events.store.tables import IMAGES, JOBS
from events.types import Completed, Event
from tests.support.operations.installation import NOW, Installation

SINCE_0_1_0 = (
    "charged_attempts",
    "spared_attempts",
    "is_attempted",
    "is_exclusive",
    "is_suspect",
    "dispatch_failures",
    "log_bytes",
)
"""Members of a job that version 0.1.0 did not know."""

# The read model.


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("waiting", "owner", "bob"),
        ("waiting", "version", 7),
        ("running", "position", 1),
        ("running", "state", "{}"),
        ("running", "version", 1),
        ("completed", "status", 2),
        ("completed", "summary", None),
        ("failed", "log_bytes", 1),
        ("erased", "owner", "bob"),
    ],
)
async def test_a_row_that_is_not_what_the_events_say(
    installation: Installation, kind: str, column: str, value: object
) -> None:
    job_id = installation.ids[kind]
    await change_row(installation, job_id, **{column: value})
    assert await installation.disagreements() == [("row_differs", job_id)]


async def change_row(installation: Installation, job_id: str, **columns: object) -> None:
    change = sa.update(JOBS).where(JOBS.c.id == job_id).values(**columns)
    assert await installation.database.execute(change) == 1


@pytest.mark.parametrize("kind", ["waiting", "running", "completed", "failed", "erased"])
async def test_a_row_of_an_older_version_lacks_what_that_did_not_know(
    installation: Installation, kind: str
) -> None:
    job_id = installation.ids[kind]
    await make_older(installation, job_id)
    assert await installation.disagreements() == []
    await change_row(installation, job_id, status=2 if kind == "completed" else 1)
    assert await installation.disagreements() == [("row_differs", job_id)]


async def test_what_an_older_version_knew_is_compared(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    await make_older(installation, job_id, attempts=2)
    assert await installation.disagreements() == [("row_differs", job_id)]


async def test_a_row_of_an_older_version_may_be_archived(installation: Installation) -> None:
    for kind in ("cancelled", "completed"):
        await make_older(installation, installation.ids[kind])
        await installation.archive(installation.ids[kind])
        await change_row(installation, installation.ids[kind], settled_at=NOW)
    assert await installation.disagreements() == []


async def test_an_erased_job_may_have_been_settled_before(installation: Installation) -> None:
    """By the end of its delivery, of which nothing is left."""
    await change_row(installation, installation.ids["erased"], settled_at=NOW)
    assert await installation.disagreements() == []


async def make_older(installation: Installation, job_id: str, **changes: object) -> None:
    """As version 0.1.0 has written it."""
    row = (await DatabaseContents(installation.database).jobs([job_id]))[job_id]
    state = json.loads(row.columns["state"])
    for name in SINCE_0_1_0:
        del state["job"][name]
    state["job"]["last_failure"] = None
    for name in ("bare", "cost", "retry_of"):
        del state["job"]["submitted"][name]
    state["job"] |= changes
    columns = ("dead_letter", "summary", "log_bytes", "result_bytes", "settled_at")
    nulls = dict.fromkeys(columns)
    await change_row(installation, job_id, state=json.dumps(state), **nulls)


@pytest.mark.parametrize("kind", ["running", "completed"])
async def test_a_row_of_an_image_that_is_wrong_or_missing(
    installation: Installation, kind: str
) -> None:
    job_id = installation.ids[kind]
    mine = (IMAGES.c.job_id == job_id) & (IMAGES.c.index == 0)
    await installation.database.execute(sa.update(IMAGES).where(mine).values(size_bytes=3))
    assert await installation.disagreements() == [("row_differs", job_id)]
    await installation.database.execute(sa.delete(IMAGES).where(mine))
    assert ("row_differs", job_id) in await installation.disagreements()


async def test_a_row_without_events(installation: Installation) -> None:
    job_id = installation.ids["cancelled"]
    await installation.log.purge(job_id)
    assert await installation.disagreements() == [("row_without_events", job_id)]


@pytest.mark.parametrize("kind", ["waiting", "completed", "erased"])
async def test_events_without_a_row(installation: Installation, kind: str) -> None:
    job_id = installation.ids[kind]
    await installation.database.execute(sa.delete(JOBS).where(JOBS.c.id == job_id))
    assert await installation.disagreements() == [("events_without_row", job_id)]


async def test_a_projection_that_lags_is_no_disagreement(installation: Installation) -> None:
    """It moves before the second look; the rows of its jobs are not told either."""
    await installation.job()
    await installation.append(installation.ids["running"], Completed(images=1))
    assert await installation.disagreements() == [
        ("entry_of_ended_job", installation.ids["running"])
    ]


async def test_a_projection_that_stands_still(installation: Installation) -> None:
    await installation.job()

    async def nothing(_: float) -> None:
        pass

    assert await installation.disagreements(sleep=nothing) == [("projection_stopped", None)]


async def test_a_read_model_that_is_ahead_of_the_log(installation: Installation) -> None:
    """As after a log was restored that is older than the database."""
    at = await installation.read_model.checkpoint()
    lost = Event(new_id(), new_id(), 1, NOW, Completed(images=0), position=at + 5)
    assert await installation.read_model.apply([lost], expected=at)
    assert await installation.disagreements() == [("projection_ahead", None)]


# Files.


async def test_a_file_that_is_missing(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    await installation.images.delete(f"{job_id}/1/1.png")
    assert await installation.disagreements() == [("file_missing", job_id)]


async def test_a_file_of_another_size(installation: Installation) -> None:
    job_id = installation.ids["running"]
    await installation.put(f"{job_id}/1/0.png", b"short")
    assert await installation.disagreements() == [("file_differs", job_id)]


async def test_a_file_of_another_content_shows_by_its_digest_alone(
    installation: Installation,
) -> None:
    job_id = installation.ids["completed"]
    await installation.put(f"{job_id}/1/0.png", job_id.upper().encode())
    assert await installation.disagreements() == []
    assert await installation.disagreements(digests=True) == [("file_differs", job_id)]


async def test_the_file_of_an_upload_is_checked_too(installation: Installation) -> None:
    key = await installation.upload()
    await installation.put(key, b"AN UPLOAD")
    assert await installation.disagreements() == []
    assert await installation.disagreements(digests=True) == [("file_differs", None)]
    await installation.images.delete(key)
    assert await installation.disagreements() == [("file_missing", None)]


@pytest.mark.parametrize("kind", ["completed", "cancelled", "erased", "unknown"])
async def test_a_file_of_nothing(installation: Installation, kind: str) -> None:
    job_id = installation.ids.get(kind) or new_id()
    await installation.put(f"{job_id}/9/0.png", b"png")
    assert await installation.disagreements() == [("file_of_nothing", job_id)]


async def test_an_upload_of_nothing(installation: Installation) -> None:
    await installation.put("uploads/x.png", b"png")
    assert await installation.disagreements() == [("file_of_nothing", None)]


async def test_files_that_may_be_named_yet_or_are_not_ours_are_left_alone(
    installation: Installation,
) -> None:
    await installation.put(f"{installation.ids['running']}/1/1.png", b"png")
    await installation.put(f"{new_id()}/1/0.png", b"png", at=NOW)
    await installation.put("notes.txt", b"of an operator")
    assert await installation.disagreements() == []
