"""Spans of a job, made from its events, and their way to a collector, whatever that does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from events.decisions import Cancel, Submit
from events.delivery import SendResult
from events.ids import new_id
from events.log import JobWriter
from events.result import FailureCode
from events.store.read_model import ReadModel
from events.types import AttemptFailed, Blame, Completed, Failed, Started, Timing
from telemetry.exporter import JobTraces, SpanExporter
from telemetry.spans import Span, TraceIds, accept_spans, callback_spans
from tests.support.callbacks.bench import Bench
from tests.support.database import temporary_database
from tests.support.edge import running_edge
from tests.support.events import JOB_ID, START, image, submitted
from tests.support.generate_bodies import diffusion_body
from tests.support.memory.log import MemoryLog
from tests.support.polling import eventually, running
from tests.support.telemetry.traces import (
    CALLER,
    SAMPLED,
    TRACE,
    UNWANTED,
    Collector,
    exporter_to,
    told,
)

TIMING = Timing(stage_s={"text": 0.25, "denoise": 0.5}, rows_per_call=4.0, steps=20)
OTHER = f"{TRACE}-{CALLER}"


def second(span: Span) -> tuple[float, float]:
    return (span.begin - START).total_seconds(), (span.end - START).total_seconds()


def tree(spans: Sequence[Span], parent: str | None, depth: int = 0) -> list[str]:
    """Names by depth, in the order of their beginning."""
    lines: list[str] = []
    for each in sorted((s for s in spans if s.parent == parent), key=lambda s: (s.begin, s.end)):
        lines += [f"{'  ' * depth}{each.name}", *tree(spans, each.id, depth + 1)]
    return lines


def test_a_job_is_one_tree_from_the_request_to_the_callback() -> None:
    job, _, spans = told(
        submitted(request={"prompt": "secret"}),
        Started(attempt=1, actor="a", given_at=START + timedelta(seconds=0.75)),
        image(0),
        Completed(images=1, timing=TIMING, beside=(OTHER,)),
    )
    spans += accept_spans(job, began=START - timedelta(seconds=1), ended=START)
    taken = SendResult(latency_s=0.5, status=200)
    spans += callback_spans(job, taken, ended=START + timedelta(seconds=90))
    assert tree(spans, None) == [
        "accept",
        "  append",
        "  job",
        "    queue",
        "    dispatch",
        "    attempt",
        "      text",
        "      denoise",
        "    project",
        "    callback",
    ]
    assert {span.trace for span in spans} == {JOB_ID.replace("-", "")}
    by_name = {span.name: span for span in spans}
    assert second(by_name["job"]) == (0, 3)
    assert second(by_name["queue"]) == (0, 0.75)
    assert second(by_name["dispatch"]) == (0.75, 1)
    assert second(by_name["attempt"]) == (1, 3)
    assert second(by_name["text"]) == (1, 1.25)
    assert second(by_name["denoise"]) == (1.25, 1.75)
    assert second(by_name["project"]) == (3, 60)
    assert second(by_name["callback"]) == (89.5, 90)
    assert by_name["denoise"].attributes == {"darkroom.rows_per_call": 4.0, "darkroom.steps": 20}
    assert [moment.name for moment in by_name["attempt"].moments] == ["image stored"]
    assert [moment.name for moment in by_name["job"].moments] == ["end"]
    assert by_name["attempt"].links == (OTHER,)
    assert not any(span.is_error for span in spans)
    assert "secret" not in repr(spans)
    assert "alice" not in repr(spans)


def test_attempts_that_failed_or_were_lost_are_there_with_the_waits_between() -> None:
    _, _, spans = told(
        submitted(),
        Started(attempt=1, actor="a"),
        AttemptFailed(attempt=1, message="no", blame=Blame.SUSPECT),
        Started(attempt=2, actor="b"),
        Started(attempt=3, actor="c"),
        Failed(message="No."),
    )
    attempts = [span for span in spans if span.name == "attempt"]
    assert [span.attributes["darkroom.outcome"] for span in attempts] == [
        "suspect",
        "lost",
        "failed",
    ]
    assert [second(span) for span in spans if span.name == "queue"] == [(0, 1), (2, 3)]
    assert next(span for span in spans if span.name == "job").is_error


def test_the_trace_is_the_callers_where_there_is_one() -> None:
    job, _, spans = told(submitted(), Failed(message="No."), traceparent=SAMPLED)
    accept, _ = accept_spans(job, began=START, ended=START)
    assert (accept.trace, accept.parent) == (TRACE, CALLER)
    assert {span.trace for span in spans} == {TRACE}


def test_what_the_caller_does_not_record_is_not_told() -> None:
    job, _, spans = told(submitted(), Failed(message="No."), traceparent=UNWANTED)
    assert spans == []
    assert accept_spans(job, began=START, ended=START) == []
    assert callback_spans(job, SendResult(latency_s=1, status=200), ended=START) == []


def test_the_same_job_has_the_same_ids_in_every_process() -> None:
    events = (submitted(), Started(attempt=1, actor="a"), Completed(images=0))
    ids = [span.id for span in told(*events)[2]]
    assert ids == [span.id for span in told(*events)[2]]
    assert len(set(ids)) == len(ids)


def test_the_clock_of_a_dispatcher_may_be_ahead() -> None:
    late = START + timedelta(seconds=9)
    started = Started(attempt=1, actor="a", given_at=late)
    _, _, spans = told(submitted(), started, Failed(message="No.", code=FailureCode.TIMEOUT))
    assert all(span.begin <= span.end for span in spans)
    assert next(s for s in spans if s.name == "job").attributes["darkroom.code"] == "timeout"


def test_a_job_that_was_submitted_again_is_linked_to_the_first() -> None:
    first, _, _ = told(submitted(), Failed(message="No."), traceparent=SAMPLED)
    _, _, spans = told(submitted(retry_of=first.id), Failed(message="No."), traceparent=SAMPLED)
    again = next(span for span in spans if span.name == "job")
    assert again.links == (TraceIds.of(first).job_link,)
    assert again.parent == CALLER


# To a collector.


SPANS = told(submitted(), Failed(message="No."))[2]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are sent as they come, and sent again soon."""
    monkeypatch.setattr("telemetry.exporter._GATHER_S", 0.0)
    monkeypatch.setattr("telemetry.exporter._FIRST_PAUSE_S", 0.01)


