"""Reads the stored data of the service into a history, without its HTTP API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import sqlalchemy as sa
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from events.bus.streams import DELIVERIES, JOBS
from events.history import read_history
from events.store.database import Database
from events.store.read_model import ReadModel
from events.store.tables import JOBS as ROWS
from storage.file_names import history_name
from storage.images import ImageStore
from tests.faults.checker.history import History, Stored, job_as_json

_BATCH = 500


async def gather(
    history: History, client: Client, images: ImageStore, *, database_url: str
) -> None:
    """Fill in the jobs, their deliveries and their rows."""
    jobs, deliveries = await stored_in(client, JOBS), await stored_in(client, DELIVERIES)
    moved_jobs, moved_deliveries = await moved_to(images)
    history.jobs = joined([moved_jobs, jobs])
    history.deliveries = joined([moved_deliveries, deliveries])
    database = Database(database_url)
    try:
        model = ReadModel(database)
        for row in await database.fetch(sa.select(ROWS.c.id)):
            if (job := await model.job(row.id)) is not None:
                history.rows[row.id] = job_as_json(job)
    finally:
        await database.close()


async def stored_in(client: Client, stream: str) -> dict[str, list[Stored]]:
    """Return every message of a stream by the last token of its subject, the job's id."""
    js = client.jetstream(timeout=5)
    left = (await js.stream_info(stream)).state.messages
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
    found: dict[str, list[Stored]] = defaultdict(list)
    subscription = await js.pull_subscribe(">", stream=stream, config=config)
    try:
        while left > 0:
            messages = await subscription.fetch(min(left, _BATCH), timeout=10)
            left -= len(messages)
            for message in messages:
                job_id = message.subject.rsplit(".", 1)[1]
                found[job_id].append((message.metadata.sequence.stream, message.data.decode()))
    finally:
        await subscription.unsubscribe()
    return dict(found)


async def moved_to(
    images: ImageStore,
) -> tuple[dict[str, list[Stored]], dict[str, list[Stored]]]:
    """Return the events in history objects, of jobs and of their deliveries, by the job's id."""
    jobs: dict[str, list[Stored]] = defaultdict(list)
    deliveries: dict[str, list[Stored]] = defaultdict(list)
    async for files in images.files():
        for key in (file.key for file in files if history_name(file.key) is not None):
            job = await read_history(images, key)
            for found, events in ((jobs, job.events), (deliveries, job.deliveries)):
                stored = [(each.sequence, each.payload.decode()) for each in events]
                if stored:
                    found[job.job_id] += stored
    return dict(jobs), dict(deliveries)


def joined(parts: Iterable[dict[str, list[Stored]]]) -> dict[str, list[Stored]]:
    """Combine the log and the history objects, which may contain the same event for a while."""
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for part in parts:
        for job_id, stored in part.items():
            found[job_id] |= dict(stored)
    return {job_id: sorted(stored.items()) for job_id, stored in found.items()}
