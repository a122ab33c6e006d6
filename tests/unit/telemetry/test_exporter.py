"""Spans on their way to a collector, whatever that does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from events.types import Completed, Failed, Started
from telemetry.tracing.exporter import SpanExporter
from tests.support.events import JOB_ID, START, image, submitted
from tests.support.polling import eventually
from tests.support.telemetry.traces import Collector, exporter_to, told

SPANS = told(submitted(), Failed(message="No."))[2]


async def test_spans_arrive_as_otlp_has_them() -> None:
    collector = Collector()
    exporter = exporter_to(collector)
    _, _, spans = told(submitted(), Started(attempt=1, actor="a"), image(0), Failed(message="No."))
    task = asyncio.create_task(exporter.run())
    try:
        exporter.add(spans)
        await eventually(lambda: len(collector.spans) == len(spans))
    finally:
        task.cancel()
    assert collector.urls == {"http://collector:4318/v1/traces"}
    [resource] = [each.resource for each in collector.requests[0].resource_spans]
    names = {each.key: each.value.string_value for each in resource.attributes}
    assert (names["service.name"], names["darkroom.role"]) == ("darkroom", "test")
    job = next(span for span in collector.spans if span.name == "job")
    assert job.trace_id.hex() == JOB_ID.replace("-", "")
    assert job.start_time_unix_nano == int(START.timestamp()) * 10**9
    assert job.end_time_unix_nano - job.start_time_unix_nano == 3 * 10**9
    assert job.status.code == 2
    attempt = next(span for span in collector.spans if span.name == "attempt")
    assert attempt.parent_span_id == job.span_id
    assert [moment.name for moment in attempt.events] == ["image stored"]


async def test_spans_wait_for_a_collector_up_to_a_number() -> None:
    collector = Collector()
    collector.statuses = [503]
    exporter = exporter_to(collector, most=3)
    _, _, spans = told(submitted(), Started(attempt=1, actor="a"), Completed(images=0))
    assert len(spans) > 3
    exporter.add(spans)
    task = asyncio.create_task(exporter.run())
    try:
        await eventually(lambda: len(collector.spans) == 3)
    finally:
        task.cancel()


async def test_an_error_that_nobody_foresaw_costs_these_spans_alone() -> None:
    class Broken(Collector):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if self.statuses:
                self.statuses.clear()
                raise TypeError("nobody foresaw this")
            return await super().handle_async_request(request)

    collector = Broken()
    collector.statuses = [0]
    exporter = exporter_to(collector)
    _, _, spans = told(submitted(), Failed(message="No."))
    task = asyncio.create_task(exporter.run())
    try:
        exporter.add(spans[:1])
        await eventually(lambda: not collector.statuses)
        exporter.add(spans[1:2])
        await eventually(lambda: len(collector.spans) == 1)
        assert not task.done()
    finally:
        task.cancel()
    assert collector.spans[0].name == spans[1].name


async def test_what_a_collector_refuses_for_good_is_dropped() -> None:
    collector = Collector()
    collector.statuses = [400]
    exporter = exporter_to(collector)
    _, _, spans = told(submitted(), Failed(message="No."))
    task = asyncio.create_task(exporter.run())
    try:
        exporter.add(spans)
        await eventually(lambda: not collector.statuses)
        exporter.add(spans[:1])
        await eventually(lambda: len(collector.spans) == 1)
    finally:
        task.cancel()


class Endless(httpx.AsyncByteStream):
    """An answer that never ends."""

    def __init__(self) -> None:
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.sent += 1
            yield b"x" * 4096


async def test_no_more_of_an_answer_is_read_than_a_collector_has_to_say() -> None:
    collector = Collector()
    collector.answer = endless = Endless()
    exporter = exporter_to(collector)
    task = asyncio.create_task(exporter.run())
    try:
        exporter.add(SPANS[:1])
        await eventually(lambda: len(collector.spans) == 1)
        exporter.add(SPANS[1:2])
        await eventually(lambda: len(collector.spans) == 2)
    finally:
        task.cancel()
    assert endless.sent < 64


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncGenerator[tuple[str, list[int]]]:
    """The address of a server that sends this to whoever connects, and what came; None: it says
    nothing, and reads nothing either.
    """
    came: list[int] = []
    open_ones: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(1)
        open_ones.append(writer)
        if answer is not None:
            writer.write(answer)
            await writer.drain()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", came
    finally:
        server.close()
        for each in open_ones:
            each.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent as they come, and sent again soon."""
    monkeypatch.setattr("telemetry.tracing.exporter._GATHER_S", 0.0)
    monkeypatch.setattr("telemetry.tracing.exporter._FIRST_PAUSE_S", 0.01)


async def nothing_is_lost_but_spans(url: str, log: pytest.LogCaptureFixture) -> None:
    """Whatever the collector does, who tells of jobs never waits, and no more is kept."""
    exporter = SpanExporter(url, role="test", most=5, timeout_s=0.05)
    task = asyncio.create_task(exporter.run())
    try:
        for _ in range(100):
            exporter.add(SPANS)
        await eventually(lambda: log.messages.count("spans wait for their collector") >= 2)
        exporter.add(SPANS)
        assert exporter.waiting == 5
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("at_once")
async def test_a_collector_that_is_not_there_costs_nothing_but_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with answering(None) as (url, _):
        pass  # nobody listens any more
    await nothing_is_lost_but_spans(url, caplog)


@pytest.mark.parametrize(
    "answer",
    [None, b"\0" * 100_000, b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n"],
    ids=["silent", "not HTTP", "less than it says"],
)
@pytest.mark.usefixtures("at_once")
async def test_a_collector_that_answers_badly_is_asked_again(
    answer: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(answer) as (url, came):
        await nothing_is_lost_but_spans(url, caplog)
    assert len(came) >= 2


def test_without_a_collector_nothing_of_it_is_loaded() -> None:
    program = """
import sys, threading
from actors.metering import DeliveryMetrics
from settings.log import TelemetrySettings
before = threading.active_count()
assert DeliveryMetrics(TelemetrySettings()).background == ()
loaded = [name for name in sys.modules if name.startswith("opentelemetry")]
assert not loaded, loaded
assert threading.active_count() == before
DeliveryMetrics(TelemetrySettings(otlp_url="http://127.0.0.1:4318"))
assert "opentelemetry.proto.trace.v1.trace_pb2" in sys.modules
assert threading.active_count() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
