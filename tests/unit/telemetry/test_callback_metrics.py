"""What the role that sends callbacks counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from events.delivery_policy import SendResult
from telemetry.callback_metrics import Breakers
from tests.support.callbacks.bench import Bench
from tests.support.polling import eventually
from tests.support.telemetry.samples import Samples

ADDRESS = "http://127.0.0.1/"


async def test_a_delivery_is_counted_by_its_tries_and_by_its_end(tmp_path: Path) -> None:
    bench = Bench()
    bench.sender.outcomes = [SendResult(latency_s=0.3, status=500)]
    job_id = await bench.ended_job(ADDRESS)
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    samples = Samples.of(bench.registry)
    assert samples("callback_tries_total", outcome="rejected") == 1
    assert samples("callback_tries_total", outcome="taken") == 1
    assert samples("callback_try_seconds_sum") == pytest.approx(0.4)
    assert samples("callbacks_ended_total", outcome="delivered") == 1


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (SendResult(latency_s=0.0, error="not allowed", refused=True), "refused"),
        (SendResult(latency_s=0.1, status=410), "rejected"),
    ],
)
async def test_a_delivery_that_is_given_up_is_exhausted(
    tmp_path: Path, result: SendResult, outcome: str
) -> None:
    bench = Bench()
    bench.sender.outcomes = [result]
    await bench.ended_job(ADDRESS)
    async with bench.running(tmp_path):
        await eventually(bench.nothing_is_due)
    samples = Samples.of(bench.registry)
    assert samples("callback_tries_total", outcome=outcome) == 1
    assert samples("callbacks_ended_total", outcome="exhausted") == 1


async def test_tries_without_an_answer_count_without_a_latency(tmp_path: Path) -> None:
    bench = Bench()
    bench.sender.outcomes = [SendResult(latency_s=9.0, error="no answer within 9 s")]
    job_id = await bench.ended_job(ADDRESS)
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    samples = Samples.of(bench.registry)
    assert samples("callback_tries_total", outcome="unanswered") == 1
    assert samples("callback_try_seconds_sum") == pytest.approx(0.1)


async def test_open_breakers_are_those_of_now() -> None:
    samples = Samples(await Breakers(lambda: 3).look())
    assert samples("callback_breakers_open") == 3
