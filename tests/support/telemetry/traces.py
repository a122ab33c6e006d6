"""Jobs with their spans, and a collector that records what it receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from events.job import Job, fold
from events.types import Event, EventData
from telemetry.exporter import SpanExporter
from telemetry.spans import Span, job_spans
from tests.support.events import START, history_of

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{CALLER}-01"
UNWANTED = f"00-{TRACE}-{CALLER}-00"


def told(
    *events: EventData, traceparent: str | None = None
) -> tuple[Job, Sequence[Event], list[Span]]:
    """Return a job with an event per second from `START` on, and its spans."""
    history = [replace(each, traceparent=traceparent) for each in history_of(*events)]
    job = fold(history)
    assert job is not None
    after = START + timedelta(seconds=60)
    return job, history, job_spans(job, history, projected_at=after)


class Collector(httpx.AsyncBaseTransport):
    """A collector that records spans and answers as a test says."""

    def __init__(self) -> None:
        self.statuses: list[int | Exception] = []
        self.requests: list[ExportTraceServiceRequest] = []
        self.urls: set[str] = set()
        self.answer: httpx.AsyncByteStream = httpx.ByteStream(b"")

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.urls.add(str(request.url))
        status = self.statuses.pop(0) if self.statuses else 200
        if isinstance(status, Exception):
            raise status
        if status == 200:
            body = ExportTraceServiceRequest()
            body.ParseFromString(await request.aread())
            self.requests.append(body)
        return httpx.Response(status, stream=self.answer)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for of_resource in request.resource_spans
            for of_scope in of_resource.scope_spans
            for span in of_scope.spans
        ]


def exporter_to(collector: Collector, *, most: int = 100) -> SpanExporter:
    return SpanExporter("http://collector:4318/", role="test", most=most, transport=collector)
