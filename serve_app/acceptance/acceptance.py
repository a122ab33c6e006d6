"""Turns a generate request into a stored job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from engine.errors import EngineError
from engine.graph.cost import Cost
from events.errors import AddressNotAllowed, LogFull
from events.ids import derived_id, lane_of, new_id
from events.job import Job, sizes_of
from events.job_cost import JobCost
from events.store.records import ApiKey, Endpoint
from events.types import InputFile, Submitted
from serve_app.acceptance.appends import Appends
from serve_app.acceptance.callback_check import CallbackCheck
from serve_app.acceptance.checker import CheckedRequest, Checker, checker_for
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.acceptance.image_output import recorded_output
from serve_app.acceptance.image_puts import ImagePutCheck, require_images
from serve_app.acceptance.input_files import resolve_input_files, store_sent_images
from serve_app.acceptance.withdrawals import Withdrawals
from serve_app.access.kept_bytes import OwnedBytes
from serve_app.access.open_jobs import OPEN_JOBS_PERIOD_S, OpenJobs
from serve_app.checks import Checks
from serve_app.endpoints.used import UsedEndpoints, job_timeout_s, terms_of
from serve_app.job_state import current_job
from serve_app.refusals import IdempotencyConflict, RequestRefused
from serve_app.services import Services
from serve_app.uploads.sent_images import SentImages
from serve_app.uploads.store import UploadStore

T = TypeVar("T")

_REFUSALS = (RequestRefused, EngineError, AddressNotAllowed, LogFull)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A valid request, of whose input files nothing is known yet."""

    endpoint: Endpoint
    checker: Checker
    body: CheckedRequest
    image_puts: tuple[str, ...] | None
    """Where its images are put, sealed."""


