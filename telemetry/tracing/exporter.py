"""SpanExporter: spans on their way to a collector, by OTLP over HTTP.

https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import httpx

from events.retry import pause
from settings.log import TelemetrySettings
from settings.version import VERSION
from telemetry.tracing.spans import Span, Value

logger = logging.getLogger(__name__)

_GATHER_S = 1.0
_BATCH = 512
_TIMEOUT_S = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_MOST_ANSWER_BYTES = 64 * 1024
_PATH = "/v1/traces"
_PASSING = frozenset({429, 502, 503, 504})


class SpanExporter:
    def __init__(
        self,
        url: str,
        *,
        role: str,
        most: int,
        timeout_s: float = _TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url`: of the collector, without `/v1/traces`. `most`: spans that wait; others are
        dropped. `timeout_s`: for one answer. `transport`: what reaches the collector; None: the
        network.
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
        self._some = asyncio.Event()
        # Not above: nobody is to load the messages who sends none.
        from telemetry.tracing.otlp import export_request

        self._body_of = export_request

    @property
    def waiting(self) -> int:
        """How many spans wait for the collector."""
        return len(self._waiting)

    def add(self, spans: Iterable[Span]) -> None:
        """Never waits."""
        for span in spans:
            if len(self._waiting) < self._most:
                self._waiting.append(span)
            else:
                self._dropped += 1
        self._some.set()

    async def run(self) -> None:
        """Export until cancelled. Nothing that goes wrong here ends the process."""
        try:
            async with httpx.AsyncClient(transport=self._transport, trust_env=False) as client:
                while True:
                    await self._some.wait()
                    await asyncio.sleep(_GATHER_S)
                    self._some.clear()
                    while self._waiting:
                        await self._export_some(client)
        except Exception:
            logger.exception("no traces any more", extra={"action": "trace"})

    async def _export_some(self, client: httpx.AsyncClient) -> None:
        """The first spans leave the line once they are taken, or never will be."""
        some = list(islice(self._waiting, _BATCH))
        try:
            await self._export(some, client)
        except Exception:  # the next ones may be better
            logger.exception("spans are dropped", extra={"action": "trace"})
        for _ in some:
            self._waiting.popleft()

    async def _export(self, some: Sequence[Span], client: httpx.AsyncClient) -> None:
        """Returns once they are taken, or are refused for good."""
        body = self._body_of(some, self._resource)
        pause_s = _FIRST_PAUSE_S
        while (trouble := await self._post(client, body)) is not None:
            fields = {"action": "trace", "error": trouble, "dropped": self._dropped}
            logger.warning("spans wait for their collector", extra=fields)
            await pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _post(self, client: httpx.AsyncClient, body: bytes) -> str | None:
        """Why to try again; None where there is no reason to."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await self._status_of(client, body)
        except (httpx.HTTPError, TimeoutError) as error:
            return type(error).__name__
        if status in _PASSING:
            return f"the collector answered {status}"
        if not httpx.codes.is_success(status):
            logger.warning("spans are refused", extra={"action": "trace", "status": status})
        return None

    async def _status_of(self, client: httpx.AsyncClient, body: bytes) -> int:
        """Of the answer, of which no more is read than the connection needs for the next one."""
        headers, left_bytes = {"Content-Type": "application/x-protobuf"}, _MOST_ANSWER_BYTES
        async with client.stream("POST", self._url, content=body, headers=headers) as answer:
            async for chunk in answer.aiter_raw():
                if (left_bytes := left_bytes - len(chunk)) < 0:
                    break
            return answer.status_code


def open_exporter(settings: TelemetrySettings, role: str) -> SpanExporter | None:
    """None where no traces are wanted."""
    if settings.otlp_url is None:
        return None
    return SpanExporter(settings.otlp_url, role=role, most=settings.otlp_spans)
