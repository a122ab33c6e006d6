"""Many callbacks to one receiver, in virtual time: how often entries are handled and which wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from actors.callbacks.receivers import Receivers
from events.bus.queues import CallbackQueue
from tests.support.events import MORNING
from tests.support.memory.queues import MemoryCallbackQueue

T = TypeVar("T")

HANDLING_S = 0.003
"""The seconds for which the role's process is busy with one entry: reads, a turn, and parking or
recording.
"""


class _Jump(selectors.DefaultSelector):
    """An event loop that moves the clock to the next timer instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    selector = _Jump()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]  # no other way to hand it over
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(coroutine)


class _Queue(MemoryCallbackQueue):
    """A queue by the clock of the loop. It delivers entries that are due and does not keep them."""

    def __init__(self) -> None:
        super().__init__(clock=_virtual_now)
        self.entries: asyncio.Queue[str] = asyncio.Queue()

    def _store(self, key: str) -> None:
        self.entries.put_nowait(key)


@dataclass
class Crowd:
    """A callback queue with one process that handles its entries one after the other."""

    new_receivers: Callable[[CallbackQueue], Receivers]
    answers_s: Mapping[str, float]
    """The seconds that each receiver takes to answer."""
    woken: list[float] = field(default_factory=list)
    """The times at which entries were handled that had been on the queue before."""
    delivered: list[float] = field(default_factory=list)
    delays_s: dict[str, float] = field(default_factory=dict)
    """The seconds from the first addition to the queue to the final removal, by callback."""
    _queue: _Queue = field(default_factory=_Queue)
    _seen: set[str] = field(default_factory=set)
    _held: set[str] = field(default_factory=set)
    _receivers: dict[str, str] = field(default_factory=dict)
    _added: dict[str, float] = field(default_factory=dict)

    def add(self, callback: str, receiver: str) -> None:
        self._receivers[callback] = receiver
        self._added[callback] = self._now()
        self._queue.entries.put_nowait(callback)

    async def run(self, until: float) -> None:
        """Run one process. After its end another one may run, with an empty memory."""
        receivers = self.new_receivers(self._queue)
        for callback in self._held:
            self._queue.entries.put_nowait(callback)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until), asyncio.TaskGroup() as sending:
                sending.create_task(receivers.run())
                while True:
                    callback = await self._queue.entries.get()
                    self._held.add(callback)
                    await asyncio.sleep(HANDLING_S)
                    if callback in self._seen:
                        self.woken.append(self._now())
                    self._seen.add(callback)
                    sending.create_task(self._handle(callback, receivers))

    async def _handle(self, callback: str, receivers: Receivers) -> None:
        await self._deliver(callback, receivers)
        self._held.discard(callback)

    async def _deliver(self, callback: str, receivers: Receivers) -> None:
        if callback in self.delays_s:  # it was called, although it was not rescheduled
            return
        receiver = self._receivers[callback]
        async with receivers.permit(receiver, callback) as permit:
            if not permit.wait_s:
                await asyncio.sleep(self.answers_s[receiver])
                permit.answered = True
        if permit.wait_s:
            until = _virtual_now() + timedelta(seconds=permit.wait_s)
            await self._queue.park(callback, until, receiver=receiver)
            return
        self.delivered.append(self._now())
        self.delays_s[callback] = self._now() - self._added[callback]
        await receivers.make_due(receiver)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _virtual_now() -> datetime:
    return MORNING + timedelta(seconds=asyncio.get_running_loop().time())
