"""Shares: parts of a work, divided among processes by leases.

A process is seen by the seat that it holds, a lease of which there are as many as processes may
be. It holds at most its fair share of the parts: those above it, once another process has come, it
gives back. A part of a process that died is free when its lease has run out.

Two may hold a part for a while, since a lease may run out while its holder waits for the database:
the work itself has to bear that. Where it bears any number of them at any time, no part of it has
to rest while the database is away: then each process works on all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from events.errors import DatabaseUnavailable
from events.store.leases import Leases

logger = logging.getLogger(__name__)


class Shares:
    def __init__(
        self,
        name: str,
        *,
        leases: Leases,
        holder: str,
        parts: int,
        seats: int,
        lease_s: float,
        all_without_database: bool = False,
    ) -> None:
        """`seats`: how many processes share the work; a further one waits for a seat.

        `all_without_database`: work on all parts, not on none, where the database has not answered
        for the time of a lease.
        """
        self._leases = leases
        self._holder = holder
        self._seats_prefix = f"{name}/seat/"
        self._seats = [f"{self._seats_prefix}{index}" for index in range(seats)]
        self._names = [f"{name}/part/{index}" for index in range(parts)]
        self._lease_s = lease_s
        self._all_without_database = all_without_database
        self._heard_at = time.monotonic()
        """When that was asked which the database answered last."""
        self._until: dict[str, float] = {}
        """Leases that are held, and until when, by this process's clock."""
        self._running: dict[int, asyncio.Task[None]] = {}

    async def run(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Do `work` for each part while it is held, until cancelled. An error of it ends all."""

        async def do(index: int) -> None:
            await work(index)

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._settle()
                    parts = self._due()
                    await self._stop_but(parts)
                    for index in parts - self._running.keys():
                        self._running[index] = group.create_task(do(index))
                    await asyncio.sleep(self._lease_s / 3)
        finally:
            # The work has ended: who comes next begins where it ended.
            with suppress(DatabaseUnavailable):
                for name in list(self._until):
                    await self._release(name)

    def _held(self) -> set[int]:
        return {index for index, name in enumerate(self._names) if name in self._until}

    def _due(self) -> set[int]:
        """The parts to work on now."""
        is_unheard = time.monotonic() >= self._heard_at + self._lease_s
        if self._all_without_database and is_unheard:
            return set(range(len(self._names)))
        return self._held()

    async def _settle(self) -> None:
        """While the database is not available, a lease that has not run out is still held."""
        asked_at = time.monotonic()
        try:
            await self._take_share()
            self._heard_at = asked_at
        except DatabaseUnavailable as error:
            logger.warning("no shares taken", extra={"action": "share", "error": str(error)})
        now = time.monotonic()
        self._until = {name: until for name, until in self._until.items() if now < until}

    async def _take_share(self) -> None:
        most = await self._fair() if await self._sit() else 0
        for index in sorted(self._held()):
            if len(self._held()) > most:
                # Others begin only when this one has ended.
                await self._stop_but(self._held() - {index})
                await self._release(self._names[index])
            else:
                await self._acquire(self._names[index])
        free = [name for name in self._names if name not in self._until]
        for name in random.sample(free, len(free)):
            if len(self._held()) >= most:
                return
            await self._acquire(name)

    async def _sit(self) -> bool:
        """Keep the seat, or take one."""
        for name in sorted(self._seats, key=lambda name: name not in self._until):
            if await self._acquire(name):
                return True
        return False

    async def _fair(self) -> int:
        living = max(1, await self._leases.held(self._seats_prefix))
        return -(-len(self._names) // living)

    async def _acquire(self, name: str) -> bool:
        asked_at = time.monotonic()
        mine = await self._leases.acquire(name, self._holder, ttl_s=self._lease_s)
        self._until.pop(name, None)
        if mine:
            self._until[name] = asked_at + self._lease_s
        return mine

    async def _release(self, name: str) -> None:
        self._until.pop(name, None)
        await self._leases.release(name, self._holder)

    async def _stop_but(self, kept: set[int]) -> None:
        stopped = [self._running.pop(index) for index in self._running.keys() - kept]
        for task in stopped:
            task.cancel()
        if stopped:
            await asyncio.wait(stopped)
