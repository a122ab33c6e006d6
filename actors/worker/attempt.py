"""Attempt: runs a job once.

Three tasks run at the same time. `_work` passes the job to the engine and handles its events,
`Heartbeat` checks that the engine answers, and `_keep_lease` renews the queue entry until the
engine is silent or the job must stop for another reason. The first task that ends decides what
happens to the job.

If an engine dies, the `RunMark` of each of its jobs states whether the device worked for the job.
Such a job is a suspect (`Blame.SUSPECT`). Any other job is a bystander (`Blame.BYSTANDER`), and its
attempt does not count. The next attempt at a suspect is exclusive: for a limited time, no other job
is on the engine. If the engine dies in this time, the job is blamed. So only the job that kills its
engine is blamed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from pydantic import SecretStr

from actors.worker.engine_process import (
    EngineDied,
    EngineLost,
    RemoteEngine,
    RunEvent,
    RunRequest,
)
from actors.worker.media_file import read_media
from actors.worker.result_file import (
    AS_PNG,
    FileReady,
    ImageEncoding,
    ResultFile,
    encode_result,
)
from actors.worker.run_mark import RunMark
from engine.interface import (
    MODEL_NOT_SUPPORTED,
    EngineError,
    Errored,
    ErroredNode,
    Finished,
    GraphInvalid,
    ImageReady,
    ImageSettings,
    LatentReady,
    Limits,
    ModelsFolder,
    ModelsUnavailable,
    ParametersInvalid,
    Progress,
    ResultReady,
    RunOptions,
    TextReady,
    is_machine_error,
    pnginfo_of,
)
from events.bus.queues import QueueEntry
from events.decisions import Command, Complete, ConfirmCancel, FailAttempt, StoreImage
from events.job import Job, sizes_of, timed_out_message
from events.job_progress import JobProgress
from events.log import JobWriter, RetryingLog
from events.result import FailureCode
from events.retry import keep_trying
from events.types import (
    Blame,
    Compiled,
    FailedNode,
    Flavour,
    ImageStored,
    Infotext,
    Poster,
    Submitted,
    Timing,
)
from settings.constant import constant
from settings.version import VERSION
from storage.file_names import file_key, file_name, poster_name
from storage.images import ImageNotFound, ImageStore, ImageStoreUnavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")


ReportProgress: TypeAlias = Callable[[str, JobProgress], Awaitable[None]]
"""Publishes the progress of the job with the given id. Raises nothing."""


def job_progress(progress: Progress) -> JobProgress:
    return JobProgress(
        done=progress.done,
        total=max(progress.total, 1),
        node=progress.node_id or None,
        class_type=progress.class_type or None,
        rows=progress.rows,
        images=progress.images,
        preview=progress.preview,
    )


class StopReason(StrEnum):
    """Why a lease was not renewed."""

    NOT_MINE = "another actor has the job, or it has ended"
    CANCELLED = "the caller requested the cancellation"
    DEADLINE = "the deadline of the job has passed"
    SILENT = "the engine does not answer"


_LEASE_RENEW_S = constant("LEASE_RENEW_S", 5.0)
"""Seconds between two renewals of the lease of a running job."""
_MAX_UNTAKEN = 4
"""Number of unstored results at which the engine pauses a run."""


_MOST_INLINE_TEXT_BYTES = 2**16
"""The largest size of all texts of a job that are in its events."""


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    silence_s: float
    """Seconds for which the engine may stay silent after the stated time for its present work."""
    start_s: float = 0.0
    """Additional seconds for the first answer, because the engine may have to start."""
    heartbeat_s: float = 1.0
    longest_store_pause_s: float = 10.0
    longest_machine_pause_s: float = 60.0
    """Longest pause in seconds before an entry is put back on the queue after its machine failed.
    """
    lease_renew_s: float = _LEASE_RENEW_S


class Attempt:
    """One attempt at a job, after `actor` has appended `Started`."""

    def __init__(
        self,
        job: Job,
        entry: QueueEntry,
        *,
        actor: str,
        log: RetryingLog,
        engine: RemoteEngine,
        images: ImageStore,
        models: ModelsFolder | None,
        graph_limits: Limits,
        report_progress: ReportProgress,
        limits: AttemptLimits,
        now: Callable[[], datetime],
        span_link: str = "",
        extra_data: SecretStr | None = None,
    ) -> None:
        """Traces link to the span of this attempt with `span_link`. `models` has the files whose
        hashes are in the metadata of images. It is None if the engine returns finished files.
        `extra_data` is JSON for a ComfyUI server.
        """
        self._job = job
        self.entry = entry
        """The latest delivery of the queue entry."""
        self._actor = actor
        self._log = log
        self._writer = JobWriter(log)
        self._engine = engine
        self._images = images
        self._models = models
        self._graph_limits = graph_limits
        self._report_progress = report_progress
        self._limits = limits
        self._now = now
        self._span_link = span_link
        self._extra_data = extra_data
        self._store_s = 0.0
        self._heartbeat = Heartbeat(
            engine,
            period_s=limits.heartbeat_s,
            silence_s=limits.silence_s,
            start_s=limits.start_s,
        )

    async def run(self) -> Job:
        """Run the attempt. Returns the job.

        The job needs another attempt if it has not ended and no other actor has started it.
        """
        with RunMark.new() as self._mark:
            tasks = {
                asyncio.create_task(self._work(), name="work"),
                asyncio.create_task(self._keep_lease(), name="lease"),
                asyncio.create_task(self._heartbeat.listen(), name="heartbeat"),
            }
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                await self._on_task_end(task)
        return self._job

    async def _on_task_end(self, task: asyncio.Task[StopReason | None]) -> None:
        try:
            reason = task.result()
        except Exception as error:
            if not is_machine_error(error):
                raise
            await self._fail_without_blame(error)
        else:
            if reason is not None:
                await self._stop(reason)

    async def _work(self) -> None:
        try:
            if self._has_every_image():
                await self._complete()
                return
            # If the models folder cannot be read, the job is not to blame, so the run is repeated.
            await keep_trying(
                self._run,
                on=ModelsUnavailable,
                first_pause_s=0.2,
                longest_pause_s=self._limits.longest_store_pause_s,
                fields={"action": "read_models", "job_id": self._job.id},
            )
        except _InputFileGone as error:
            await self._fail(str(error), final=True, code=FailureCode.INVALID_INPUT)
        except EngineError as error:
            if error.code == "machine_failed":
                raise  # `_on_task_end` handles this error.
            await self._fail(
                str(error), final=True, code=code_of(error), node=failed_node(Errored(error))
            )
        except EngineLost as error:
            await self._fail(str(error), blame=Blame.BYSTANDER)
        except EngineDied as error:
            await self._fail_after_engine_death(str(error))

    async def _run(self) -> None:
        """Raises EngineError, EngineDied, _InputFileGone."""
        plan = await asyncio.to_thread(plan_of, self._job, self._models, self._graph_limits)
        request = RunRequest(
            self._job.id,
            self._job.attempts,
            plan.prompt,
            self._mark.path,
            RunOptions(
                limits=plan.limits,
                first_index=plan.first_index,
                input_files=await self._read_input_files(),
                is_unbatched=bool(self._job.submitted.alone),
                is_exclusive=self._job.is_exclusive,
                has_previews=bool(self._job.submitted.preview),
                max_untaken=_MAX_UNTAKEN,
                span_link=self._span_link,
            ),
            sizes_of(self._job.submitted.input_files),
            plan.extra_pnginfo,
            self._extra_data,
        )
        async with aclosing(self._engine.run(request)) as events:
            async for event in events:
                await self._handle_event(event, plan)
                if self._job.end is not None:
                    return

    async def _fail_after_engine_death(self, message: str) -> None:
        if self._mark.is_active:
            await self._fail_as_suspect(message)
        else:
            await self._fail(message, blame=Blame.BYSTANDER)

    async def _fail_as_suspect(self, message: str, code: str | None = None) -> None:
        joined = self._mark.may_be_joined
        await self._fail(message, blame=Blame.SUSPECT, code=code, is_joined=joined)

    async def _fail_without_blame(self, error: Exception) -> None:
        """Fail the attempt without blame, because the machine failed.

        Afterwards, keep the lease for a pause, which doubles with each attempt as a bystander.
        """
        fields = {"action": "machine_failed", "job_id": self._job.id}
        logger.error("the machine failed", exc_info=error, extra=fields)
        text = str(error) if isinstance(error, EngineError) else f"The machine failed: {error}"
        await self._fail(text, blame=Blame.BYSTANDER)
        if self._job.end is not None:
            return
        doubled = 2.0 ** min(self._job.bystander_attempts - 1, 30)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(doubled, self._limits.longest_machine_pause_s)):
                # The heartbeat has ended, so the engine would seem to be silent.
                await self._stop(await self._keep_lease(must_answer=False))

    async def _read_input_files(self) -> dict[str, bytes]:
        """Raises _InputFileGone."""
        files = self._job.submitted.input_files or {}
        return {name: await self._read_input_file(name, file.key) for name, file in files.items()}

    async def _read_input_file(self, name: str, key: str) -> bytes:
        try:
            return await self._reach_store(partial(self._images.get, key))
        except ImageNotFound as error:
            gone = (
                f"The input file {name!r} does not exist any more. Upload it again and submit a "
                "new job."
            )
            raise _InputFileGone(gone) from error

    def _has_every_image(self) -> bool:
        """Return whether earlier attempts have stored all images."""
        return 0 < self._job.submitted.images <= len(self._job.images)

    async def _complete(
        self, timing: Timing | None = None, *, notes: Sequence[str] = (), **more: Any
    ) -> None:
        """Complete the job with `notes`, after those of the images of all attempts."""
        all_notes = tuple(dict.fromkeys((*self._stored_notes(), *notes)))
        images = len(self._job.images)
        await self._write(Complete(self._actor, images, timing, notes=all_notes or None, **more))

    def _stored_notes(self) -> list[str]:
        return [note for image in self._job.images for note in image.notes or ()]

    async def _handle_event(self, event: RunEvent, plan: Plan) -> None:
        match event:
            case Progress():
                await self._report_progress(self._job.id, job_progress(event))
            case ImageReady() | LatentReady() | TextReady() | FileReady():
                began = time.perf_counter()
                await self._store(event, plan)
                self._store_s += time.perf_counter() - began
            case Finished(stage_s=stage_s, rows_per_call=rows, steps=steps):
                stages = {**stage_s, "store": round(self._store_s, 4)}
                timing = Timing(stage_s=stages, rows_per_call=rows, steps=steps or None)
                beside = event.runs_in_shared_calls or None
                await self._complete(timing if stage_s else None, beside=beside, notes=event.notes)
            case Errored():
                await self._handle_error(event)

    async def _handle_error(self, event: Errored) -> None:
        error = event.error
        if error.code in ("models_unreadable", "machine_failed"):
            raise error
        if error.code == "device_failed" or error.beside_others:
            await self._fail_as_suspect(str(error), code_of(error))
        else:
            node = failed_node(event)
            await self._fail(str(error), final=True, code=code_of(error), node=node)

    async def _store(self, result: ResultReady | FileReady, plan: Plan) -> None:
        if self._job.image(result.index) is not None:
            return
        text = plan_text(plan, result)
        file = await asyncio.to_thread(encode_result, result, text, plan.encoding)
        media = await read_media(file.content, file.media_type)
        poster = None
        if media.poster is not None:
            poster = Poster(**await self._put(poster_name(result.index), media.poster))
        # A later attempt can learn these notes only from the image, which it does not make again.
        notes = () if isinstance(result, FileReady) else result.notes
        stored_notes = self._stored_notes()
        image = ImageStored(
            **await self._put(file_name(result.index, file.media_type), file.content),
            index=result.index,
            attempt=self._job.attempts,
            width=file.width or media.width,
            height=file.height or media.height,
            seed=result.seed,
            media_type=file.media_type,
            node=result.node_id,
            duration_s=media.duration_s,
            poster=poster,
            text=self._inline_text(file),
            notes=tuple(note for note in notes if note not in stored_notes) or None,
        )
        await self._write(StoreImage(self._actor, image))

    async def _put(self, name: str, content: bytes) -> dict[str, Any]:
        """Store a file. Returns its members in the event."""
        key = file_key(self._job.id, self._job.attempts, name)
        await self._reach_store(partial(self._images.put, key, content))
        digest = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
        return {"key": key, "size_bytes": len(content), "digest": f"sha256:{digest}"}

    def _inline_text(self, file: ResultFile) -> str | None:
        """Return the text of a short text file, unless the texts of the job are too long together.

        They are in the row of the job, and in every answer about it.
        """
        if file.text is None:
            return None
        before = sum(len((image.text or "").encode()) for image in self._job.images)
        is_room = before + len(file.content) <= _MOST_INLINE_TEXT_BYTES
        return file.text if is_room else None

    async def _reach_store(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat `call` while the store is not available.

        At the deadline of the job, the lease task ends, and so this task is cancelled.
        """
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

    async def _keep_lease(self, *, must_answer: bool = True) -> StopReason:
        """Renew the queue entry until there is a reason to stop. Returns the reason.

        A lease does not exclude other actors, because an actor with an earlier delivery can renew
        or acknowledge a later delivery. So the last event of the job is read before each renewal
        except the first, when the job has just been read. This read shows whether the job has
        ended, whether another actor has started it, and whether its cancellation is requested. If
        `must_answer`, a silent engine is also a reason to stop.
        """
        checked, is_due = self._job, False
        while True:
            if self._seconds_left() <= 0:
                return StopReason.DEADLINE
            if must_answer and self._heartbeat.is_silent():
                return StopReason.SILENT
            started = time.monotonic()
            if is_due:
                found = await self._read_again(checked)
                if isinstance(found, StopReason):
                    return found
                checked = found
            is_due = True
            await self.entry.renew()
            pause_s = started + self._limits.lease_renew_s - time.monotonic()
            await asyncio.sleep(max(0, min(pause_s, self._seconds_left())))

    async def _read_again(self, before: Job) -> Job | StopReason:
        """Return the current job, or the reason to stop."""
        last = await self._log.last(before.id)
        if last is None:
            return StopReason.NOT_MINE
        if last.version == before.version:
            return before
        job = await self._writer.load(before.id)
        if job is None or job.end is not None or job.actor != self._actor:
            return StopReason.NOT_MINE
        return StopReason.CANCELLED if job.cancel_requested else job

    def _seconds_left(self) -> float:
        return (self._job.deadline - self._now()).total_seconds()

    async def _stop(self, reason: StopReason) -> None:
        logger.info(
            "an attempt is given up",
            extra={"action": "give_up", "job_id": self._job.id, "why": reason},
        )
        match reason:
            case StopReason.NOT_MINE:
                self._job = await self._writer.load(self._job.id) or self._job
            case StopReason.CANCELLED:
                await self._write(ConfirmCancel(self._actor))
            case StopReason.DEADLINE:
                text = timed_out_message(self._job)
                await self._fail(text, final=True, code=FailureCode.TIMEOUT)
            case StopReason.SILENT:
                await self._engine.kill()
                text = f"The engine did not answer for {self._heartbeat.patience_s:.3g} s."
                await self._fail_after_engine_death(text)