async def test_spans_arrive_as_otlp_has_them() -> None:
    collector = Collector()
    exporter = exporter_to(collector)
    _, _, spans = told(submitted(), Started(attempt=1, actor="a"), image(0), Failed(message="No."))
    async with running(exporter.run()):
        exporter.add(spans)
        await eventually(lambda: len(collector.spans) == len(spans))
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
    async with running(exporter.run()):
        await eventually(lambda: len(collector.spans) == 3)


@pytest.mark.parametrize("failure", [400, TypeError("an unexpected error")], ids=repr)
async def test_a_failure_that_will_not_pass_costs_these_spans_alone(
    failure: int | Exception,
) -> None:
    collector = Collector()
    collector.statuses = [failure]
    exporter = exporter_to(collector)
    async with running(exporter.run()):
        exporter.add(SPANS[:1])
        await eventually(lambda: not collector.statuses)
        exporter.add(SPANS[1:2])
        await eventually(lambda: collector.spans)
    assert [span.name for span in collector.spans] == [SPANS[1].name]


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
    async with running(exporter.run()):
        exporter.add(SPANS[:1])
        await eventually(lambda: len(collector.spans) == 1)
        exporter.add(SPANS[1:2])
        await eventually(lambda: len(collector.spans) == 2)
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


async def nothing_is_lost_but_spans(url: str, log: pytest.LogCaptureFixture) -> None:
    """Whatever the collector does, who tells of jobs never waits, and no more is kept."""
    exporter = SpanExporter(url, role="test", most=5, timeout_s=0.05)
    async with running(exporter.run()):
        for _ in range(100):
            exporter.add(SPANS)
        await eventually(
            lambda: log.messages.count("the collector does not accept spans; they wait") >= 2
        )
        exporter.add(SPANS)
        assert exporter.waiting == 5


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
async def test_a_collector_that_answers_badly_is_asked_again(
    answer: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with answering(answer) as (url, came):
        await nothing_is_lost_but_spans(url, caplog)
    assert len(came) >= 2


def test_without_a_collector_nothing_of_it_is_loaded() -> None:
    program = """
import sys, threading
from actors.roles.callbacks import DeliveryMetrics
from settings.log import TelemetrySettings
from telemetry.exporter import open_exporter
before = threading.active_count()
assert DeliveryMetrics(TelemetrySettings()).background == ()
assert open_exporter(TelemetrySettings(), "api") is None
loaded = [name for name in sys.modules if name.startswith("opentelemetry")]
assert not loaded, loaded
assert threading.active_count() == before
wanted = TelemetrySettings(otlp_url="http://127.0.0.1:4318")
assert open_exporter(wanted, "api") is not None
assert len(DeliveryMetrics(wanted).background) == 1
assert "opentelemetry.proto.trace.v1.trace_pb2" in sys.modules
assert threading.active_count() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


# Of every role.


@pytest.mark.parametrize("traceparent", [None, SAMPLED])
async def test_the_projection_tells_the_trace_of_a_job_that_ended(traceparent: str | None) -> None:
    log, collector = MemoryLog(), Collector()
    exporter = exporter_to(collector)
    traces = JobTraces(log, exporter)
    writer, job_id = JobWriter(log), new_id()
    outcome = await writer.submit(job_id, Submit(submitted()), traceparent=traceparent)
    assert outcome.job is not None
    async with (
        running(exporter.run()),
        running(traces.run()),
        temporary_database() as database,
    ):
        model = ReadModel(database, on_folded=traces.note)
        await model.apply(await log.read(job_id), expected=0)
        await writer.execute(Cancel(), outcome.job)
        await model.apply((await log.read(job_id))[1:], expected=1)
        await eventually(lambda: {span.name for span in collector.spans} >= {"job", "project"})


async def test_a_replica_tells_of_the_request_once(tmp_path: Path) -> None:
    collector = Collector()
    exporter = exporter_to(collector)
    async with running_edge(tmp_path) as edge:
        traced = replace(edge, app=edge.services.app(exporter=exporter))
        headers = {"Idempotency-Key": "order-1", "traceparent": SAMPLED}
        async with await traced.client() as client:
            answers = [
                await client.post("/diffusion/v1/generate", json=diffusion_body(), headers=headers)
                for _ in range(2)
            ]
    assert [answer.status_code for answer in answers] == [202, 202]
    async with running(exporter.run()):
        await eventually(lambda: len(collector.spans) >= 2)
    accept, append = collector.spans
    assert (accept.name, append.name) == ("accept", "append")
    assert accept.parent_span_id.hex() == CALLER
    assert accept.kind == accept.SPAN_KIND_SERVER
    assert append.parent_span_id == accept.span_id


async def test_each_try_of_a_callback_is_a_span() -> None:
    bench, tried = Bench(), list[str]()
    bench.on_attempt = lambda job, result: tried.append(f"{job.id} {result.status}")
    bench.sender.outcomes = [SendResult(latency_s=0.1, status=500)]
    job_id = await bench.ended_job("http://127.0.0.1/")
    await bench.deliver(job_id)
    assert tried == [f"{job_id} 500", f"{job_id} 200"]


# Headers by which a caller names a trace that is none.


WRONG = {
    "long": SAMPLED + "0" * 4000,
    "two": f"{SAMPLED}, {SAMPLED}",
    "upper case": SAMPLED.upper(),
    "version": f"ff{SAMPLED[2:]}",
    "other digits": "-".join(["00", "٣" * 32, "1" * 16, "01"]),
    "no digits": "'; drop table jobs; --",
}


async def test_a_trace_that_is_none_harms_nothing(tmp_path: Path) -> None:
    states = [(b"tracestate", b"a=" + b"b" * 20_000), *[(b"tracestate", b",=;\xff")] * 50]
    async with running_edge(tmp_path) as edge, await edge.client() as client:
        for case, sent in WRONG.items():
            headers = [(b"traceparent", sent.encode()), *states]
            answer = await client.post(
                "/diffusion/v1/generate", json=diffusion_body(), headers=headers
            )
            assert answer.status_code == 202, case
            assert (await edge.job(answer.json()["request_id"])).traceparent is None, case