class Acceptance:
    """Checks requests and stores them as `Submitted`."""

    def __init__(
        self,
        services: Services,
        withdrawals: Withdrawals,
        checks: Checks,
        *,
        resolve_timeout_s: float = 3.0,
        open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
    ) -> None:
        self._services = services
        self._checks = checks
        self._callbacks = CallbackCheck(
            services.address_rule, services.resolve, timeout_s=resolve_timeout_s
        )
        self._image_puts = ImagePutCheck(
            self._callbacks, services.image_put_settings, secret=services.secret
        )
        self.endpoints = UsedEndpoints(services)
        self.open_jobs = OpenJobs(
            services.read_model.usage,
            max_of_owner=services.owner_settings.max_open_jobs,
            period_s=open_jobs_period_s,
        )
        self.owned_bytes = OwnedBytes(services.read_model.usage, services.owner_settings)
        self.upload_store = UploadStore(
            rows=services.uploads,
            images=services.images,
            settings=services.http_settings,
            owned_bytes=self.owned_bytes,
            max_bytes_of_owner=services.owner_settings.max_upload_bytes,
        )
        self.sent_images = _sent_images(services, self.upload_store, checks)
        self._appends = Appends(
            services, withdrawals, open_jobs=self.open_jobs, owned_bytes=self.owned_bytes
        )

    async def join(self) -> None:
        """Wait for the appends whose callers have hung up."""
        await self._appends.join()

    async def stop(self) -> None:
        await self._appends.stop()
        self.upload_store.stop()

    async def accept(self, request: GenerateRequest) -> Job:
        """The job, stored now or by the same request before.

        A repeat gets its job even where a check would refuse it by now. The append itself finds a
        repeat of a job that is in the log, so that is read only after a refusal, or where images
        would be stored and fetched for nothing. That spares every other request a read, and only
        the append reports a frozen log, as OutcomeUnknown.

        Raises RequestRefused, GraphInvalid, ParametersInvalid, ModelsUnavailable,
        AddressNotAllowed, LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout,
        DatabaseUnavailable.
        """
        job_id = self._job_id(request)
        try:
            checked = await self._checked(request)
            job = await self._known(job_id, request, checked)
            if job is None:
                submitted = await self._submitted(request, checked)
                job = await self._appends.store(job_id, submitted, request)
        except _REFUSALS:
            known = request.is_repeatable
            earlier = await current_job(self._services, job_id) if known else None
            if earlier is None or earlier.submitted.owner != request.key.owner:
                raise  # what is refused anyway tells nothing of the ids of others
            job = earlier
        if job.submitted.owner != request.key.owner:
            raise IdempotencyConflict("This id is taken. Choose another one.")
        if job.erased:
            raise IdempotencyConflict("The job of this Idempotency-Key or id was erased.")
        if job.submitted.fingerprint != request.fingerprint:
            raise IdempotencyConflict
        return job

    def _job_id(self, request: GenerateRequest) -> str:
        if request.job_id is not None:
            return request.job_id
        if request.idempotency_key is None:
            return new_id()
        secret = self._services.secret
        return derived_id(secret, request.key.owner, request.idempotency_key)

    async def _known(self, job_id: str, request: GenerateRequest, checked: _Checked) -> Job | None:
        """The job of this id, if the images that a request brings along are worth the look."""
        if not request.is_repeatable or not checked.body.sent_images:
            return None
        return await current_job(self._services, job_id)

    async def check(self, request: GenerateRequest) -> Submitted:
        """What would be stored of a request. Raises what `accept` raises of it."""
        return await self._submitted(request, await self._checked(request))

    async def _checked(self, request: GenerateRequest) -> _Checked:
        endpoint = await self.endpoints.for_job(request.endpoint, request.key)
        if request.callback_url is not None:
            target = self._callbacks.target(request.callback_url, request.key)
            await self._callbacks.require_allowed(target)
        content, image_puts = await self._image_puts.taken(request.content, request.key)
        checker = self._checker(endpoint, request.key)
        check = partial(checker.check, excess_bytes=request.excess_bytes)
        body = await self._run(request, check, request.flavour, content)
        require_images(image_puts, body.images)
        await self._require_room(endpoint)
        return _Checked(endpoint, checker, body, image_puts)

    async def _submitted(self, request: GenerateRequest, found: _Checked) -> Submitted:
        services, endpoint = self._services, found.endpoint
        checked, input_files = await self._with_files(request, found.checker, found.body)
        return Submitted(
            flavour=request.flavour,
            owner=request.key.owner,
            key_id=request.key.id,
            endpoint=endpoint.id,
            lane=lane_of(request.key.owner),
            request=checked.request,
            fingerprint=request.fingerprint,
            images=checked.images,
            callback_url=request.callback_url,
            callback_events=request.callback_events,
            deadline_s=job_timeout_s(endpoint, services.dispatch_settings),
            input_files=input_files,
            alone=request.alone or None,
            preview=request.preview or None,
            bare=True if request.key.limits.embed_metadata is False else None,
            **recorded_output(request),
            cost=_recorded(checked.cost),
            terms=terms_of(endpoint, services.graph_settings),
            weight=request.key.limits.weight,
            priority=request.key.limits.priority,
            image_puts=found.image_puts,
            client_id=request.client_id,
        )

    def checkpoint(self, endpoint: Endpoint, key: ApiKey) -> str | None:
        """That of a diffusion request that names none; None where there is none at all.

        May wait for the models folder. Raises ModelsUnavailable.
        """
        return self._checker(endpoint, key).checkpoint()

    def _checker(self, endpoint: Endpoint, key: ApiKey) -> Checker:
        services = self._services
        return checker_for(
            endpoint,
            services.catalogue,
            services.graph_settings,
            default_checkpoint=services.default_endpoint.checkpoint,
            max_cost=key.limits.max_cost or 0.0,
        )

    def _run(
        self, request: GenerateRequest, function: Callable[..., T], *args: object
    ) -> Awaitable[T]:
        is_quick = request.is_quick_to_check
        return self._checks.run(request.key.owner, function, *args, is_quick=is_quick)

    async def _with_files(
        self, request: GenerateRequest, checker: Checker, checked: CheckedRequest
    ) -> tuple[CheckedRequest, dict[str, InputFile] | None]:
        """The request with the cost that it has with its uploads, and these by their names."""
        owner = request.key.owner
        if checked.sent_images:
            checked = await store_sent_images(self.sent_images, owner, checker, checked)
        files = await resolve_input_files(
            self._services.uploads,
            owner,
            checked=checked,
            check=partial(self._run, request, checker.require_files),
        )
        if files is None:
            return checked, None
        return await self._run(request, checker.with_files, checked, sizes_of(files)), files

    async def _require_room(self, endpoint: Endpoint) -> None:
        """Raises QueueFull, LogFull, and LogUnavailable where neither limit can be kept."""
        services = self._services
        if (queued := await services.queue.depth(endpoint.id)) >= endpoint.max_queued:
            raise await self.endpoints.queue_full(endpoint, queued)
        if await services.health.fill() >= services.http_settings.log_full_ratio:
            raise LogFull


def _sent_images(services: Services, store: UploadStore, checks: Checks) -> SentImages:
    return SentImages(
        store,
        checks,
        services.fetch,
        settings=services.fetch_settings,
        max_bytes=services.http_settings.max_upload_bytes,
        wait_s=services.http_settings.body_wait_s,
    )


def _recorded(cost: Cost) -> JobCost:
    return JobCost(
        work=cost.work,
        live_bytes=cost.live_bytes,
        rows=cost.rows,
        tokens=cost.tokens,
        outputs=cost.outputs,
        result_bytes=cost.result_bytes,
    )