class _InputFileGone(Exception):
    """An input file of the job no longer exists."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The graph of a job with its limits, and the metadata and encoding of the result files."""

    prompt: Any
    """Node graph. It is not validated yet."""
    first_index: Mapping[str, int] | None
    """Index of the first image of each output node, or None to number the images in the order of
    the graph.
    """
    extra_pnginfo: Mapping[str, Any]
    limits: Limits
    """Limits with which the job was accepted."""
    describe: Callable[[int], str] | None = None
    """Returns the WebUI's text for the image with the given index. None if images have no such
    text.
    """
    is_bare: bool = False
    """Whether the files contain no metadata."""
    encoding: ImageEncoding = AS_PNG


def plan_of(job: Job, models: ModelsFolder | None, limits: Limits) -> Plan:
    """Make the plan of a job of either flavour.

    The recorded terms of the job replace those values of `limits` that terms have. Raises
    EngineError for invalid metadata.
    """
    submitted = job.submitted
    prompt, first_index = submitted.graph, None
    if submitted.compiled is not None:
        stored = {image.index for image in job.images}
        prompt, first_index = _without_images(submitted.compiled, stored)
    is_workflow = submitted.flavour is Flavour.WORKFLOW
    return Plan(
        prompt,
        first_index,
        pnginfo_of(submitted.request.get("extra_data")) if is_workflow else {},
        _limits_of(job, limits),
        describe=_describe(submitted, models),
        is_bare=bool(submitted.bare),
        encoding=ImageEncoding.asked(submitted.image_format, submitted.image_quality),
    )


