"""The page of metrics: what one process says, and what all of them do."""

from __future__ import annotations

import asyncio
import zlib

import pytest
from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import Metric

from events.errors import DatabaseUnavailable, LogUnavailable
from settings.version import VERSION
from telemetry.edge_metrics import EdgeMetrics
from telemetry.exposition import ProcessMetrics, Said, page_of
from telemetry.gauges import gauge, gauge_by
from tests.support.telemetry.samples import Samples


class Process:
    """One with a counter, at a number of its own."""

    def __init__(self, name: str, jobs: int) -> None:
        self.metrics = ProcessMetrics("role", process=name)
        Counter("darkroom_jobs", "Jobs.", registry=self.metrics.registry).inc(jobs)

    async def said(self) -> Said:
        return await self.metrics.said()


async def test_a_page_has_each_metric_once_with_the_samples_of_all() -> None:
    page = page_of([await Process("b", 2).said(), await Process("a", 3).said()]).decode()
    assert page.count("# TYPE darkroom_jobs_total counter\n") == 1
    assert page.count("# HELP darkroom_jobs_total Jobs.\n") == 1
    assert page.count("darkroom_jobs_total{") == 2
    assert Samples.of_page(page)("jobs_total") == 5


async def test_every_process_says_its_role_its_version_and_its_memory() -> None:
    page = page_of([await ProcessMetrics("router").said()]).decode()
    assert 'role="router"' in page
    assert Samples.of_page(page)("info", version=VERSION) == 1
    assert "\nprocess_resident_memory_bytes{" in page
    assert "_created" not in page


async def test_a_histogram_keeps_its_form() -> None:
    metrics = ProcessMetrics("results")
    Histogram("darkroom_s", "S.", registry=metrics.registry, buckets=(1, 2)).observe(1.5)
    samples = Samples.of_page(page_of([await metrics.said()]).decode())
    assert samples("s_bucket", le="1.0") == 0
    assert samples("s_bucket", le="+Inf") == 1
    assert samples("s_count") == 1


@pytest.mark.parametrize("error", [DatabaseUnavailable(), LogUnavailable()])
async def test_what_cannot_be_looked_up_is_absent_and_the_rest_is_there(error: Exception) -> None:
    async def fails() -> list[Metric]:
        raise error

    async def works() -> list[Metric]:
        return [gauge("a", "A.", 1), gauge_by("of", "b", "B.", {"x": 2})]

    metrics = ProcessMetrics("results")
    metrics.add(fails)
    metrics.add(works)
    samples = Samples.of_page(page_of([await metrics.said()]).decode())
    assert samples("a") == 1
    assert samples("b", of="x") == 2


async def test_what_does_not_answer_in_time_is_absent_and_the_rest_is_there() -> None:
    async def hangs() -> list[Metric]:
        await asyncio.Event().wait()
        raise AssertionError

    async def works() -> list[Metric]:
        return [gauge("a", "A.", 1)]

    metrics = ProcessMetrics("results", look_s=0.01)
    metrics.add(hangs)
    metrics.add(works)
    assert Samples.of_page(page_of([await metrics.said()]).decode())("a") == 1


async def test_what_a_process_says_survives_the_way() -> None:
    said = await ProcessMetrics("router").said()
    assert Said.decode(said.encode()) == said


@pytest.mark.parametrize(
    "broken",
    [b"", b"no zlib", zlib.compress(b"no json"), zlib.compress(b"[]"), zlib.compress(b"{}"),
     zlib.compress(b'{"process": "a", "families": []}'),
     zlib.compress(b'{"process": "a", "families": {"b": ["one"]}}')],
)  # fmt: skip
async def test_an_answer_that_is_none_is_passed_over(broken: bytes) -> None:
    async def ask() -> list[bytes]:
        return [broken, (await Process("b", 2).said()).encode()]

    page = (await EdgeMetrics(ask).page()).decode()
    assert Samples.of_page(page)("jobs_total") == 2


async def test_a_replica_says_what_it_knows_where_nobody_else_is_reached() -> None:
    async def ask() -> list[bytes]:
        return []

    metrics = EdgeMetrics(ask)
    metrics.note_refusal("queue_full")
    page = (await metrics.page()).decode()
    assert Samples.of_page(page)("requests_refused_total", reason="queue_full") == 1


async def test_its_own_answer_to_its_own_question_counts_once() -> None:
    async def ask() -> list[bytes]:
        return [await metrics.encoded()]

    metrics = EdgeMetrics(ask)
    metrics.note_refusal("queue_full")
    page = (await metrics.page()).decode()
    assert Samples.of_page(page)("requests_refused_total", reason="queue_full") == 1


async def test_all_processes_are_asked_once_a_second_at_most() -> None:
    asked, now = 0, 0.0

    async def ask() -> list[bytes]:
        nonlocal asked
        asked += 1
        return []

    metrics = EdgeMetrics(ask, clock=lambda: now)
    first = await metrics.page()
    now = 0.9
    assert await metrics.page() == first
    assert asked == 1
    now = 1.1
    await metrics.page()
    assert asked == 2
