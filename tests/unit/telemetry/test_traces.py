"""The trace of a job on its way to a collector."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from actors.metering import DeliveryMetrics
from events.decisions import Cancel, Submit
from events.delivery_policy import SendResult
from events.ids import new_id
from events.log import JobWriter
from events.memory.log import MemoryLog
from events.store.read_model import ReadModel
from serve_app.api import create_api
from serve_app.replica import Replica
from settings.log import TelemetrySettings
from telemetry.tracing.exporter import open_exporter
from telemetry.tracing.job_traces import JobTraces
from tests.support.callbacks.bench import Bench
from tests.support.database import database_in
from tests.support.edge import running_edge
from tests.support.events import submitted
from tests.support.generate_bodies import diffusion_body
from tests.support.polling import eventually
from tests.support.telemetry.traces import CALLER, SAMPLED, Collector, exporter_to


@pytest.mark.parametrize("traceparent", [None, SAMPLED])
async def test_the_projection_tells_the_trace_of_a_job_that_ended(
    tmp_path: Path, traceparent: str | None
) -> None:
    log, collector = MemoryLog(), Collector()
    exporter = exporter_to(collector)
    traces = JobTraces(log, exporter)
    writer, job_id = JobWriter(log), new_id()
    outcome = await writer.submit(job_id, Submit(submitted()), traceparent=traceparent)
    assert outcome.job is not None
    tasks = [asyncio.create_task(each.run()) for each in (exporter, traces)]
    try:
        async with database_in(tmp_path) as database:
            model = ReadModel(database, on_folded=traces.note)
            await model.apply(await log.read(job_id), expected=0)
            await writer.execute(Cancel(), outcome.job)
            await model.apply((await log.read(job_id))[1:], expected=1)
        await eventually(lambda: {span.name for span in collector.spans} >= {"job", "project"})
    finally:
        for task in tasks:
            task.cancel()


async def test_a_replica_tells_of_the_request_once(tmp_path: Path) -> None:
    collector = Collector()
    exporter = exporter_to(collector)
    async with running_edge(tmp_path) as edge:
        replica = Replica(edge.services, ask_metrics=edge.ask_metrics, exporter=exporter)
        traced = replace(edge, app=create_api(replica))
        headers = {"Idempotency-Key": "order-1", "traceparent": SAMPLED}
        async with await traced.client() as client:
            answers = [
                await client.post("/diffusion/v1/generate", json=diffusion_body(), headers=headers)
                for _ in range(2)
            ]
    assert [answer.status_code for answer in answers] == [202, 202]
    task = asyncio.create_task(exporter.run())
    try:
        await eventually(lambda: len(collector.spans) >= 2)
    finally:
        task.cancel()
    accept, append = collector.spans
    assert (accept.name, append.name) == ("accept", "append")
    assert accept.parent_span_id.hex() == CALLER
    assert accept.kind == accept.SPAN_KIND_SERVER
    assert append.parent_span_id == accept.span_id


async def test_each_try_of_a_callback_is_a_span(tmp_path: Path) -> None:
    bench, tried = Bench(), list[str]()
    bench.on_try = lambda job, result: tried.append(f"{job.id} {result.status}")
    bench.sender.outcomes = [SendResult(latency_s=0.1, status=500)]
    job_id = await bench.ended_job("http://127.0.0.1/")
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    assert tried == [f"{job_id} 500", f"{job_id} 200"]


async def test_without_a_collector_there_is_nothing() -> None:
    assert open_exporter(TelemetrySettings(), "api") is None
    assert DeliveryMetrics(TelemetrySettings()).background == ()
    wanted = TelemetrySettings(otlp_url="http://127.0.0.1:4318")
    assert open_exporter(wanted, "api") is not None
    assert len(DeliveryMetrics(wanted).background) == 1
