"""The engine of a worker, as its job actors reach it in another process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from actors.actor_deaths import first_line, was_taken_away
from actors.worker.engine_host import EngineDied, EngineState, EngineTaken, Order
from engine.reports import EngineEvent, Errored, Finished

NAMESPACE = "darkroom"
"""Of the names of all actors of workers."""
_EVENTS_AHEAD = 4
"""How many events of a run an engine hands over before the job has dealt with them."""


class RemoteEngine:
    """The EngineProcess that has the device, seen from another actor and found by its name."""

    def __init__(self, *names: str, answer_timeout_s: float = 30.0) -> None:
        """`names`: of the processes of which one has the device."""
        self._names = names
        self._answer_timeout_s = answer_timeout_s
        self._found: Any = None
        self._last: Any = None
        """The one that had the device when it was last found."""

    async def find(self) -> None:
        """Look it up ahead of the first run, which is then spared that. It may not be there yet."""
        with suppress(EngineDied):
            await self._handle()

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        handle = await self._handle()
        method: Any = handle.run.options(
            num_returns="streaming", _generator_backpressure_num_objects=_EVENTS_AHEAD
        )
        ended = False
        try:
            async for reference in method.remote(order):
                event: EngineEvent = await reference
                ended = isinstance(event, Finished | Errored)
                yield event
        except RayError as error:
            ended = True
            raise self._died(error) from error
        finally:
            if not ended:
                handle.cancel.remote(order.job_id, order.attempt)

    async def check(self) -> EngineState:
        handle = await self._handle()
        try:
            async with asyncio.timeout(self._answer_timeout_s):
                state: EngineState = await handle.check.remote()
                return state
        except (RayError, TimeoutError) as error:
            raise self._died(error) from error

    async def kill(self) -> None:
        """Ray starts it again, or finds it dead. One that hangs does not say that it is the one."""
        with suppress(RayError, ValueError):
            last = self._last or await asyncio.to_thread(ray.get_actor, self._names[0], NAMESPACE)
            await asyncio.to_thread(ray.kill, last, no_restart=False)

    async def _handle(self) -> Any:
        """Several may look it up at the same time. Raises EngineDied."""
        if self._found is not None:
            return self._found
        found = None
        asked = [asyncio.create_task(self._holder(name)) for name in self._names]
        try:
            for holder in asyncio.as_completed(asked, timeout=self._answer_timeout_s):
                found = await holder
                if found is not None:
                    break
        except TimeoutError as error:
            raise EngineDied("The engine does not answer.") from error
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if found is None:
            raise EngineDied("The engine is not there.")
        self._last = self._found = found
        return found

    async def _holder(self, name: str) -> Any | None:
        """The process of that name, if it has the device."""
        try:
            handle = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            return handle if await handle.has_device.remote() else None
        except (ValueError, RayError):
            return None

    def _died(self, error: Exception) -> EngineDied:
        """Looked up anew the next time: it may come back as another actor of this name."""
        self._found = None
        was_taken = isinstance(error, RayError) and was_taken_away(error)
        died = EngineTaken if was_taken else EngineDied
        return died(f"The engine died: {first_line(error)}")
