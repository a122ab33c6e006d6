"""Walks through every place that keeps something of jobs, and tells where two of them disagree.

Only what still holds after a pause is told: places lag behind each other while jobs run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from events.log import utc_now
from serve_app.operations.archive_check import ArchiveCheck
from serve_app.operations.disagreements import Check, Disagreement, Kind
from serve_app.operations.file_check import FileCheck
from serve_app.operations.job_check import JobCheck
from serve_app.operations.leftover_check import LeftoverCheck
from serve_app.operations.places import Places
from serve_app.operations.projection_check import ProjectionCheck

_BATCH = 64


@dataclass(frozen=True, slots=True)
class _Suspicion:
    check: Check
    items: Sequence[str]
    found: frozenset[tuple[Kind, str | None, str | None]]


class Verification:
    def __init__(
        self,
        places: Places,
        *,
        digests: bool = False,
        file_grace_s: float = 3600.0,
        settle_s: float = 5.0,
        most_suspects: int = 1000,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`digests`: read every file. `file_grace_s`: a younger file may belong to nothing yet.

        `settle_s`: how long what disagrees has to come to agree. `most_suspects`: how many wait
        for a second look at a time.
        """
        self._places = places
        self._file_grace = timedelta(seconds=file_grace_s)
        self._settle_s = settle_s
        self._most_suspects = most_suspects
        self._now = now
        self._sleep = sleep
        self._files = FileCheck(places, digests=digests)
        self._jobs = JobCheck(places, self._files)
        self._archive = ArchiveCheck(places, self._jobs)
        self._leftovers = LeftoverCheck(places, now=now)

    async def run(self) -> AsyncGenerator[Disagreement]:
        """Every disagreement, as it is found.

        Raises LogUnavailable, ReadTimeout, DatabaseUnavailable, ImageStoreUnavailable.
        """
        suspicions: list[_Suspicion] = []
        async for check, items in self._walk():
            if found := await check(items):
                suspicions.append(_Suspicion(check, items, frozenset(map(_thing, found))))
            if sum(len(each.found) for each in suspicions) >= self._most_suspects:
                async for disagreement in self._confirmed(suspicions):
                    yield disagreement
                suspicions = []
        async for disagreement in self._confirmed(suspicions):
            yield disagreement

    async def _confirmed(self, suspicions: Sequence[_Suspicion]) -> AsyncGenerator[Disagreement]:
        if suspicions:
            await self._sleep(self._settle_s)
        for suspicion in suspicions:
            about = {each for _, job_id, file in suspicion.found for each in (job_id, file)}
            items = [each for each in suspicion.items if each in about]
            for disagreement in await suspicion.check(items):
                if _thing(disagreement) in suspicion.found:
                    yield disagreement

    async def _walk(self) -> AsyncGenerator[tuple[Check, Sequence[str]]]:
        places, leftovers = self._places, self._leftovers
        walks: tuple[tuple[Check, AsyncGenerator[list[str]]], ...] = (
            (ProjectionCheck(places).check, _once()),
            (self._jobs.in_log, places.log.job_ids()),
            (leftovers.rows, places.rows.job_ids()),
            (self._archive.rows, places.rows.job_ids()),
            (leftovers.deliveries, places.deliveries.job_ids()),
            (leftovers.entries, places.queue.job_ids()),
            (leftovers.callback_entries, places.callbacks.job_ids()),
            (self._files.uploads, places.rows.upload_keys()),
            (self._files.stored, self._old_files()),
        )
        for check, pages in walks:
            async for page in pages:
                for start in range(0, len(page), _BATCH):
                    yield check, page[start : start + _BATCH]
        async for looked_at in self._archive.walk():
            yield looked_at

    async def _old_files(self) -> AsyncGenerator[list[str]]:
        async for files in self._places.images.files():
            before = self._now() - self._file_grace
            yield [file.key for file in files if file.stored_at < before]


def _thing(disagreement: Disagreement) -> tuple[Kind, str | None, str | None]:
    return disagreement.kind, disagreement.job_id, disagreement.file


async def _once() -> AsyncGenerator[list[str]]:
    yield [""]
