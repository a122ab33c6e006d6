"""Sends spans to a collector by OTLP over HTTP, and exports the trace of each ended job.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import httpx

from events.errors import LogUnavailable, ReadTimeout
from events.job import fold
from events.log import EventLog, utc_now
from events.retry import pause
from settings.constant import constant
from settings.log import TelemetrySettings
from settings.version import VERSION
from telemetry.spans import Span, TraceIds, Value, job_spans

if TYPE_CHECKING:
    from events.store.read_model import FoldedEvent

logger = logging.getLogger(__name__)

_MOST_SPANS = constant("OTLP_SPANS", 10_000)
_GATHER_S = 1.0
_BATCH = 512
_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_MOST_ANSWER_BYTES = 64 * 1024
_PATH = "/v1/traces"
_TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})


class SpanExporter:
    def __init__(
        self,
        url: str,
        *,
        role: str,
        most: int = _MOST_SPANS,
        timeout_s: float = _TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` is the URL of the collector, without `/v1/traces`.

        `most` is the largest number of spans that wait; more spans are dropped. `timeout_s` is the
        time-out of one request. `transport` is the HTTP transport; None means the network.
        """
        self._url = url.rstrip("/") + _PATH
        self._resource: Mapping[str, Value] = {
            "service.name": "darkroom",
            "service.version": VERSION,
            "darkroom.role": role,
        }
        self._most = most
        self._timeout_s = timeout_s
        self._transport = transport
        self._waiting: deque[Span] = deque()
        self._dropped = 0
        self._has_spans = asyncio.Event()
        # The import is here, so that processes without traces do not load the protobuf messages.
        from telemetry.otlp import export_request

        self._body_of = export_request

    @property
    def waiting(self) -> int:
        """The number of spans in the queue to the collector."""
        return len(self._waiting)

    def add(self, spans: Iterable[Span]) -> None:
        """Queue spans without waiting. Spans over the limit are dropped."""
        for span in spans:
            if len(self._waiting) < self._most:
                self._waiting.append(span)
            else:
                self._dropped += 1
        self._has_spans.set()

    async def run(self) -> None:
        """Export spans until cancelled. An unexpected error is logged and ends only the export."""
        try:
            async with httpx.AsyncClient(transport=self._transport, trust_env=False) as client:
                while True:
                    await self._has_spans.wait()
                    await asyncio.sleep(_GATHER_S)
                    self._has_spans.clear()
                    while self._waiting:
                        await self._export_some(client)
        except Exception:
            logger.exception("traces are not exported any more", extra={"action": "trace"})

    async def _export_some(self, client: httpx.AsyncClient) -> None:
        """Export the first spans. Remove them when they are accepted or can never be accepted."""
        some = list(islice(self._waiting, _BATCH))
        try:
            await self._export(some, client)
        except Exception:  # The exporter continues, because the next spans may be accepted.
            logger.exception(
                "spans could not be exported and are dropped", extra={"action": "trace"}
            )
        for _ in some:
            self._waiting.popleft()

    async def _export(self, some: Sequence[Span], client: httpx.AsyncClient) -> None:
        """Send the spans until the collector accepts them or refuses them permanently."""
        body = self._body_of(some, self._resource)
        pause_s = _FIRST_PAUSE_S
        while (trouble := await self._post(client, body)) is not None:
            fields = {"action": "trace", "error": trouble, "dropped": self._dropped}
            logger.warning("the collector does not accept spans; they wait", extra=fields)
            await pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> str | None:
        """Send the request. Return the reason to send it again, or None."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._status_of(client, body)
        except (httpx.HTTPError, TimeoutError) as error:
            return type(error).__name__
        if status in _TEMPORARY_STATUSES:
            return f"the collector answered {status}"
        if not httpx.codes.is_success(status):
            logger.warning(
                "the collector refuses spans", extra={"action": "trace", "status": status}
            )
        return None

    async def _status_of(self, client: httpx.AsyncClient, body: bytes) -> int:
        """Send the request and return the status. Read a short answer, to reuse the connection."""
        headers, left_bytes = {"Content-Type": "application/x-protobuf"}, _MOST_ANSWER_BYTES
        async with client.stream("POST", self._url, content=body, headers=headers) as answer:
            async for chunk in answer.aiter_raw():
                if (left_bytes := left_bytes - len(chunk)) < 0:
                    break
            return answer.status_code


def open_exporter(settings: TelemetrySettings, role: str) -> SpanExporter | None:
    """Return an exporter, or None if traces are not configured."""
    if settings.otlp_url is None:
        return None
    return SpanExporter(settings.otlp_url, role=role)


_MOST_WAITING = 10_000
"""The largest number of ended jobs in the queue. Further jobs have no trace."""


class JobTraces:
    """Exports the traces of ended jobs.

    The events of a job are read again, because `FoldedEvent` has no earlier events.
    """

    def __init__(
        self, log: EventLog, exporter: SpanExporter, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._log = log
        self._exporter = exporter
        self._now = now
        self._ended = asyncio.Queue[tuple[str, datetime]](_MOST_WAITING)

    def note(self, folded: Sequence[FoldedEvent]) -> None:
        """Queue the jobs that ended with these committed events, without waiting."""
        now = self._now()
        for each in folded:
            job, before = each.after, each.before
            has_ended = before is not None and before.end is None and job.end is not None
            is_wanted = has_ended and not job.erased and TraceIds.of(job).is_sampled
            if is_wanted and not self._ended.full():
                self._ended.put_nowait((job.id, now))

    async def run(self) -> None:
        """Export traces until cancelled."""
        while True:
            job_id, projected_at = await self._ended.get()
            fields = {"action": "trace", "job_id": job_id}
            try:
                await self._export(job_id, projected_at)
            except (LogUnavailable, ReadTimeout) as error:
                logger.info("a job has no trace", extra={**fields, "error": str(error)})
            except Exception:  # An unexpected error in one job must not end the role.
                logger.exception("a job has no trace", extra=fields)

    async def _export(self, job_id: str, projected_at: datetime) -> None:
        """Export the trace of a job, unless the job has been removed or erased."""
        history = await self._log.read(job_id)
        job = fold(history)
        if job is not None and job.end is not None and not job.erased:
            self._exporter.add(job_spans(job, history, projected_at=projected_at))
