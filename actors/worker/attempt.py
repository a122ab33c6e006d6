"""Attempt: one try at a job. The engine's events on one side, the lease on the other."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from actors.worker.engine_host import EngineClient, EngineDied, EngineTaken, Order
from actors.worker.failure import code_of
from actors.worker.heartbeat import Heartbeat
from actors.worker.lease import Lease, Loss
from actors.worker.plan import Plan
from actors.worker.progress import ReportProgress, job_progress
from actors.worker.result_file import planned_file
from actors.worker.run_mark import RunMark
from engine.errors import (
    DeviceFailed,
    EngineError,
    InputFileUnavailable,
    MachineFailed,
    ModelsUnavailable,
    OutOfMemory,
)
from engine.machine_error import is_machine_error
from engine.reports import EngineEvent, Errored, Finished, ImageReady, LatentReady, Progress
from events.decisions import Command, Complete, ConfirmCancel, FailAttempt, StoreImage
from events.job import Job, sizes_of, timed_out_message
from events.job_cost import Timing
from events.log import JobWriter
from events.result import FailureCode
from events.retry import keep_trying
from events.types import Blame, ImageStored
from storage.images import ImageNotFound, ImageStore, ImageStoreUnavailable
from storage.keys import file_key, file_name

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    silence_s: float
    """How long the engine may not answer, beyond the time that it said its work may take. That it
    makes progress is its own watchdog's business."""
    start_s: float = 0.0
    """How long its first answer may take, for it may have to start."""
    heartbeat_s: float = 1.0
    longest_store_pause_s: float = 10.0
    longest_machine_pause_s: float = 60.0
    """How long a job whose machine failed is held at most before it is given back."""


