"""An archiver for the jobs of an edge."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest

from actors.archiving import open_archive
from actors.upkeep.archiver import Archiver
from events.ids import new_id
from events.log import utc_now
from events.store.database import Database
from events.store.leases import Leases
from events.types import CallbackDelivered, Event
from settings.log import LogSettings
from storage.images import ImageStore
from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body

DIFFUSION = "/diffusion/v1/generate"
KEY = {"Idempotency-Key": "order 1"}


@pytest.fixture
async def archiver(tmp_path: Path, edge: Edge) -> AsyncGenerator[Archiver]:
    """For which every job has cooled."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}")
    archiving = open_archive(database, ImageStore((tmp_path / "images").as_uri()))

    def later() -> datetime:
        return utc_now() + timedelta(hours=2)

    yield Archiver(
        holder="a",
        leases=Leases(database),
        log=edge.services.log,
        deliveries=edge.services.deliveries,
        hot_jobs=archiving.hot_jobs,
        segments=archiving.segments,
        archive=archiving.archive,
        writer=archiving.writer,
        settings=LogSettings(),
        lease_s=120,
        period_s=1,
        now=later,
    )
    await database.close()


async def archived_job(
    edge: Edge, client: httpx.AsyncClient, archiver: Archiver, **query: str
) -> str:
    answer = await client.post(DIFFUSION, json=diffusion_body(), headers=KEY, params=query)
    job_id = str(answer.json()["request_id"])
    await edge.run(job_id)
    if query:
        delivered = CallbackDelivered(attempt=1)
        event = Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=delivered)
        await edge.services.deliveries.append(event, expected=0)
    await edge.project()
    await archiver.round()
    assert await edge.log.read(job_id) == []
    return job_id
