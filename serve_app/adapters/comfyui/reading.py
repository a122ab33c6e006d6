"""Reads the caller's workflow jobs for the lists that ComfyUI answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from events.job import Job
from events.result import Status
from events.streams.log_streams import LogPlace
from events.types import Flavour
from serve_app.replica import Replica

MOST_LISTED = 200
"""Jobs in a list: reading one takes about 0.1 ms."""
MOST_IN_HISTORY = 100
_MOST_PAGES = 50
_MOST_REQUEST_BYTES = 2 * 1024**2
"""Of the requests of a list together; their jobs' events are a little longer."""
_BYTES_HELD = 4
"""For each of them, while they are values and text."""


async def open_jobs(replica: Replica, owner: str) -> list[Job]:
    """Those that wait or run, oldest first, without their requests."""
    newest = await replica.services.read_model.jobs(
        owner, status=Status.RUNNING, flavour=Flavour.WORKFLOW, limit=MOST_LISTED
    )
    return newest[::-1]


async def own_jobs(replica: Replica, owner: str, *, is_ended: bool) -> list[Job]:
    """Those that came by this API, newest first: other programs of the owner may have some, too."""
    own: list[Job] = []
    before = None
    for _ in range(_MOST_PAGES):
        page = await replica.services.read_model.jobs(
            owner,
            # By the status an index finds the few that are open among all that have ended.
            status=None if is_ended else Status.RUNNING,
            flavour=Flavour.WORKFLOW,
            is_ended=is_ended,
            limit=MOST_LISTED,
            before=before,
        )
        own += [job for job in page if job.submitted.client_id is not None]
        if len(page) < MOST_LISTED:
            break
        before = page[-1].id
    return own


async def ended_jobs(replica: Replica, owner: str, *, limit: int, offset: int = 0) -> list[Job]:
    """The newest first, without their requests."""
    return await replica.services.read_model.jobs(
        owner, flavour=Flavour.WORKFLOW, is_ended=True, limit=limit, offset=offset
    )


@asynccontextmanager
async def with_requests(replica: Replica, owner: str, jobs: list[Job]) -> AsyncGenerator[list[Job]]:
    """The first of the owner's jobs, as many as may be held at once, with their requests.

    The answer is to be written in the context: what is held by all answers is bounded, too.
    Raises NoTurn, DatabaseUnavailable.
    """
    ids, size_bytes = _first(jobs)
    async with replica.bodies.room(owner, size_bytes * _BYTES_HELD):
        found = await replica.services.read_model.jobs_of_ids(ids)
        yield [job for job in found if not job.erased]


def _first(jobs: list[Job]) -> tuple[list[str], int]:
    """Ids and bytes, of one job at least."""
    ids: list[str] = []
    size_bytes = 0
    for job in jobs:
        if ids and size_bytes + job.log_bytes > _MOST_REQUEST_BYTES:
            break
        ids.append(job.id)
        size_bytes += job.log_bytes
    return ids, size_bytes


async def caught_up(replica: Replica, place: LogPlace | None = None) -> None:
    """Wait until the rows have what is stored up to there; None is up to now.

    Not longer than a moment: what comes late shows a little later. Raises LogUnavailable,
    DatabaseUnavailable.
    """
    if place is None:
        place = await replica.services.log_contents.last_sequence()
    await replica.projected.reach(place)


async def remaining(replica: Replica, owner: str) -> int:
    """How many jobs of the owner wait or run. Raises DatabaseUnavailable."""
    return await replica.services.read_model.usage.open_jobs(owner)