class Attempt:
    """Runs a job that `actor` has started, up to its end or as far as it stays ours."""

    def __init__(
        self,
        job: Job,
        *,
        actor: str,
        writer: JobWriter,
        engine: EngineClient,
        images: ImageStore,
        plan: Callable[[Job], Plan],
        report_progress: ReportProgress,
        limits: AttemptLimits,
        now: Callable[[], datetime],
        name: str = "",  # see `Order`
    ) -> None:
        self._job = job
        self._actor = actor
        self._writer = writer
        self._engine = engine
        self._images = images
        self._plan = plan
        self._report_progress = report_progress
        self._limits = limits
        self._now = now
        self._name = name
        self._store_s = 0.0
        self._heartbeat = Heartbeat(
            engine,
            period_s=limits.heartbeat_s,
            silence_s=limits.silence_s,
            start_s=limits.start_s,
        )

    async def run(self, lease: Lease) -> Job:
        """The job afterwards. Neither ended nor another's: it wants another attempt."""
        with RunMark.new() as mark:
            tasks = {
                asyncio.create_task(self._work(mark), name="work"),
                asyncio.create_task(
                    self._hold_lease(lease, self._heartbeat.is_silent), name="lease"
                ),
                asyncio.create_task(self._heartbeat.listen(), name="heartbeat"),
            }
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                await self._follow(task, lease, mark)
        return self._job

    async def _follow(self, task: asyncio.Task[Loss | None], lease: Lease, mark: RunMark) -> None:
        """What follows from the end of one of the attempt's tasks."""
        try:
            loss = task.result()
        except Exception as error:
            if not is_machine_error(error):
                raise
            await self._spare(error, lease, mark)
        else:
            if loss is not None:
                await self._give_up(loss, mark)

    # The work.

    async def _work(self, mark: RunMark) -> None:
        try:
            if self._has_every_image():
                await self._complete()
                return
            # What the models folder does is nothing that the job is to blame for.
            await keep_trying(
                partial(self._run, mark),
                on=ModelsUnavailable,
                first_pause_s=0.2,
                longest_pause_s=self._limits.longest_store_pause_s,
                fields={"action": "read_models", "job_id": self._job.id},
            )
        except MachineFailed:
            raise  # see `run`
        except EngineError as error:
            await self._fail(str(error), final=True, code=code_of(error))
        except EngineTaken as error:
            await self._fail(str(error), blame=Blame.BYSTANDER)
        except EngineDied as error:
            await self._break_off(str(error), mark)

    async def _run(self, mark: RunMark) -> None:
        """Raises EngineError, EngineDied."""
        plan = await asyncio.to_thread(self._plan, self._job)
        order = Order(
            self._job.id,
            self._job.attempts,
            plan.prompt,
            plan.first_index,
            input_files=await self._read_input_files(),
            mark=mark.path,
            input_sizes=sizes_of(self._job.submitted.input_files),
            is_alone=bool(self._job.submitted.alone),
            is_exclusive=self._job.is_exclusive,
            has_previews=bool(self._job.submitted.preview),
            limits=plan.limits,
            name=self._name,
        )
        async with aclosing(self._engine.run(order)) as events:
            async for event in events:
                await self._take(event, plan, mark)
                if self._job.end is not None:
                    return

    async def _break_off(self, message: str, mark: RunMark) -> None:
        """The engine ended under the job, which may or may not be the reason."""
        if mark.is_active:
            await self._suspect(message, mark)
        else:
            await self._fail(message, blame=Blame.BYSTANDER)

    async def _suspect(self, message: str, mark: RunMark, code: str | None = None) -> None:
        joined = mark.may_be_joined
        await self._fail(message, blame=Blame.SUSPECT, code=code, is_joined=joined)

    async def _spare(self, error: Exception, lease: Lease, mark: RunMark) -> None:
        """The machine failed, not the job. Where it goes on to fail, the pauses grow."""
        fields = {"action": "machine_failed", "job_id": self._job.id}
        logger.error("the machine failed", exc_info=error, extra=fields)
        text = str(error) if isinstance(error, MachineFailed) else f"The machine failed: {error}"
        await self._fail(text, blame=Blame.BYSTANDER)
        if self._job.end is not None:
            return
        doubled = 2.0 ** min(self._job.spared_attempts - 1, 30)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(doubled, self._limits.longest_machine_pause_s)):
                # Nobody listens to the engine meanwhile, so its silence says nothing.
                loss = await self._hold_lease(lease, is_silent=lambda: False)
                await self._give_up(loss, mark)

    async def _read_input_files(self) -> dict[str, bytes]:
        """Raises InputFileUnavailable."""
        files = self._job.submitted.input_files or {}
        return {name: await self._read_input_file(name, file.key) for name, file in files.items()}

    async def _read_input_file(self, name: str, key: str) -> bytes:
        try:
            return await self._reach_store(partial(self._images.get, key))
        except ImageNotFound as error:
            gone = f"The input file {name!r} is gone. Upload it again and submit a new job."
            raise InputFileUnavailable(gone) from error

    def _has_every_image(self) -> bool:
        """The attempt before this one died between its last image and its end."""
        return 0 < self._job.submitted.images <= len(self._job.images)

    async def _complete(self, timing: Timing | None = None, **said: Any) -> None:
        await self._write(Complete(self._actor, len(self._job.images), timing, **said))

    async def _take(self, event: EngineEvent, plan: Plan, mark: RunMark) -> None:
        match event:
            case Progress():
                await self._report_progress(self._job.id, job_progress(event))
            case ImageReady() | LatentReady():
                began = time.perf_counter()
                await self._store(event, plan)
                self._store_s += time.perf_counter() - began
            case Finished(stage_s=stage_s, rows_per_call=rows, steps=steps):
                stages = {**stage_s, "store": round(self._store_s, 4)}
                timing = Timing(stage_s=stages, rows_per_call=rows, steps=steps or None)
                said = {"beside": event.beside or None, "notes": event.notes or None}
                await self._complete(timing if stage_s else None, **said)
            case Errored(error=ModelsUnavailable() | MachineFailed() as error):
                raise error
            case Errored(error=DeviceFailed() | OutOfMemory(beside_others=True) as error):
                await self._suspect(str(error), mark, code_of(error))
            case Errored(error=error):
                await self._fail(str(error), final=True, code=code_of(error))

    async def _store(self, result: ImageReady | LatentReady, plan: Plan) -> None:
        """What an earlier attempt has stored is not stored again."""
        if self._job.image(result.index) is not None:
            return
        file = await asyncio.to_thread(planned_file, plan, result)
        key = file_key(self._job.id, self._job.attempts, file_name(result.index, file.media_type))
        await self._reach_store(partial(self._images.put, key, file.content))
        image = ImageStored(
            index=result.index,
            attempt=self._job.attempts,
            key=key,
            size_bytes=len(file.content),
            digest=f"sha256:{hashlib.sha256(file.content).hexdigest()}",
            width=file.width,
            height=file.height,
            seed=result.seed,
            media_type=file.media_type,
            node=result.node_id,
        )
        await self._write(StoreImage(self._actor, image))

    async def _reach_store(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try again while the store is not available, until the lease ends at the deadline."""
        return await keep_trying(
            call,
            on=ImageStoreUnavailable,
            first_pause_s=0.2,
            longest_pause_s=self._limits.longest_store_pause_s,
            fields={"action": "reach_store", "job_id": self._job.id},
        )

    async def _fail(self, message: str, *, final: bool = False, **more: Any) -> None:
        await self._write(FailAttempt(self._actor, message, final=final, **more))

    async def _write(self, command: Command) -> None:
        outcome = await self._writer.execute(command, self._job)
        assert outcome.job is not None
        self._job = outcome.job

    async def _hold_lease(self, lease: Lease, is_silent: Callable[[], bool]) -> Loss:
        return await lease.keep(self._job, is_silent=is_silent, seconds_left=self._seconds_left)

    def _seconds_left(self) -> float:
        return (self._job.deadline - self._now()).total_seconds()

    async def _give_up(self, loss: Loss, mark: RunMark) -> None:
        logger.info("gave up", extra={"action": "give_up", "job_id": self._job.id, "why": loss})
        match loss:
            case Loss.NOT_MINE:
                self._job = await self._writer.load(self._job.id) or self._job
            case Loss.CANCELLED:
                await self._write(ConfirmCancel(self._actor))
            case Loss.DEADLINE:
                text = timed_out_message(self._job)
                await self._fail(text, final=True, code=FailureCode.TIMEOUT)
            case Loss.SILENT:
                await self._engine.kill()
                text = f"The engine did not answer for {self._heartbeat.patience_s:.3g} s."
                await self._break_off(text, mark)
