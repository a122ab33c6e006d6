"""The actors of a worker, as the dispatcher asks Ray about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from actors.actor_deaths import ended_by_itself, first_line
from actors.dispatch.cluster import (
    ActorDied,
    ActorLost,
    ActorUnavailable,
    EngineGone,
    EngineRestarts,
)
from actors.worker.engine_host import EngineDied, EngineState
from actors.worker.job import RunOutcome
from events.job import Job
from events.log import utc_now
from events.queue import QueueEntry

_ANSWER_TIMEOUT_S = 10.0
_MOST_HANDED_BYTES = 32 * 1024
"""Of the events of a job that is handed over with a call."""
_START_TIMEOUT_S = 120.0
_LONGEST_SILENCE_S = 60.0
"""One that does not answer for so long runs no job that would end."""
_TURN_TIMEOUT_S = 2.0
"""For the question which process has the device; one that only starts does not answer it."""


class RayJobActor:
    """See `actors.dispatch.cluster.JobActor`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def ready(self) -> str:
        return str(await answer(self._handle.ready, timeout_s=_START_TIMEOUT_S))

    async def state(self) -> tuple[str | None, int]:
        job_id, jobs_run = await answer(self._handle.state)
        return job_id, jobs_run

    async def wait_idle(self) -> None:
        await answer(self._handle.wait_idle, timeout_s=None)

    async def run(self, entry: QueueEntry, job: Job) -> RunOutcome:
        # A large one is read by the actor: Ray would put it into its object store, and wait there.
        known = job if job.log_bytes <= _MOST_HANDED_BYTES else None
        try:
            run = partial(self._handle.run.remote, entry.job_id, entry.token, known)
            return RunOutcome(await run(after_attempts=job.attempts, given_at=utc_now()))
        except RayError as error:
            died = ActorDied if ended_by_itself(error) else ActorLost
            raise died(first_line(error)) from error

    async def retire(self) -> bool:
        return bool(await answer(self._handle.retire))

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        try:
            take = self._handle.take_delivery
            return bool(await answer(take, entry.job_id, entry.token, timeout_s=timeout_s))
        except ActorUnavailable:
            return False


class RayEngineActor:
    """See `actors.dispatch.cluster.EngineActor`. One process of several has the device."""

    def __init__(
        self,
        *handles: Any,
        add_standby: Callable[[Any], Awaitable[None]],
        end: Callable[[Any], Awaitable[None]],
        on_state: Callable[[EngineState], None] = lambda _: None,
    ) -> None:
        """`add_standby` is called with the process that has the device, once it is found; `end`
        ends it, and the cluster makes it anew. `on_state` is told of each answer.
        """
        self._handles = handles
        self._add_standby = add_standby
        self._end = end
        self._on_state = on_state
        self._holder: Any = None

    async def check(self) -> EngineState:
        try:
            holder = self._holder or await self._find_holder()
            state: EngineState = await answer(holder.check)
            if self._holder is None:
                self._holder = holder
                await self._add_standby(holder)
        except ActorUnavailable as error:
            if isinstance(error.__cause__, ActorUnavailableError | EngineDied):
                raise EngineRestarts(str(error)) from error
            if isinstance(error.__cause__, RayActorError):
                raise EngineGone(str(error)) from error
            raise
        self._on_state(state)
        return state

    async def kill(self) -> None:
        if self._holder is not None:
            await self._end(self._holder)

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        try:
            holder = self._holder or await self._find_holder()
            had_begun: bool | None = await answer(holder.cancel, job_id, attempt)
            return had_begun
        except ActorUnavailable:
            return None

    async def _find_holder(self) -> Any:
        """The first that says so: one that only starts does not answer yet.

        Raises ActorUnavailable.
        """
        asked = {asyncio.create_task(_holds(each)) for each in self._handles}
        errors: list[ActorUnavailable] = []
        try:
            for next_answer in asyncio.as_completed(asked):
                try:
                    if (holder := await next_answer) is not None:
                        return holder
                except ActorUnavailable as error:
                    errors.append(error)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise errors[0] if errors else ActorUnavailable("no engine has the device yet")


async def _holds(engine: Any) -> Any | None:
    """The engine, if it has the device. Raises ActorUnavailable."""
    return engine if await answer(engine.has_device, timeout_s=_TURN_TIMEOUT_S) else None


class Silences:
    """Job actors that did not answer, and since when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    async def may_run_job(self, name: str, actor: RayJobActor) -> bool:
        """Whether it runs one, also where it is only slow to say so. One that is dead does not."""
        try:
            job_id, _ = await actor.state()
        except ActorUnavailable as error:
            since = self._since.setdefault(name, self._clock())
            is_slow = isinstance(error.__cause__, ActorUnavailableError | TimeoutError)
            if is_slow and self._clock() - since < _LONGEST_SILENCE_S:
                return True
            job_id = None
        self._since.pop(name, None)
        return job_id is not None


async def answer(
    method: Any, *arguments: object, timeout_s: float | None = _ANSWER_TIMEOUT_S
) -> Any:
    """The answer of an actor's method. Raises ActorUnavailable."""
    try:
        async with asyncio.timeout(timeout_s):
            return await method.remote(*arguments)
    except (RayError, TimeoutError) as error:
        raise ActorUnavailable(str(error) or type(error).__name__) from error
