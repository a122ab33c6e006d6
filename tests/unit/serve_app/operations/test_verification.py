"""Each test makes two places disagree, and sees exactly that told."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

import pytest

from events.errors import DatabaseUnavailable, LogUnavailable
from events.ids import new_id
from events.log import StoredEvent
from events.types import (
    CallbackDelivered,
    Cancelled,
    Event,
    Failed,
    Started,
)
from events.wire.cloud_events import decode, encode
from serve_app.operations.disagreements import Kind
from tests.support.operations.installation import NOW, Installation


async def test_nothing_disagrees_where_all_is_well(installation: Installation) -> None:
    assert await installation.disagreements() == []
    assert await installation.disagreements(digests=True) == []


async def test_nothing_is_changed(installation: Installation) -> None:
    await installation.images.delete(f"{installation.ids['completed']}/1/0.png")
    before = await everything(installation)
    assert await installation.disagreements()
    assert await everything(installation) == before


async def everything(installation: Installation) -> list[object]:
    places, ids = installation.places, [*installation.ids.values()]
    return [
        await places.log.stored(ids),
        await places.deliveries.stored(ids),
        await places.rows.jobs(ids),
        await installation.queue.job_ids(),
        await installation.callbacks.job_ids(),
        sorted(path for path in installation.folder.rglob("*")),
    ]


# What the events of a job say.


async def test_a_message_that_is_no_event(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    stored = await installation.log_contents.of(job_id)
    installation.log_contents.instead[job_id] = (*stored, StoredEvent(99, b"\xff"))
    assert await installation.disagreements() == [("unreadable_event", job_id)]


async def test_an_event_of_another_job(installation: Installation) -> None:
    job_id, other = installation.ids["completed"], installation.ids["cancelled"]
    stored = await installation.log_contents.of(other)
    installation.log_contents.instead[job_id] = tuple(stored)
    found = await installation.disagreements()
    assert set(found) == {("unreadable_event", job_id)}


async def test_a_message_of_a_delivery_that_is_no_event(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    stored = await installation.delivery_contents.of(job_id)
    installation.delivery_contents.instead[job_id] = (*stored, StoredEvent(99, b"{}"))
    assert await installation.disagreements() == [("unreadable_event", job_id)]


@pytest.mark.parametrize("missing", [0, 1, 2])
async def test_a_gap_in_the_versions(installation: Installation, missing: int) -> None:
    job_id = installation.ids["completed"]
    stored = await installation.log_contents.of(job_id)
    del stored[missing]
    installation.log_contents.instead[job_id] = tuple(stored)
    assert await installation.disagreements() == [("version_gap", job_id)]


async def test_a_gap_in_the_versions_of_a_delivery(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    stored = await installation.delivery_contents.of(job_id)
    installation.delivery_contents.instead[job_id] = tuple(stored[1:])
    assert await installation.disagreements() == [("version_gap", job_id)]


async def test_events_before_an_erasure_may_be_gone(installation: Installation) -> None:
    await installation.log.purge(installation.ids["erased"], keep=1)
    assert await installation.disagreements() == []


async def test_a_job_that_was_never_submitted(installation: Installation) -> None:
    job_id = installation.ids["waiting"]
    [stored] = await installation.log_contents.of(job_id)
    first = decode(stored.payload, position=stored.sequence)
    begun = Event(first.id, job_id, 1, first.time, Started(attempt=1, actor="a"))
    installation.log_contents.instead[job_id] = (StoredEvent(stored.sequence, encode(begun)),)
    assert ("no_submission", job_id) in await installation.disagreements()


async def test_a_second_end(installation: Installation) -> None:
    job_id = installation.ids["cancelled"]
    await installation.append(job_id, Failed(message="No."))
    assert await installation.disagreements() == [("more_than_one_end", job_id)]


# Queues and callbacks.


async def test_an_open_job_that_no_queue_has(installation: Installation) -> None:
    job_id = installation.ids["running"]
    await installation.queue.remove("default", 3, job_id)
    assert await installation.disagreements() == [("open_without_entry", job_id)]


async def test_a_callback_that_no_queue_has(installation: Installation) -> None:
    job_id = installation.ids["failed"]
    async with installation.callbacks.due(most_held=9, hold_s=9) as reader:
        [entry] = await reader.next(most=9, timeout_s=1)
        await entry.ack()
    assert await installation.disagreements() == [("callback_lost", job_id)]


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


async def test_a_delivery_of_an_unknown_job(installation: Installation) -> None:
    job_id = new_id()
    await installation.deliver(job_id, CallbackDelivered(attempt=1))
    assert await installation.disagreements() == [("delivery_of_unknown_job", job_id)]


async def test_entries_of_an_unknown_job(installation: Installation) -> None:
    queued, called = new_id(), new_id()
    await installation.queue.add("default", 1, queued)
    await installation.callbacks.add(called)
    assert await installation.disagreements() == [
        ("entry_of_unknown_job", queued),
        ("entry_of_unknown_job", called),
    ]


async def test_an_entry_of_a_job_that_ended(installation: Installation) -> None:
    job_id = installation.ids["cancelled"]
    await installation.queue.add("default", 3, job_id)
    assert await installation.disagreements() == [("entry_of_ended_job", job_id)]
    just_ended = NOW - timedelta(minutes=59, seconds=30)
    assert await installation.disagreements(now=lambda: just_ended) == []


# Lag, and places that cannot be looked at.


async def test_what_agrees_after_a_pause_is_not_told(installation: Installation) -> None:
    """Lag is no disagreement, whatever lags."""
    open_id, called = installation.ids["running"], installation.ids["failed"]
    await installation.queue.remove("default", 3, open_id)
    key = f"{installation.ids['completed']}/1/0.png"
    data = await installation.images.get(key)
    await installation.images.delete(key)
    await installation.append(called, CallbackDelivered(attempt=2), log=installation.deliveries)

    async def settle(_: float) -> None:
        await installation.queue.add("default", 3, open_id)
        await installation.put(key, data)

    assert await installation.disagreements(sleep=settle) == []


async def test_only_the_disagreement_that_was_seen_before_is_told(
    installation: Installation,
) -> None:
    """A job that is looked at again may have come to something else meanwhile."""
    job_id = installation.ids["running"]
    await installation.queue.remove("default", 3, job_id)

    async def settle(_: float) -> None:
        await installation.queue.add("default", 3, job_id)
        await installation.images.delete(f"{job_id}/1/0.png")

    assert await installation.disagreements(sleep=settle) == []


@pytest.mark.parametrize("error", [LogUnavailable(), DatabaseUnavailable()])
async def test_a_place_that_does_not_answer_ends_the_walk(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(_: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        raise error

    monkeypatch.setattr(installation.delivery_contents, "stored", fails)
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
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_verif*.py"))
    assert [kind for kind in Kind if f'"{kind}"' not in text] == []
