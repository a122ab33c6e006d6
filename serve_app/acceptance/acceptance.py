"""Accepts generate requests: checks a request, computes its cost, and appends its job."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic_core import to_json

from engine.interface import (
    Catalogue,
    EngineError,
    GraphInvalid,
)
from events.bus.queues import JobQueue
from events.decisions import Submit
from events.errors import AddressNotAllowed, LogFull, LogUnavailable, OutcomeUnknown
from events.ids import derived_id, lane_of, new_id
from events.job import Job, sizes_of
from events.log import JobWriter, utc_now
from events.store.records import ApiKey, Endpoint
from events.types import Flavour, InputFile, JobCost, NamedWorkflow, Submitted, Terms
from serve_app.acceptance.abandoned_jobs import AbandonedJobs
from serve_app.acceptance.addresses import Addresses, require_images
from serve_app.acceptance.comfyui_compilation import ComfyUICompiler, may_run_on_server
from serve_app.acceptance.compilation import CheckedBody, RequestCompiler, compatibility_of
from serve_app.acceptance.inline_images import InlineImageStore
from serve_app.access.owner_limits import OwnerLimits
from serve_app.endpoints.cache import EndpointCache
from serve_app.fair_threads import QUICK_BYTES, FairThreads
from serve_app.jobs import Jobs
from serve_app.refusals import (
    IdempotencyConflict,
    ImageNotFetched,
    InvalidImage,
    RequestRefused,
)
from settings.constant import constant
from settings.graph import GraphSettings
from settings.keys import ImageFormat
from storage.service_secret import sealed
from telemetry.exporter import SpanExporter
from telemetry.logs import job_log_fields
from telemetry.spans import accept_spans

if TYPE_CHECKING:
    from events.store.uploads import Uploads

logger = logging.getLogger(__name__)

T = TypeVar("T")

_REFUSALS = (RequestRefused, EngineError, AddressNotAllowed, LogFull)
LOG_FULL_RATIO = constant("LOG_FULL_RATIO", 0.85)
"""The used fraction of the log above which new jobs are refused."""
_MAX_EVENT_BYTES = 2 * 1024**2 - 8 * 1024
"""The largest size of an event in bytes, without its envelope and headers. NATS accepts messages of
up to 2 MiB.
"""
_LISTED_NAMES = 20
"""The largest number of uploads that are listed in an error about a missing upload."""
_LONG_BYTES = 2**20
"""The largest body that is hashed without a thread."""
_ESCAPE = b"\\u"  # A JSON escape may encode any of the other marks.
_TEXTS = (b"[", b"|", _ESCAPE)
_TEXTS_OF_WORKFLOW = (b"WebUI", b"Expression", b"subgraphs", b"groupNodes", _ESCAPE)


class LogHealth(Protocol):
    """The health of the event log. The values may be some seconds old."""

    async def fill(self) -> float:
        """Return the used fraction of the log's `max_bytes`, 0 to 1. Raises LogUnavailable."""

    async def ready(self) -> str | None:
        """Return None if the log accepts writes, or the reason why it does not. Never raises."""

    async def known_refusal(self) -> str | None:
        """Return the reason why the log accepts no writes, if it is known. Never raises."""


class WorkflowCall(Protocol):
    """A call of a named workflow."""

    @property
    def as_sent(self) -> str:
        """The name and the endpoint as the caller sent them, which the fingerprint includes."""

    def record_of(self, prompt: Any) -> NamedWorkflow:
        """Return what the job records about the call. `prompt` is the graph that runs."""

    def with_input_names(self, error: GraphInvalid) -> EngineError:
        """Return an error about the graph with the names of inputs in place of node ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request to submit a job. `content` is the parsed `body`, not yet validated."""

    flavour: Flavour
    key: ApiKey
    endpoint: str
    body: bytes
    content: Any
    callback_url: str | None = None
    callback_events: tuple[str, ...] | None = None
    """The events before the end of the job for which callbacks are requested."""
    alone: bool = False
    preview: bool = False
    image_format: ImageFormat | None = None
    """None means the format of the key."""
    image_quality: int | None = None
    """1 to 100; None means the quality of the key."""
    max_bytes: int | None = None
    """The largest size in bytes of the body without its inline images. None means that the size was
    limited while the body was read.
    """
    sent: bytes | None = None
    """The request as the caller sent it, or its hash. None if `body` is what the caller sent.

    The fingerprint uses `sent`, because it is the same in a repeated request. A `body` that the
    service builds also depends on defaults and stored options, which may change.
    """
    idempotency_key: str | None = None
    job_id: str | None = None
    """The job id that the caller chose. An existing job with this id must have the same request."""
    client_id: str | None = None
    """See `Submitted.client_id`."""
    workflow: WorkflowCall | None = None
    """The call of a named workflow from which `content` was made. None for any other request."""
    traceparent: str | None = None

    @property
    def excess_bytes(self) -> int:
        """The number of bytes above `max_bytes`, all of which must be inline images."""
        return 0 if self.max_bytes is None else max(0, len(self.body) - self.max_bytes)

    @property
    def is_repeatable(self) -> bool:
        """Whether a repeated request gets the same job."""
        return self.idempotency_key is not None or self.job_id is not None

    @property
    def is_quick_to_check(self) -> bool:
        """Whether a check of the request takes at most some milliseconds.

        A text in the WebUI's syntax with `[` or `|` may describe many texts. Many expression nodes
        may link to one long text. Subgraphs and group nodes of an editor file may have many uses.
        """
        if self.workflow is not None:
            return False  # The graph is larger than the body.
        marks = _TEXTS_OF_WORKFLOW if self.flavour is Flavour.WORKFLOW else _TEXTS
        return len(self.body) <= QUICK_BYTES and not any(mark in self.body for mark in marks)


