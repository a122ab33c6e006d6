"""The way from a generate request to a job that is stored."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.errors import EngineError
from events.decisions import Submit
from events.errors import AddressNotAllowed, LogFull, LogUnavailable, OutcomeUnknown
from events.ids import derived_id, lane_of, new_id
from events.job import Job, fold
from events.store.records import ApiKey, Endpoint
from events.types import Flavour, Submitted
from serve_app.acceptance.checker import checker_for, fingerprint_of
from serve_app.acceptance.withdrawals import Withdrawals
from serve_app.access.open_jobs import OPEN_JOBS_PERIOD_S, OpenJobs
from serve_app.access.ttl_cache import TtlCache
from serve_app.auth import require_callback_host, require_endpoint
from serve_app.errors import ApiError, not_found, retry_after
from serve_app.routes.uploads import resolve_input_files
from serve_app.services import Services

logger = logging.getLogger(__name__)

_PASSING = {socket.EAI_AGAIN, socket.EAI_MEMORY, socket.EAI_SYSTEM}
"""What getaddrinfo says where it could not ask; the rest is about the name."""
ENDPOINT_ID = r"^[A-Za-z0-9_-]{1,64}$"
"""What may stand in a subject of the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A generate request as it came; `content` is the parsed `body`."""

    flavour: Flavour
    key: ApiKey
    endpoint: str
    callback_url: str | None
    alone: bool
    idempotency_key: str | None
    body: bytes
    content: Any
    traceparent: str | None

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            self.flavour,
            endpoint=self.endpoint,
            callback_url=self.callback_url,
            alone=self.alone,
            body=self.body,
        )


class Acceptance:
    """Checks requests and stores them as `Submitted`."""

    def __init__(
        self,
        services: Services,
        withdrawals: Withdrawals,
        *,
        resolve_timeout_s: float = 3.0,
        open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
    ) -> None:
        self._services = services
        self._withdrawals = withdrawals
        self._resolve_timeout_s = resolve_timeout_s
        self._endpoints = TtlCache(
            services.endpoints.get, ttl_s=services.dispatch_settings.endpoints_period_s
        )
        self._open_jobs = OpenJobs(services.read_model, period_s=open_jobs_period_s)
        self._appends: set[asyncio.Task[Job]] = set()

    async def join(self) -> None:
        """Wait for the appends whose callers are gone."""
        await asyncio.gather(*self._appends, return_exceptions=True)

    async def stop(self) -> None:
        appends = list(self._appends)
        for append in appends:
            append.cancel()
        await asyncio.gather(*appends, return_exceptions=True)

    async def accept(self, sent: Sent) -> Job:
        """The job, stored now or by the same request before.

        An idempotency key that is known decides before any check does: the checks may answer
        otherwise by now. It is looked up only once a check has refused, since the append itself
        finds a repeat; that spares every other request a read, and a log that is frozen is told
        as `outcome_unknown` by the append.

        Raises what `errors.ANSWERS` lists.
        """
        job_id = self._job_id(sent)
        try:
            submitted = await self._check(sent)
            job = await self._store(job_id, submitted, sent)
        except (ApiError, EngineError, AddressNotAllowed, LogFull):
            earlier = None if sent.idempotency_key is None else await self._read(job_id)
            if earlier is None:
                raise
            job = earlier
        if job.erased:
            message = "The job of this Idempotency-Key was erased."
            raise ApiError(409, "idempotency_conflict", message)
        if job.submitted.fingerprint != sent.fingerprint:
            message = "This Idempotency-Key was used for another request."
            raise ApiError(409, "idempotency_conflict", message)
        return job

    def _job_id(self, sent: Sent) -> str:
        if sent.idempotency_key is None:
            return new_id()
        secret = self._services.secret
        return derived_id(secret, sent.key.owner, sent.idempotency_key)

    async def _check(self, sent: Sent) -> Submitted:
        services = self._services
        require_endpoint(sent.key, sent.endpoint)
        endpoint = await self._endpoint(sent.endpoint)
        if sent.callback_url is not None:
            await self._check_callback_url(sent.callback_url, sent.key)
        checker = checker_for(
            endpoint,
            services.catalogue,
            services.graph_settings,
            default_checkpoint=services.endpoint_settings.checkpoint,
        )
        asked = checker.check(sent.flavour, sent.content)
        await self._require_room(endpoint)
        input_files = await resolve_input_files(
            services, sent.key.owner, sent.content, asked=asked, checker=checker
        )
        return Submitted(
            flavour=sent.flavour,
            owner=sent.key.owner,
            key_id=sent.key.id,
            endpoint=endpoint.id,
            lane=lane_of(sent.key.owner),
            request=asked.request,
            fingerprint=sent.fingerprint,
            images=asked.images,
            callback_url=sent.callback_url,
            deadline_s=services.dispatch_settings.job_timeout_s,
            input_files=input_files,
            alone=sent.alone or None,
        )

    async def _endpoint(self, id: str) -> Endpoint:
        endpoint = await self._endpoints.get(id) if re.fullmatch(ENDPOINT_ID, id) else None
        if endpoint is None:
            raise not_found("There is no such endpoint.")
        return endpoint

    async def _check_callback_url(self, url: str, key: ApiKey) -> None:
        rule = self._services.address_rule
        target = rule.check_url(url)
        require_callback_host(key, target.host)
        try:
            async with asyncio.timeout(self._resolve_timeout_s):
                await rule.addresses(target, self._resolve)
        except TimeoutError as error:
            raise _no_name_server(target.host) from error

    async def _resolve(self, host: str) -> Sequence[str]:
        """That the name server is away is not the caller's fault."""
        try:
            return await self._services.resolve(host)
        except socket.gaierror as error:
            if error.errno in _PASSING:
                raise _no_name_server(host) from error
            raise

    async def _require_room(self, endpoint: Endpoint) -> None:
        """Where the log cannot say how full it is, the append will say why."""
        services = self._services
        try:
            depth = await services.queue.depth(endpoint.id)
            fill = await services.health.fill()
        except LogUnavailable:
            return
        if depth >= endpoint.max_queued:
            message = f"The queue of endpoint {endpoint.id} is full."
            raise ApiError(429, "queue_full", message, headers=retry_after(5))
        if fill >= services.http_settings.log_full_ratio:
            raise LogFull

    async def _store(self, job_id: str, submitted: Submitted, sent: Sent) -> Job:
        """The append goes on when the caller hangs up, which cancels the handler of the request."""
        append = asyncio.create_task(self._append(job_id, submitted, sent), name=f"append {job_id}")
        self._appends.add(append)
        append.add_done_callback(self._appends.discard)
        try:
            return await asyncio.shield(append)
        except asyncio.CancelledError:
            if sent.idempotency_key is None:
                append.add_done_callback(partial(self._withdraw, job_id))
            raise

    def _withdraw(self, job_id: str, append: asyncio.Task[Job]) -> None:
        """Nobody heard of this job. Where the outcome is unknown, `_append` saw to it."""
        if not append.cancelled() and append.exception() is None:
            self._withdrawals.schedule(job_id)

    async def _append(self, job_id: str, submitted: Submitted, sent: Sent) -> Job:
        command = Submit(submitted)
        try:
            async with self._open_jobs.place(sent.key) as stored:
                outcome = await self._services.writer.submit(
                    job_id, command, traceparent=sent.traceparent
                )
                assert outcome.job is not None  # it was added, or it was there
                if outcome.added:
                    stored(outcome.job.position)
        except OutcomeUnknown as error:
            if sent.idempotency_key is not None:
                raise
            self._withdrawals.schedule(job_id)
            message = (
                "The event log did not answer in time. If the job was stored, it is cancelled."
            )
            raise OutcomeUnknown(message) from error
        if outcome.added:
            fields = {"action": "accept", "job_id": job_id, "flavour": submitted.flavour}
            logger.info("job accepted", extra=fields)
        return outcome.job

    async def _read(self, job_id: str) -> Job | None:
        return fold(await self._services.log.read(job_id))


def _no_name_server(host: str) -> ApiError:
    message = f"The name server did not say where the callback's host {host} is. Try again."
    return ApiError(503, "unavailable", message, headers=retry_after(2))
