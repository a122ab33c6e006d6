"""Each test makes two stores disagree, and sees exactly that told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from events.cloud_events import decode, encode
from events.errors import DatabaseUnavailable, LogUnavailable
from events.history import read_history
from events.ids import new_id
from events.log import StoredEvent
from events.store.tables import IMAGES, JOBS
from events.types import (
    CallbackDelivered,
    Cancelled,
    Completed,
    Event,
    Failed,
    RedeliveryRequested,
    Started,
)
from operations.verification import Kind
from storage.file_names import HistoryName
from tests.support.events import LATER
from tests.support.operations.installation import NOW, Installation

Change = Callable[[Installation, str], Awaitable[Any]]
"""What makes a store of the installation disagree about a job."""


@pytest.mark.parametrize("moved", [(), ("completed", "cancelled", "erased")], ids=["none", "some"])
async def test_nothing_disagrees_where_all_is_well(
    installation: Installation, moved: tuple[str, ...]
) -> None:
    """Some jobs have left the log, or none has."""
    for kind in moved:
        await installation.move(installation.ids[kind])
    assert await installation.disagreements() == []
    assert await installation.disagreements(digests=True) == []


async def test_nothing_is_changed(installation: Installation) -> None:
    await installation.images.delete(f"{installation.ids['completed']}/1/0.png")
    before = await everything(installation)
    assert await installation.disagreements()
    assert await everything(installation) == before


async def everything(installation: Installation) -> list[object]:
    stores, ids = installation.stores, [*installation.ids.values()]
    return [
        await stores.log.read_raw(ids),
        await stores.deliveries.read_raw(ids),
        await stores.rows.jobs(ids),
        await installation.queue.job_ids(),
        await installation.callbacks.job_ids(),
        sorted(path for path in installation.folder.rglob("*")),
    ]


def row(**columns: object) -> Change:
    """The row of the job is otherwise."""

    async def change(installation: Installation, job_id: str) -> None:
        mine = sa.update(JOBS).where(JOBS.c.id == job_id).values(**columns)
        assert await installation.database.execute(mine) == 1

    return change


async def no_row(installation: Installation, job_id: str) -> None:
    await installation.database.execute(sa.delete(JOBS).where(JOBS.c.id == job_id))


def image_row(**columns: object) -> Change:
    """The row of the first image is otherwise, or is not there."""

    async def change(installation: Installation, job_id: str) -> None:
        mine = (IMAGES.c.job_id == job_id) & (IMAGES.c.index == 0)
        statement = sa.update(IMAGES).values(**columns) if columns else sa.delete(IMAGES)
        await installation.database.execute(statement.where(mine))

    return change


async def no_callback(installation: Installation, _: str) -> None:
    async with installation.callbacks.due(max_unacknowledged=9, ack_wait_s=9) as reader:
        [entry] = await reader.next(most=9, timeout_s=1)
        await entry.ack()


def messages(change: Callable[[list[StoredEvent]], Sequence[StoredEvent]], log: str) -> Change:
    """The messages of the job in this log are otherwise."""

    async def instead(installation: Installation, job_id: str) -> None:
        contents = getattr(installation, f"{log}_contents")
        contents.instead[job_id] = tuple(change(await contents.of(job_id)))

    return instead


def with_garbage(stored: list[StoredEvent]) -> list[StoredEvent]:
    return [*stored, StoredEvent(99, b"\xff")]


def without(index: int) -> Callable[[list[StoredEvent]], list[StoredEvent]]:
    return lambda stored: stored[:index] + stored[index + 1 :]


async def of_another_job(installation: Installation, job_id: str) -> None:
    other = await installation.log_contents.of(installation.ids["cancelled"])
    installation.log_contents.instead[job_id] = tuple(other)


@pytest.mark.parametrize(
    ("kind", "change", "told"),
    [
        # Events.
        ("completed", messages(with_garbage, "log"), "unreadable_event"),
        ("completed", messages(with_garbage, "delivery"), "unreadable_event"),
        ("completed", of_another_job, "unreadable_event"),
        ("completed", messages(without(0), "log"), "version_gap"),
        ("completed", messages(without(1), "log"), "version_gap"),
        ("completed", messages(without(2), "log"), "version_gap"),
        ("completed", messages(without(0), "delivery"), "version_gap"),
        ("cancelled", lambda i, job: i.append(job, Failed(message="No.")), "more_than_one_end"),
        # Queues.
        ("running", lambda i, job: i.queue.remove("default", 3, job), "open_without_entry"),
        ("failed", no_callback, "callback_lost"),
        # The read model.
        ("waiting", row(owner="bob"), "row_differs"),
        ("waiting", row(version=7), "row_differs"),
        ("running", row(position=1), "row_differs"),
        ("running", row(state="{}"), "row_differs"),
        ("running", row(version=1), "row_differs"),
        ("completed", row(status=2), "row_differs"),
        ("completed", row(summary="{}"), "row_differs"),
        ("failed", row(log_bytes=1), "row_differs"),
        ("erased", row(owner="bob"), "row_differs"),
        ("running", image_row(size_bytes=3), "row_differs"),
        ("completed", image_row(size_bytes=3), "row_differs"),
        ("running", image_row(), "row_differs"),
        ("cancelled", lambda i, job: i.log.purge(job), "row_without_events"),
        ("waiting", no_row, "events_without_row"),
        ("completed", no_row, "events_without_row"),
        ("erased", no_row, "events_without_row"),
        # Files.
        ("completed", lambda i, job: i.images.delete(f"{job}/1/1.mp4"), "file_missing"),
        ("completed", lambda i, job: i.images.delete(f"{job}/1/1-poster.jpg"), "file_missing"),
        ("running", lambda i, job: i.put(f"{job}/1/0.png", b"short"), "file_differs"),
        ("completed", lambda i, job: i.put(f"{job}/9/0.png", b"png"), "file_of_nothing"),
        ("cancelled", lambda i, job: i.put(f"{job}/9/0.png", b"png"), "file_of_nothing"),
        ("erased", lambda i, job: i.put(f"{job}/9/0.png", b"png"), "file_of_nothing"),
        # A completed job that has left the log.
        ("moved", row(history=None), "row_without_events file_of_nothing"),
        ("moved", no_row, "events_without_row"),
        ("moved", row(owner="bob"), "row_differs"),
        ("moved", row(state="{}"), "row_differs"),
        ("moved", row(log_bytes=9), "row_differs"),
        ("moved", lambda i, job: i.images.delete(f"{job}/1/0.png"), "file_missing"),
        # What may be so: events before an erasure, and one settled by the end of its delivery.
        ("erased", lambda i, job: i.log.purge(job, keep=1), ""),
        ("erased", row(settled_at=NOW), ""),
    ],
)
async def test_a_job_of_which_a_store_says_something_else(
    installation: Installation, kind: str, change: Change, told: str
) -> None:
    job_id = installation.ids["completed" if kind == "moved" else kind]
    if kind == "moved":
        await installation.move(job_id)
    await change(installation, job_id)
    assert set(await installation.disagreements()) == {(each, job_id) for each in told.split()}


async def test_a_job_that_was_never_submitted(installation: Installation) -> None:
    job_id = installation.ids["waiting"]
    [stored] = await installation.log_contents.of(job_id)
    first = decode(stored.payload, position=stored.sequence)
    begun = Event(first.id, job_id, 1, first.time, Started(attempt=1, actor="a"))
    installation.log_contents.instead[job_id] = (StoredEvent(stored.sequence, encode(begun)),)
    assert ("no_submission", job_id) in await installation.disagreements()


async def test_images_to_be_put_that_no_queue_has(installation: Installation) -> None:
    job_id = await installation.job(Cancelled(), image_puts=("sealed",))
    await installation.project()
    assert await installation.disagreements() == [("callback_lost", job_id)]
    await installation.deliver(job_id, CallbackDelivered(attempt=0))
    assert await installation.disagreements() == []


async def test_a_parked_callback_is_not_lost(installation: Installation) -> None:
    job_id = await installation.job(Cancelled(), callback_url="https://receiver.example/")
    await installation.callbacks.park(job_id, NOW + timedelta(days=400))
    await installation.project()
    assert await installation.disagreements() == []


async def test_what_belongs_to_no_job(installation: Installation) -> None:
    queued, called, delivered, pictured = (new_id() for _ in range(4))
    await installation.queue.add("default", 1, queued, deadline=LATER)
    await installation.callbacks.add(called)
    await installation.deliver(delivered, CallbackDelivered(attempt=1))
    await installation.put(f"{pictured}/9/0.png", b"png")
    await installation.put("uploads/x.png", b"png")
    assert sorted(await installation.disagreements(), key=str) == sorted(
        [
            ("entry_of_unknown_job", queued),
            ("entry_of_unknown_job", called),
            ("delivery_of_unknown_job", delivered),
            ("file_of_nothing", pictured),
            ("file_of_nothing", None),
        ],
        key=str,
    )


async def test_an_entry_of_a_job_that_ended(installation: Installation) -> None:
    job_id = installation.ids["cancelled"]
    await installation.queue.add("default", 3, job_id, deadline=LATER)
    assert await installation.disagreements() == [("entry_of_ended_job", job_id)]
    just_ended = NOW - timedelta(minutes=59, seconds=30)
    assert await installation.disagreements(now=lambda: just_ended) == []


async def test_a_file_of_other_bytes_shows_by_its_digest_alone(installation: Installation) -> None:
    job_id, upload = installation.ids["completed"], await installation.upload()
    await installation.put(f"{job_id}/1/0.png", job_id.upper().encode())
    await installation.put(upload, b"AN UPLOAD")
    assert await installation.disagreements() == []
    assert set(await installation.disagreements(digests=True)) == {
        ("file_differs", job_id),
        ("file_differs", None),
    }
    await installation.images.delete(upload)
    assert await installation.disagreements() == [("file_missing", None)]


async def test_files_to_be_named_yet_or_not_ours_are_left_alone(installation: Installation) -> None:
    await installation.put(f"{installation.ids['running']}/1/1.png", b"png")
    await installation.put(f"{new_id()}/1/0.png", b"png", at=NOW)
    await installation.put("notes.txt", b"of an operator")
    assert await installation.disagreements() == []


async def test_a_job_that_is_still_in_the_log_as_well(installation: Installation) -> None:
    """As between two steps of the historian."""
    job_id = installation.ids["completed"]
    kept = (
        await installation.log.read_raw([job_id]),
        await installation.deliveries.read_raw([job_id]),
    )
    await installation.move(job_id)
    installation.log_contents.instead |= kept[0]
    installation.delivery_contents.instead |= kept[1]
    assert await installation.disagreements() == []


def events_of_history(
    change: Callable[[tuple[StoredEvent, ...]], tuple[StoredEvent, ...]],
) -> Change:
    async def instead(installation: Installation, key: str) -> None:
        history = await read_history(installation.images, key)
        await installation.put_history(key, replace(history, events=change(history.events)))

    return instead


async def damage(installation: Installation, key: str) -> None:
    data = bytearray(await installation.images.get(key))
    data[-9] ^= 1
    await installation.images.put(key, bytes(data))


async def put_anothers(installation: Installation, key: str) -> None:
    other = await installation.move(installation.ids["cancelled"])
    await installation.images.put(key, await installation.images.get(other))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (damage, "history_damaged"),
        (put_anothers, "history_damaged"),
        (lambda i, key: i.images.delete(key), "history_missing"),
        (events_of_history(lambda kept: (kept[0], *kept[2:])), "version_gap"),
        (
            events_of_history(lambda kept: (StoredEvent(kept[0].sequence, b"no event"), *kept[1:])),
            "unreadable_event",
        ),
    ],
    ids=["damaged", "of another job", "gone", "a gap", "no event"],
)
async def test_a_history_that_is_not_what_was_written(
    installation: Installation, change: Change, told: str
) -> None:
    job_id = installation.ids["completed"]
    key = await installation.move(job_id)
    await change(installation, key)
    [found] = [each async for each in installation.verification().run()]
    assert (found.kind, found.job_id) == (told, job_id)
    assert found.file in {key, None}


async def test_a_history_that_a_later_one_has_replaced(installation: Installation) -> None:
    """While the job is hot the historian may be about to name it."""
    job_id = installation.ids["completed"]
    key = await installation.move(job_id)
    history = await read_history(installation.images, key)
    await installation.put_history(HistoryName(job_id, 4, 0).key, history)
    assert await installation.disagreements() == [("file_of_nothing", job_id)]
    await row(hot_since=NOW)(installation, job_id)
    assert await installation.disagreements() == []


async def test_a_job_that_was_moved_too_early(installation: Installation) -> None:
    running, failed = installation.ids["running"], installation.ids["failed"]
    await installation.queue.remove("default", 3, running)
    await installation.move(running)
    assert await installation.disagreements() == [("open_without_entry", running)]
    await installation.queue.add("default", 3, running, deadline=LATER)
    await no_callback(installation, failed)
    await installation.move(failed)
    assert await installation.disagreements() == [("callback_lost", failed)]


async def test_a_moved_job_that_is_to_be_called_back_once_more(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    await installation.move(job_id)
    again = Event(new_id(), job_id, 3, NOW, RedeliveryRequested())
    await installation.deliveries.append(again, expected=0)
    await row(hot_since=NOW, log_bytes=0)(installation, job_id)
    await installation.callbacks.add(job_id)
    assert await installation.disagreements() == []


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
    at = await installation.read_model.offset()
    lost = Event(new_id(), new_id(), 1, NOW, Completed(images=0), position=at + 5)
    assert await installation.read_model.apply([lost], expected=at)
    assert await installation.disagreements() == [("projection_ahead", None)]


async def test_what_agrees_after_a_pause_is_not_told(installation: Installation) -> None:
    """Lag is no disagreement, whatever lags."""
    open_id, called = installation.ids["running"], installation.ids["failed"]
    await installation.queue.remove("default", 3, open_id)
    key = f"{installation.ids['completed']}/1/0.png"
    data = await installation.images.get(key)
    await installation.images.delete(key)
    await installation.append(called, CallbackDelivered(attempt=2), log=installation.deliveries)

    async def settle(_: float) -> None:
        await installation.queue.add("default", 3, open_id, deadline=LATER)
        await installation.put(key, data)

    assert await installation.disagreements(sleep=settle) == []


async def test_only_a_disagreement_that_was_seen_before_is_told(installation: Installation) -> None:
    """A job that is looked at again may have come to something else meanwhile."""
    job_id = installation.ids["running"]
    await installation.queue.remove("default", 3, job_id)

    async def settle(_: float) -> None:
        await installation.queue.add("default", 3, job_id, deadline=LATER)
        await installation.images.delete(f"{job_id}/1/0.png")

    assert await installation.disagreements(sleep=settle) == []


@pytest.mark.parametrize("error", [LogUnavailable(), DatabaseUnavailable()])
async def test_a_place_that_does_not_answer_ends_the_walk(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(_: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        raise error

    monkeypatch.setattr(installation.delivery_contents, "read_raw", fails)
    with pytest.raises(type(error)):
        await installation.disagreements()


async def test_many_jobs_are_all_looked_at(installation: Installation) -> None:
    """More than a batch, and more suspects than are held at a time."""
    ids = [await installation.job() for _ in range(150)]
    for job_id in ids:
        await installation.queue.remove("default", 3, job_id)
    await installation.project()
    found = await installation.disagreements(most_suspects=100)
    assert sorted(found) == [("open_without_entry", job_id) for job_id in sorted(ids)]


def test_every_kind_is_shown_by_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert [kind for kind in Kind if f'"{kind}"' not in text] == []