def _without_images(
    compiled: Compiled, stored: Collection[int]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the graph without the nodes that only the images in `stored` need, and the indexes of
    the other images. Earlier attempts have stored the images in `stored`.
    """
    graph = compiled.graph
    first_index = {id: index for id, index in compiled.first_index.items() if index not in stored}
    if len(first_index) == len(compiled.first_index):
        return graph, first_index
    needed = set[str]()
    pending = list(first_index)
    while pending:
        node_id = pending.pop()
        if node_id not in needed:
            needed.add(node_id)
            values = graph[node_id]["inputs"].values()
            pending += [value[0] for value in values if isinstance(value, list)]
    return {id: node for id, node in graph.items() if id in needed}, first_index


def _describe(submitted: Submitted, models: ModelsFolder | None) -> Callable[[int], str] | None:
    compiled = submitted.compiled
    if compiled is None or compiled.infotext is None:
        return None
    recorded: Infotext = compiled.infotext
    settings = ImageSettings(recorded.settings, recorded.seeds, recorded.variation_seeds)
    return settings.describe(submitted.request, compiled.graph, models, VERSION)


def _limits_of(job: Job, limits: Limits) -> Limits:
    terms = job.submitted.terms
    if terms is None:
        return limits
    return replace(
        limits,
        max_pixels=terms.max_pixels,
        max_steps=terms.max_steps,
        max_cost=terms.max_cost,
    )


def plan_text(plan: Plan, result: ResultReady | FileReady) -> dict[str, str]:
    """Return the metadata of a file: the graph and additional data of the front end, as in ComfyUI,
    and the WebUI's `parameters` in the diffusion flavour. The metadata of a bare plan is empty.
    """
    if plan.is_bare:
        return {}
    text = {"prompt": json.dumps(plan.prompt)}
    if plan.describe is not None:
        text["parameters"] = plan.describe(result.index)
    if result.seed is not None:
        text["seed"] = str(result.seed)
    return text | {name: json.dumps(value) for name, value in plan.extra_pnginfo.items()}


class Heartbeat:
    """Checks every `period_s` seconds whether the engine of a run answers.

    Each answer states for how many seconds the present work of the engine may continue, because the
    engine cannot always answer during a load. The engine may be silent for this time plus
    `silence_s`. Before its first answer it may be silent for `start_s` plus `silence_s`.
    """

    def __init__(
        self, engine: RemoteEngine, *, period_s: float, silence_s: float, start_s: float
    ) -> None:
        self._engine = engine
        self._period_s = period_s
        self._silence_s = silence_s
        self._heard_at = time.monotonic()
        self._may_work_s = start_s

    @property
    def patience_s(self) -> float:
        """Seconds after its last answer for which the engine may be silent."""
        return self._may_work_s + self._silence_s

    def is_silent(self) -> bool:
        return time.monotonic() - self._heard_at > self.patience_s

    async def listen(self) -> None:
        """Check the engine until cancelled."""
        while True:
            # The error EngineDied is ignored here, because `_work` gets it with more details.
            with suppress(EngineDied):
                state = await self._engine.check()
                self._heard_at, self._may_work_s = time.monotonic(), state.seconds_left
            await asyncio.sleep(self._period_s)


_OF_MODELS = {"value_not_in_list", MODEL_NOT_SUPPORTED}


def code_of(error: EngineError) -> FailureCode:
    """Return the failure code for an error of the engine.

    All models of a job exist when it is accepted, and can be used. So these errors mean that a
    model was removed or replaced after the acceptance.
    """
    if _OF_MODELS & _types(error):
        return FailureCode.MODEL_UNAVAILABLE
    match error.code:
        case "invalid_input" | "model_unavailable" | "out_of_memory" | "node_failed" as code:
            return FailureCode(code)
        case _:
            return FailureCode.ENGINE_FAILED


def failed_node(event: Errored) -> FailedNode | None:
    """Return the node that failed: the one that raised, or the first one of an invalid graph."""
    match event:
        case Errored(node=ErroredNode() as node):
            return FailedNode(id=node.node_id, class_type=node.class_type, exception=node.exception)
        case Errored(error=GraphInvalid(node_errors=nodes) as error) if nodes:
            node_id, found = next(iter(nodes.items()))
            class_type = str(found.get("class_type", ""))
            exception = type(error).__name__
            return FailedNode(id=node_id, class_type=class_type, exception=exception)
        case _:
            return None


def _types(error: EngineError) -> set[str]:
    """Return the types of the errors of single fields or node inputs."""
    match error:
        case ParametersInvalid(fields=fields):
            return {each.type for each in fields}
        case GraphInvalid(node_errors=nodes):
            return {each["type"] for node in nodes.values() for each in node["errors"]}
        case _:
            return set()
