"""Shares: parts of a work, divided among processes by leases.

A process is seen by the seat that it holds, a lease of which there are as many as processes may
be. It holds at most its fair share of the parts: those above it, once another process has come, it
gives back. A part of a process that died is free when its lease has run out. Parts have names, and
may come and go. What is held is renewed at once, however much it is.

Two may hold a part for a while, since a lease may run out while its holder waits for the database:
the work itself has to bear that. Where it bears any number of them at any time, no part of it has
to rest while the database is away: then each process works on all.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from events.errors import DatabaseUnavailable
from events.store.leases import Leases, answered

logger = logging.getLogger(__name__)

T = TypeVar("T")

Stop: TypeAlias = Callable[[str], Awaitable[None]]
"""Ends the work on a part, if there is any. It returns once it has ended."""


class Shares:
    def __init__(
        self,
        name: str,
        *,
        leases: Leases,
        holder: str,
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
        self._parts_prefix = f"{name}/part/"
        self._lease_s = lease_s
        self._all_without_database = all_without_database
        self._heard_at = time.monotonic()
        """When that was asked which the database answered last."""
        self._ours: set[str] = set()
        """The parts to work on, as they were last."""
        self._names: set[str] = set()
        """Leases that are held."""
        self._until = 0.0
        """When the first of them runs out, by this process's clock."""

    async def run(self, parts: Collection[str], work: Callable[[str], Awaitable[None]]) -> None:
        """Do `work` for each part while it is held, until cancelled. An error of it ends all."""
        running: dict[str, asyncio.Task[None]] = {}

        async def do(part: str) -> None:
            await work(part)

        async def stop(part: str) -> None:
            if (task := running.pop(part, None)) is not None:
                task.cancel()
                await asyncio.wait({task})

        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    began_at = time.monotonic()
                    for part in await self.settle(parts, stop) - running.keys():
                        running[part] = group.create_task(do(part))
                    took_s = time.monotonic() - began_at
                    await asyncio.sleep(self._lease_s / 3 - took_s)
        finally:
            await self.release()

    async def settle(self, parts: Collection[str], stop: Stop) -> set[str]:
        """Renew the leases, take parts and give parts back. Those to work on now; they are for a
        third of `lease_s` from the call, then it is time to settle again.

        Work on others is stopped, before their leases are given back. While the database is not
        available, a lease that has not run out is still held. It is waited for until then.
        """
        asked_at = time.monotonic()
        try:
            await self._take_share(set(parts), stop)
            self._heard_at = asked_at
        except DatabaseUnavailable as error:
            logger.warning("no shares taken", extra={"action": "share", "error": str(error)})
        now = time.monotonic()
        if now >= self._until:
            self._names.clear()
        before, self._ours = self._ours, self._held() & set(parts)
        if self._all_without_database and now >= self._heard_at + self._lease_s:
            self._ours = set(parts)
        await asyncio.gather(*map(stop, before - self._ours))
        return self._ours

    async def release(self) -> None:
        """Give all back. The work has ended: who comes next begins where it ended."""
        with suppress(DatabaseUnavailable):
            for name in list(self._names):
                await self._release(name)

    def spare_s(self) -> float:
        """How long something else may take before it settles again, and has time for that."""
        if not self._names:
            return self._lease_s / 3
        return max(0.0, self._until - time.monotonic() - self._lease_s / 3)

    def _held(self) -> set[str]:
        prefix = self._parts_prefix
        return {name.removeprefix(prefix) for name in self._names if name.startswith(prefix)}

    async def _take_share(self, parts: set[str], stop: Stop) -> None:
        """As far as that goes in a third of a lease: then it is time to renew what is held."""
        enough_at = time.monotonic() + self._lease_s / 3
        await self._renew()
        most = await self._fair(len(parts)) if await self._sit() else 0
        for part in sorted(self._held()):
            if time.monotonic() >= enough_at:
                return
            if part not in parts or len(self._held() & parts) > most:
                # Others begin only when this one has ended.
                await stop(part)
                await self._release(self._parts_prefix + part)
        free = sorted(parts - self._held())
        for part in random.sample(free, len(free)):
            if len(self._held()) >= most or time.monotonic() >= enough_at:
                return
            await self._acquire(self._parts_prefix + part)

    async def _sit(self) -> bool:
        """Keep the seat, or take one."""
        if not self._names.isdisjoint(self._seats):
            return True
        for name in self._seats:
            if await self._acquire(name):
                return True
        return False

    async def _fair(self, parts: int) -> int:
        living = max(1, await self._ask(self._leases.held(self._seats_prefix)))
        return -(-parts // living)

    async def _renew(self) -> None:
        asked_at = time.monotonic()
        if self._names:
            renewal = self._leases.renew(self._names, self._holder, ttl_s=self._lease_s)
            self._names = await self._ask(renewal)
        self._until = asked_at + self._lease_s

    async def _acquire(self, name: str) -> bool:
        mine = await self._ask(self._leases.acquire(name, self._holder, ttl_s=self._lease_s))
        if mine:
            self._names.add(name)
        return mine

    async def _release(self, name: str) -> None:
        self._names.discard(name)
        await self._ask(self._leases.release(name, self._holder))

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Wait until what is held runs out; a while, too, where that was before."""
        lasts_s = self._until - time.monotonic()
        return await answered(question, within_s=max(lasts_s, self._lease_s / 3))