@dataclass(frozen=True, slots=True)
class _SubmittedEvent:
    """The first event of a job, before it is stored."""

    submitted: Submitted
    size_bytes: int
    """The size of the event in the log, without its envelope."""


class Acceptance:
    def __init__(
        self,
        *,
        jobs: Jobs,
        writer: JobWriter,
        queue: JobQueue,
        health: LogHealth,
        endpoints: EndpointCache,
        addresses: Addresses,
        threads: FairThreads,
        catalogue: Catalogue,
        graph_settings: GraphSettings,
        default_checkpoint: str | None,
        uploads: Uploads,
        inline_images: InlineImageStore,
        owner_limits: OwnerLimits,
        abandoned_jobs: AbandonedJobs,
        job_timeout_s: float,
        secret: bytes,
        exporter: SpanExporter | None = None,
    ) -> None:
        """`default_checkpoint` is the checkpoint of the default endpoint. Job ids are derived from
        idempotency keys with `secret`, and parts of `extra_data` are encrypted with it.
        `job_timeout_s` is the longest time limit of a job.
        """
        self._jobs = jobs
        self._writer = writer
        self._queue = queue
        self._health = health
        self.endpoints = endpoints
        self._addresses = addresses
        self._threads = threads
        self._catalogue = catalogue
        self._graph_settings = graph_settings
        self._default_checkpoint = default_checkpoint
        self._uploads = uploads
        self._inline_images = inline_images
        self._owner_limits = owner_limits
        self._abandoned_jobs = abandoned_jobs
        self._job_timeout_s = job_timeout_s
        self._secret = secret
        self._exporter = exporter
        self._appends: set[asyncio.Task[Job]] = set()

    async def accept(self, request: GenerateRequest, *, began: datetime | None = None) -> Job:
        """Return the job of a request, as `_accept` does."""
        with _errors_with_input_names(request):
            return await self._accept(request, began=began)

    async def _accept(self, request: GenerateRequest, *, began: datetime | None) -> Job:
        """Return the job of a request: a new job, or the earlier job if the request is a repeat.

        A repeat gets the earlier job even if the repeat would be refused now. Normally `_append`
        finds this job. It is also looked up after a refusal, and before inline images are stored.

        The HTTP request, and so its span, began at `began`.

        Raises RequestRefused, GraphInvalid, ParametersInvalid, ModelsUnavailable,
        AddressNotAllowed, LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout,
        DatabaseUnavailable.
        """
        job_id = self._job_id(request)
        fingerprint = await fingerprint_of(request)
        try:
            body = await self._check_body(request)
            job = None
            if request.is_repeatable and body.inline_images:
                job = await self._jobs.current(job_id)
            if job is None:
                event = await self._build_event(request, body, fingerprint)
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
        if job.submitted.fingerprint != fingerprint:
            raise IdempotencyConflict
        if self._exporter is not None and began is not None and job.submitted_at >= began:
            self._exporter.add(accept_spans(job, began=began, ended=utc_now()))
        return job

    async def check(self, request: GenerateRequest) -> Submitted:
        """Return the event that `accept` would store.

        Inline images are stored as uploads. Raises the errors of `accept`, except those of storing
        the job.
        """
        fingerprint = await fingerprint_of(request)
        with _errors_with_input_names(request):
            body = await self._check_body(request)
            return (await self._build_event(request, body, fingerprint)).submitted

    def _job_id(self, request: GenerateRequest) -> str:
        if request.job_id is not None:
            return request.job_id
        if request.idempotency_key is None:
            return new_id()
        return derived_id(self._secret, request.key.owner, request.idempotency_key)

    async def _check_body(self, request: GenerateRequest) -> CheckedBody:
        """Check the endpoint and the URLs, compile the body, and check that neither the endpoint's
        queue nor the log is full.
        """
        endpoint = await self.endpoints.for_job(request.endpoint, request.key)
        if request.callback_url is not None:
            await self._addresses.require_callback(request.callback_url, request.key)
        content, presigned_uploads = await self._addresses.presigned_uploads(
            request.content, request.key
        )
        body = await self._compile_or_fall_back(request, endpoint, content)
        endpoint = body.compiler.endpoint
        require_images(presigned_uploads, body.images)
        await self._require_room(endpoint)
        return replace(body, presigned_uploads=presigned_uploads)

    async def _compile(
        self, request: GenerateRequest, endpoint: Endpoint, content: Any
    ) -> CheckedBody:
        compiler = await self._compiler(endpoint, request.key)
        compile_body = partial(compiler.compile, excess_bytes=request.excess_bytes)
        return await self._run(request, compile_body, request.flavour, content)

    async def _compile_or_fall_back(
        self, request: GenerateRequest, endpoint: Endpoint, content: Any
    ) -> CheckedBody:
        """Compile for the endpoint, or for its fallback if only a ComfyUI server runs a workflow.

        Without a list of the server's node types, only an unknown node type leads to the fallback.
        """
        if request.flavour is not Flavour.WORKFLOW:
            # The same parameters may mean another picture there.
            return await self._compile(request, endpoint, content)
        fallback = await self._fallback(endpoint, request.key)
        object_info = None if fallback is None else await self.endpoints.object_info(fallback)
        refusal = None
        try:
            body = await self._compile(request, endpoint, content)
            if fallback is None or object_info is None or not body.needs_server(object_info):
                return body
        except GraphInvalid as error:
            if fallback is None or not may_run_on_server(error, object_info):
                raise
            refusal = None if error.type == "missing_node_type" else error
        try:
            return await self._compile(request, fallback, content)
        except GraphInvalid as error:
            # If the server has all node types, the first endpoint's error is the better one.
            raise refusal or error from error

    async def _fallback(self, endpoint: Endpoint, key: ApiKey) -> Endpoint | None:
        """Return the fallback for jobs of an endpoint, or None if the key may not use it now."""
        if endpoint.fallback is None:
            return None
        try:
            fallback = await self.endpoints.for_job(endpoint.fallback, key)
        except RequestRefused:
            return None
        if endpoint.checkpoints is None:
            return fallback
        # Jobs of the endpoint may use no other checkpoints there, either.
        allowed = set(fallback.checkpoints or endpoint.checkpoints)
        both = tuple([each for each in endpoint.checkpoints if each in allowed])
        return replace(fallback, checkpoints=both)

    async def _compiler(self, endpoint: Endpoint, key: ApiKey) -> RequestCompiler:
        is_comfyui = endpoint.engine == "comfyui"
        kind: Callable[..., RequestCompiler] = (
            partial(ComfyUICompiler, object_info=await self.endpoints.object_info(endpoint))
            if is_comfyui
            else RequestCompiler
        )
        return kind(
            endpoint,
            self._catalogue,
            self._graph_settings,
            default_checkpoint=self._default_checkpoint,
            max_cost=key.limits.max_cost or 0.0,
        )

    async def compiled(self, request: GenerateRequest) -> CheckedBody:
        """Return the checked and compiled body of a request that will not become a job.

        Input files need not exist. Raises the errors of `accept` that concern the body and the
        endpoint.
        """
        endpoint = await self.endpoints.for_job(request.endpoint, request.key)
        return await self._compile_or_fall_back(request, endpoint, request.content)

    async def checkpoint(self, endpoint: Endpoint, key: ApiKey) -> str | None:
        """Return the checkpoint for diffusion requests without one, or None if none exists.

        Raises ModelsUnavailable, DatabaseUnavailable.
        """
        compiler = await self._compiler(endpoint, key)
        return await asyncio.to_thread(compiler.checkpoint)

    async def checkpoint_named(self, endpoint: Endpoint, key: ApiKey, asked: str) -> str:
        """Return the name of a checkpoint of the endpoint for a spelling of the WebUI.

        Raises ValueError for an unknown name, ModelsUnavailable, DatabaseUnavailable.
        """
        compiler = await self._compiler(endpoint, key)
        return await asyncio.to_thread(compiler.checkpoint_named, asked)

    async def model_names(self, endpoint: Endpoint, key: ApiKey, folder: str) -> tuple[str, ...]:
        """Return the names of the models of a folder that requests for the endpoint may name.

        Raises ModelsUnavailable, DatabaseUnavailable.
        """
        compiler = await self._compiler(endpoint, key)
        return await asyncio.to_thread(compiler.model_names, folder)

    def max_steps(self, endpoint: Endpoint) -> int:
        """Return the largest number of steps of a job of the endpoint."""
        return int(endpoint.limits(self._graph_settings)["max_steps"])

    def _run(
        self, request: GenerateRequest, function: Callable[..., T], *args: object
    ) -> Awaitable[T]:
        """Run a check of the request, in a thread if the check is slow."""
        is_quick = request.is_quick_to_check
        return self._threads.run(request.key.owner, function, *args, is_quick=is_quick)

    async def _require_room(self, endpoint: Endpoint) -> None:
        """Raises QueueFull, LogFull, LogUnavailable."""
        if (queued := await self._queue.depth(endpoint.id)) >= endpoint.max_queued:
            raise await self.endpoints.queue_full(endpoint, queued)
        if await self._health.fill() >= LOG_FULL_RATIO:
            raise LogFull
        if (refusal := await self._health.known_refusal()) is not None:
            raise LogUnavailable(refusal)

    async def _build_event(
        self, request: GenerateRequest, body: CheckedBody, fingerprint: str
    ) -> _SubmittedEvent:
        """Store the inline images, find the input files, and return the event to append."""
        body = await self._with_stored_images(request, body)
        input_files = await self._input_files(request, body)
        if input_files is not None:
            body = await self._run(request, body.with_file_sizes, sizes_of(input_files))
        is_bare = request.key.limits.embed_metadata is False
        graph = body.recorded_graph
        if graph is not None and is_bare:
            graph = graph.model_copy(update={"infotext": None})
        extra_data = body.extra_data
        endpoint = body.compiler.endpoint
        image_format, image_quality = body.recorded_image_format(
            request.key.limits, request.image_format, request.image_quality
        )
        submitted = Submitted(
            flavour=request.flavour,
            owner=request.key.owner,
            key_id=request.key.id,
            endpoint=endpoint.id,
            lane=lane_of(request.key.owner),
            request=body.recorded_request,
            compiled=graph,
            fingerprint=fingerprint,
            images=body.images,
            callback_url=request.callback_url,
            callback_events=request.callback_events,
            deadline_s=job_timeout_s(endpoint, self._job_timeout_s),
            input_files=input_files,
            alone=request.alone or None,
            preview=request.preview or None,
            bare=True if is_bare else None,
            image_format=image_format,
            image_quality=image_quality,
            cost=JobCost(**asdict(body.graph.cost)),
            terms=terms_of(endpoint, self._graph_settings),
            weight=request.key.limits.weight,
            priority=request.key.limits.priority,
            image_puts=body.presigned_uploads,
            client_id=request.client_id,
            notes=body.notes or None,
            sealed_extra_data=None if extra_data is None else sealed(self._secret, extra_data),
            workflow=None if request.workflow is None else request.workflow.record_of(body.prompt),
        )
        size_bytes = len(to_json(submitted, exclude_none=True, inf_nan_mode="null"))
        if size_bytes > _MAX_EVENT_BYTES:
            details = (
                f"the request has {size_bytes} bytes with its graph, but at most "
                f"{_MAX_EVENT_BYTES} are allowed"
            )
            raise GraphInvalid("too_large", "The request is too large", details)
        return _SubmittedEvent(submitted, size_bytes)

    async def _with_stored_images(self, request: GenerateRequest, body: CheckedBody) -> CheckedBody:
        """Store the inline images as uploads, one after another to save memory.

        Raises GraphInvalid or ParametersInvalid for an invalid image, TooManyUploadBytes, Busy,
        DatabaseUnavailable, ImageStoreUnavailable.
        """
        if not body.inline_images:
            return body
        names: dict[str, str] = {}
        give_up_at = self._inline_images.give_up_at()
        for inline in body.inline_images:
            try:
                name = await self._inline_images.name(
                    request.key.owner, inline.image, give_up_at=give_up_at
                )
            except (InvalidImage, ImageNotFetched) as error:
                raise body.refusal_of(inline, str(error)) from error
            names[inline.placeholder] = name
        return body.with_uploads(names)

    async def _input_files(
        self, request: GenerateRequest, body: CheckedBody
    ) -> dict[str, InputFile] | None:
        """Return the input files of the request by upload name, or None without input files.

        Raises GraphInvalid or ParametersInvalid if the owner has no upload with one of the names,
        or if the endpoint cannot read one of the uploads.
        """
        names = (*body.input_files, *body.possible_files)
        owner, uploads = request.key.owner, self._uploads
        found = await uploads.use(owner, names, utc_now())
        missing = set(body.input_files) - found.keys()
        if missing:
            newest = await uploads.page(owner, limit=_LISTED_NAMES)
            listed = dict.fromkeys([*found, *(upload.name for upload in newest)])
            known = [name for name in listed if name not in missing]
            await self._run(request, body.require_files, known)
        body.require_readable(found.values())
        files = {
            name: InputFile(
                key=upload.storage_key,
                digest=upload.digest,
                width=upload.width or None,
                height=upload.height or None,
            )
            for name, upload in found.items()
        }
        return files or None

    async def _store(self, job_id: str, event: _SubmittedEvent, request: GenerateRequest) -> Job:
        """Append and return the job, or return the earlier job of a repeat.

        If the caller disconnects, this call is cancelled, but the append continues. After the
        append, the job is cancelled if the request is not repeatable.
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
            cost = event.submitted.cost
            async with self._owner_limits.reserve(
                request.key,
                log_bytes=event.size_bytes,
                result_bytes=0 if cost is None else cost.result_bytes,
            ) as reservation:
                if request.is_repeatable:
                    # The events of an earlier job may leave the log at any time. As this read comes
                    # directly before the append, one of the two finds the job.
                    earlier = await self._jobs.ended(job_id)
                    if earlier is not None:
                        return earlier
                outcome = await self._writer.submit(
                    job_id, Submit(event.submitted), traceparent=request.traceparent
                )
                # This or an earlier submission has added the job.
                assert outcome.job is not None
                if outcome.added:
                    reservation.keep_until_counted(outcome.job.position)
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
            with job_log_fields(outcome.job):
                logger.info("job accepted", extra=fields)
        return outcome.job

    def cancel_abandoned(self, job_id: str) -> None:
        """Begin to cancel a job whose caller got no answer and cannot find the job."""
        self._abandoned_jobs.cancel(job_id)

    def _cancel_stored(self, job_id: str, append: asyncio.Task[Job]) -> None:
        """Cancel the job if it was stored. `_append` handles an unknown outcome."""
        if not append.cancelled() and append.exception() is None:
            self._abandoned_jobs.cancel(job_id)

    async def join(self) -> None:
        """Wait until all current appends have ended."""
        await asyncio.gather(*self._appends, return_exceptions=True)

    async def stop(self) -> None:
        appends = list(self._appends)
        for append in appends:
            append.cancel()
        await asyncio.gather(*appends, return_exceptions=True)


@contextmanager
def _errors_with_input_names(request: GenerateRequest) -> Generator[None]:
    """Raise errors about the graph of a named workflow with the names of its inputs."""
    try:
        yield
    except GraphInvalid as error:
        if request.workflow is None:
            raise
        raise request.workflow.with_input_names(error) from error


async def fingerprint_of(request: GenerateRequest) -> str:
    """Return a hash of the body and the parameters as the caller sent them. A repeated request has
    the same fingerprint.
    """
    body = request.body if request.sent is None else request.sent
    callback = "" if request.callback_url is None else f"={request.callback_url}"
    asked = [name for name in ("alone", "preview") if getattr(request, name)]
    asked += request.callback_events or ()
    of_images = {"format": request.image_format, "quality": request.image_quality}
    asked += [f"image_{name}={value}" for name, value in of_images.items() if value is not None]
    place = request.endpoint if request.workflow is None else request.workflow.as_sent
    text = "\0".join((request.flavour, place, callback, *asked))

    def digest() -> str:
        content = text.encode("utf-8", "surrogatepass") + b"\0" + body
        return hashlib.sha256(content).hexdigest()

    return digest() if len(body) <= _LONG_BYTES else await asyncio.to_thread(digest)


def job_timeout_s(endpoint: Endpoint, longest_s: float) -> float:
    """Return the time limit of a job of the endpoint in seconds, at most `longest_s`."""
    return min(endpoint.job_timeout_s or longest_s, longest_s)


def terms_of(endpoint: Endpoint, settings: GraphSettings) -> Terms:
    limits = endpoint.limits(settings)
    return Terms(
        max_pixels=limits["max_pixels"],
        max_steps=limits["max_steps"],
        max_cost=limits["max_cost"],
        max_attempts=endpoint.max_attempts,
        queue_timeout_s=endpoint.queue_timeout_s,
        compatibility=compatibility_of(endpoint, settings),
    )
