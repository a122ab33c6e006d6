"""Accepts generate requests: checks a request, computes its cost, and appends its job to the log.

`Acceptance.accept` performs all steps. The methods below it are in the order of the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic_core import to_json

from engine.interface import Catalogue, EngineError, GraphInvalid
from events.decisions import Submit
from events.errors import AddressNotAllowed, LogFull, OutcomeUnknown
from events.ids import derived_id, lane_of, new_id
from events.job import Job, sizes_of
from events.log import utc_now
from events.queue import JobQueue
from events.store.records import ApiKey, Endpoint
from events.types import InputFile, JobCost, Submitted
from serve_app.acceptance.abandoned_jobs import AbandonedJobs
from serve_app.acceptance.addresses import Addresses, require_images
from serve_app.acceptance.compilation import CompiledRequest, RequestCompiler, compiler_for
from serve_app.acceptance.inline_images import InlineImageStore
from serve_app.acceptance.request import GenerateRequest, recorded_image_format
from serve_app.access.owner_limits import NoteStored, OpenJobs, OwnedBytes
from serve_app.checks import Checks
from serve_app.endpoints.cache import EndpointCache, job_timeout_s, terms_of
from serve_app.jobs import Jobs
from serve_app.refusals import (
    IdempotencyConflict,
    ImageNotFetched,
    InvalidImage,
    RequestRefused,
)
from settings.constant import constant
from settings.graph import GraphSettings
from telemetry.exporter import SpanExporter
from telemetry.logs import about
from telemetry.spans import accept_spans

if TYPE_CHECKING:
    from events.store.uploads import Uploads

logger = logging.getLogger(__name__)

T = TypeVar("T")

_REFUSALS = (RequestRefused, EngineError, AddressNotAllowed, LogFull)
LOG_FULL_RATIO = constant("LOG_FULL_RATIO", 0.85)
"""The used fraction of the log above which new jobs are refused."""
_MAX_EVENT_BYTES = 2 * 1024**2 - 8 * 1024
"""The largest size of an event in bytes, without its envelope and headers. NATS is configured to
accept messages of up to 2 MiB.
"""
_LISTED_NAMES = 20
"""The largest number of the owner's newest uploads that are read for an error about a missing
upload.
"""


class LogHealth(Protocol):
    """The health of the event log. The values may be some seconds old."""

    async def fill(self) -> float:
        """Return the used fraction of the log's `max_bytes`, 0 to 1. Raises LogUnavailable."""

    async def ready(self) -> str | None:
        """Return None if the log accepts writes, or the reason why it does not. Never raises."""


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A compiled request whose uploads are not yet resolved."""

    endpoint: Endpoint
    compiler: RequestCompiler
    compiled: CompiledRequest
    presigned_uploads: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class _SubmittedEvent:
    """The event of an accepted request, before the event is stored."""

    submitted: Submitted
    size_bytes: int
    """The size of the event in the log, without its envelope."""


class Acceptance:
    def __init__(
        self,
        *,
        jobs: Jobs,
        queue: JobQueue,
        health: LogHealth,
        endpoints: EndpointCache,
        addresses: Addresses,
        checks: Checks,
        catalogue: Catalogue,
        graph_settings: GraphSettings,
        default_checkpoint: str | None,
        uploads: Uploads,
        inline_images: InlineImageStore,
        open_jobs: OpenJobs,
        owned_bytes: OwnedBytes,
        abandoned_jobs: AbandonedJobs,
        job_timeout_s: float,
        secret: bytes,
        exporter: SpanExporter | None = None,
    ) -> None:
        """`default_checkpoint` is the checkpoint of the default endpoint. Job ids are derived with
        `secret`.

        `job_timeout_s` is the longest time limit of a job in seconds. `exporter` receives the spans
        of accepted requests.
        """
        self._jobs = jobs
        self._queue = queue
        self._health = health
        self.endpoints = endpoints
        self._addresses = addresses
        self._checks = checks
        self._catalogue = catalogue
        self._graph_settings = graph_settings
        self._default_checkpoint = default_checkpoint
        self._uploads = uploads
        self._inline_images = inline_images
        self.open_jobs = open_jobs
        self.owned_bytes = owned_bytes
        self._abandoned_jobs = abandoned_jobs
        self._job_timeout_s = job_timeout_s
        self._secret = secret
        self._exporter = exporter
        self._appends: set[asyncio.Task[Job]] = set()

    async def accept(self, request: GenerateRequest, *, began: datetime | None = None) -> Job:
        """Return the job of a request: a new job, or the earlier job if the request is a repeat.

        A repeat returns its earlier job even if the repeat would be refused now. Normally `_append`
        finds that job. The job is read separately only after a refusal, and before inline images
        are stored.

        `began` is the time at which the HTTP request began. The span of the request begins at this
        time.

        Raises RequestRefused, GraphInvalid, ParametersInvalid, ModelsUnavailable,
        AddressNotAllowed, LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout,
        DatabaseUnavailable.
        """
        job_id = self._job_id(request)
        try:
            parsed = await self._compile(request)
            job = None
            if request.is_repeatable and parsed.compiled.inline_images:
                job = await self._jobs.current(job_id)
            if job is None:
                event = await self._build_event(request, parsed)
                job = await self._store(job_id, event, request)
        except _REFUSALS:
            repeatable = request.is_repeatable
            earlier = await self._jobs.current(job_id) if repeatable else None
            if earlier is None or earlier.submitted.owner != request.key.owner:
                raise  # A refusal must not reveal the ids of other owners.
            job = earlier
        if job.submitted.owner != request.key.owner:
            raise IdempotencyConflict("This id belongs to another request. Choose another id.")
        if job.erased:
            raise IdempotencyConflict("The job of this Idempotency-Key or id was erased.")
        if job.submitted.fingerprint != request.fingerprint:
            raise IdempotencyConflict
        if self._exporter is not None and began is not None and job.submitted_at >= began:
            self._exporter.add(accept_spans(job, began=began, ended=utc_now()))
        return job

    async def check(self, request: GenerateRequest) -> Submitted:
        """Return the event that `accept` would store.

        Inline images are stored as uploads. Raises the errors of `accept`, except errors of storing
        the job.
        """
        return (await self._build_event(request, await self._compile(request))).submitted

    def _job_id(self, request: GenerateRequest) -> str:
        if request.job_id is not None:
            return request.job_id
        if request.idempotency_key is None:
            return new_id()
        return derived_id(self._secret, request.key.owner, request.idempotency_key)

    async def _compile(self, request: GenerateRequest) -> _Parsed:
        """Check the endpoint and the URLs, then compile the body.

        Also check that the endpoint's queue and the log have room, before inline images are stored.
        """
        endpoint = await self.endpoints.for_job(request.endpoint, request.key)
        if request.callback_url is not None:
            await self._addresses.require_callback(request.callback_url, request.key)
        content, presigned_uploads = await self._addresses.presigned_uploads(
            request.content, request.key
        )
        compiler = self._compiler(endpoint, request.key)
        compile_body = partial(compiler.compile, excess_bytes=request.excess_bytes)
        compiled = await self._run(request, compile_body, request.flavour, content)
        require_images(presigned_uploads, compiled.images)
        await self._require_room(endpoint)
        return _Parsed(endpoint, compiler, compiled, presigned_uploads)

    def _compiler(self, endpoint: Endpoint, key: ApiKey) -> RequestCompiler:
        return compiler_for(
            endpoint,
            self._catalogue,
            self._graph_settings,
            default_checkpoint=self._default_checkpoint,
            max_cost=key.limits.max_cost or 0.0,
        )

    def checkpoint(self, endpoint: Endpoint, key: ApiKey) -> str | None:
        """Return the checkpoint for diffusion requests that name no checkpoint.

        Returns None if there are no checkpoints. May wait for the models folder. Raises
        ModelsUnavailable.
        """
        return self._compiler(endpoint, key).checkpoint()

    def max_steps(self, endpoint: Endpoint) -> int:
        """Return the largest number of steps that a job of the endpoint may have."""
        return int(endpoint.limits(self._graph_settings)["max_steps"])

    def _run(
        self, request: GenerateRequest, function: Callable[..., T], *args: object
    ) -> Awaitable[T]:
        """Run a check of the request. A slow check runs in a thread."""
        is_quick = request.is_quick_to_check
        return self._checks.run(request.key.owner, function, *args, is_quick=is_quick)

    async def _require_room(self, endpoint: Endpoint) -> None:
        """Raises QueueFull, LogFull, LogUnavailable."""
        if (queued := await self._queue.depth(endpoint.id)) >= endpoint.max_queued:
            raise await self.endpoints.queue_full(endpoint, queued)
        if await self._health.fill() >= LOG_FULL_RATIO:
            raise LogFull

    async def _build_event(self, request: GenerateRequest, parsed: _Parsed) -> _SubmittedEvent:
        """Store the inline images, find the input files, and return the event to append."""
        endpoint, compiler = parsed.endpoint, parsed.compiler
        compiled = await self._with_stored_images(request, compiler, parsed.compiled)
        input_files = await self._input_files(request, compiler, compiled)
        if input_files is not None:
            sizes = sizes_of(input_files)
            compiled = await self._run(request, compiler.with_cost, compiled, sizes)
        is_bare = request.key.limits.embed_metadata is False
        graph = compiled.compiled
        if graph is not None and is_bare:
            graph = graph.model_copy(update={"infotext": None})
        submitted = Submitted(
            flavour=request.flavour,
            owner=request.key.owner,
            key_id=request.key.id,
            endpoint=endpoint.id,
            lane=lane_of(request.key.owner),
            request=compiled.request,
            compiled=graph,
            fingerprint=request.fingerprint,
            images=compiled.images,
            callback_url=request.callback_url,
            callback_events=request.callback_events,
            deadline_s=job_timeout_s(endpoint, self._job_timeout_s),
            input_files=input_files,
            alone=request.alone or None,
            preview=request.preview or None,
            bare=True if is_bare else None,
            **recorded_image_format(request),
            cost=JobCost(**asdict(compiled.graph.cost)),
            terms=terms_of(endpoint, self._graph_settings),
            weight=request.key.limits.weight,
            priority=request.key.limits.priority,
            image_puts=parsed.presigned_uploads,
            client_id=request.client_id,
        )
        size_bytes = len(to_json(submitted, exclude_none=True, inf_nan_mode="null"))
        if size_bytes > _MAX_EVENT_BYTES:
            details = (
                f"the request has {size_bytes} bytes with its graph, but at most "
                f"{_MAX_EVENT_BYTES} are allowed"
            )
            raise GraphInvalid("too_large", "The request is too large", details)
        return _SubmittedEvent(submitted, size_bytes)

    async def _with_stored_images(
        self, request: GenerateRequest, compiler: RequestCompiler, compiled: CompiledRequest
    ) -> CompiledRequest:
        """Store the inline images as uploads, one by one, so that only one decoded image is in
        memory.

        Raises GraphInvalid or ParametersInvalid for an invalid image, TooManyUploadBytes, NoTurn,
        DatabaseUnavailable, ImageStoreUnavailable.
        """
        if not compiled.inline_images:
            return compiled
        names: dict[str, str] = {}
        give_up_at = self._inline_images.give_up_at()
        for inline in compiled.inline_images:
            try:
                name = await self._inline_images.name(
                    request.key.owner, inline.image, give_up_at=give_up_at
                )
            except (InvalidImage, ImageNotFetched) as error:
                raise compiler.refusal_of(compiled, inline, str(error)) from error
            names[inline.placeholder] = name
        return compiler.with_uploads(compiled, names)

    async def _input_files(
        self, request: GenerateRequest, compiler: RequestCompiler, compiled: CompiledRequest
    ) -> dict[str, InputFile] | None:
        """Return the input files of the request by upload name; None if the request names no
        uploads.

        Raises GraphInvalid or ParametersInvalid if the owner has no upload of a name.
        """
        if not compiled.input_files:
            return None
        owner, uploads = request.key.owner, self._uploads
        found = await uploads.use(owner, compiled.input_files, utc_now())
        missing = set(compiled.input_files) - found.keys()
        if missing:
            newest = await uploads.page(owner, limit=_LISTED_NAMES)
            listed = dict.fromkeys([*found, *(upload.name for upload in newest)])
            known = [name for name in listed if name not in missing]
            await self._run(request, compiler.require_files, compiled, known)
        return {
            name: InputFile(
                key=upload.storage_key,
                digest=upload.digest,
                width=upload.width,
                height=upload.height,
            )
            for name, upload in found.items()
        }

    async def _store(self, job_id: str, event: _SubmittedEvent, request: GenerateRequest) -> Job:
        """Append the job, and return it. A repeat gets the job that was stored before.

        If the caller disconnects, the handler of the request is cancelled, but the append
        continues. The stored job is then cancelled if the request is not repeatable.
        """
        append = asyncio.create_task(self._append(job_id, event, request), name=f"append {job_id}")
        self._appends.add(append)
        append.add_done_callback(self._appends.discard)
        try:
            return await asyncio.shield(append)
        except asyncio.CancelledError:
            if not request.is_repeatable:
                append.add_done_callback(partial(self._cancel_stored, job_id))
            raise

    async def _append(self, job_id: str, event: _SubmittedEvent, request: GenerateRequest) -> Job:
        try:
            async with self._reserved(request.key, event) as note_stored:
                if request.is_repeatable:
                    # The job may be moved from the log to its history object at any time. Because
                    # of this read directly before the append, either the read or the append finds
                    # the job.
                    earlier = await self._jobs.ended(job_id)
                    if earlier is not None:
                        return earlier
                outcome = await self._jobs.writer.submit(
                    job_id, Submit(event.submitted), traceparent=request.traceparent
                )
                # The job was added by this or an earlier submission.
                assert outcome.job is not None
                if outcome.added:
                    note_stored(outcome.job.position)
        except OutcomeUnknown as error:
            if request.is_repeatable:
                raise
            self._abandoned_jobs.cancel(job_id)
            message = (
                "The event log did not answer in time. If the job was stored, it is cancelled."
            )
            raise OutcomeUnknown(message) from error
        if outcome.added:
            fields = {"action": "accept", "job_id": job_id, "flavour": request.flavour}
            with about(outcome.job):
                logger.info("job accepted", extra=fields)
        return outcome.job

    @asynccontextmanager
    async def _reserved(self, key: ApiKey, event: _SubmittedEvent) -> AsyncGenerator[NoteStored]:
        """Reserve room for the job in its owner's limits.

        The caller must call the yielded function after the append.
        """
        cost = event.submitted.cost
        result_bytes = 0 if cost is None else cost.result_bytes
        async with (
            self.open_jobs.place(key) as note_job,
            self.owned_bytes.room(
                key.owner, event.size_bytes, result_bytes=result_bytes
            ) as note_bytes,
        ):

            def note_stored(position: int) -> None:
                note_job(position)
                note_bytes(position)

            yield note_stored

    def cancel_abandoned(self, job_id: str) -> None:
        """Cancel a job whose caller cannot find the job. Returns at once."""
        self._abandoned_jobs.cancel(job_id)

    def _cancel_stored(self, job_id: str, append: asyncio.Task[Job]) -> None:
        """Cancel a stored job whose caller disconnected. `_append` handles an unknown outcome."""
        if not append.cancelled() and append.exception() is None:
            self._abandoned_jobs.cancel(job_id)

    async def join(self) -> None:
        """Wait for all appends in progress."""
        await asyncio.gather(*self._appends, return_exceptions=True)

    async def stop(self) -> None:
        appends = list(self._appends)
        for append in appends:
            append.cancel()
        await asyncio.gather(*appends, return_exceptions=True)
