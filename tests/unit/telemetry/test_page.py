"""The page of metrics: what one process says, what all of them do, and how it is served."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import Counter
from prometheus_client.metrics_core import Metric

from events.errors import DatabaseUnavailable, LogUnavailable
from events.store.records import Scope
from settings.version import VERSION
from telemetry.api_metrics import ApiMetrics
from telemetry.exposition import MetricsSnapshot, ProcessMetrics, gauge, gauge_by, page_of
from tests.support.edge import running_edge
from tests.support.generate_bodies import diffusion_body
from tests.support.telemetry.samples import Samples


class Process:
    """One with a counter, at a number of its own."""

    def __init__(self, name: str, jobs: int) -> None:
        self.metrics = ProcessMetrics("role", process=name)
        Counter("darkroom_jobs", "Jobs.", registry=self.metrics.registry).inc(jobs)

    async def snapshot(self) -> MetricsSnapshot:
        return await self.metrics.snapshot()


async def test_a_page_has_each_metric_once_with_the_samples_of_all() -> None:
    page = page_of([await Process("b", 2).snapshot(), await Process("a", 3).snapshot()]).decode()
    assert page.count("# TYPE darkroom_jobs_total counter\n") == 1
    assert page.count("# HELP darkroom_jobs_total Jobs.\n") == 1
    assert page.count("darkroom_jobs_total{") == 2
    assert Samples.of_page(page)("jobs_total") == 5


async def test_every_process_says_its_role_its_version_and_its_memory() -> None:
    page = page_of([await ProcessMetrics("router").snapshot()]).decode()
    assert 'role="router"' in page
    assert Samples.of_page(page)("info", version=VERSION) == 1
    assert "\nprocess_resident_memory_bytes{" in page
    assert "_created" not in page


async def fails() -> list[Metric]:
    raise DatabaseUnavailable


async def is_away() -> list[Metric]:
    raise LogUnavailable


async def hangs() -> list[Metric]:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("collect", [fails, is_away, hangs])
async def test_what_cannot_be_looked_up_in_time_is_absent_and_the_rest_is_there(
    collect: Callable[[], Awaitable[list[Metric]]],
) -> None:
    async def works() -> list[Metric]:
        return [gauge("a", "A.", 1), gauge_by("of", "b", "B.", {"x": 2})]

    metrics = ProcessMetrics("results", collect_timeout_s=0.01)
    metrics.add(collect)
    metrics.add(works)
    samples = Samples.of_page(page_of([await metrics.snapshot()]).decode())
    assert samples("a") == 1
    assert samples("b", of="x") == 2


async def test_what_a_process_says_survives_the_way() -> None:
    said = await ProcessMetrics("router").snapshot()
    assert MetricsSnapshot.decode(said.encode()) == said


@pytest.mark.parametrize(
    "broken",
    [b"", b"no zlib", zlib.compress(b"no json"), zlib.compress(b"[]"), zlib.compress(b"{}"),
     zlib.compress(b'{"process": "a", "families": []}'),
     zlib.compress(b'{"process": "a", "families": {"b": ["one"]}}')],
)  # fmt: skip
async def test_an_answer_that_is_none_is_passed_over(broken: bytes) -> None:
    async def ask() -> list[bytes]:
        return [broken, (await Process("b", 2).snapshot()).encode()]

    page = (await ApiMetrics(ask).page()).decode()
    assert Samples.of_page(page)("jobs_total") == 2


@pytest.mark.parametrize("is_asked", [False, True])
async def test_what_a_replica_knows_itself_is_there_once_whoever_answers(is_asked: bool) -> None:
    async def ask() -> list[bytes]:
        return [await metrics.encoded()] if is_asked else []

    metrics = ApiMetrics(ask)
    metrics.note_refusal("queue_full")
    page = (await metrics.page()).decode()
    assert Samples.of_page(page)("requests_refused_total", reason="queue_full") == 1


async def test_all_processes_are_asked_once_a_second_at_most() -> None:
    asked, now = 0, 0.0

    async def ask() -> list[bytes]:
        nonlocal asked
        asked += 1
        return []

    metrics = ApiMetrics(ask, clock=lambda: now)
    first = await metrics.page()
    now = 0.9
    assert await metrics.page() == first
    assert asked == 1
    now = 1.1
    await metrics.page()
    assert asked == 2


# As Prometheus gets it.


async def test_refused_requests_are_counted_by_the_type_of_their_error(tmp_path: Path) -> None:
    async with running_edge(tmp_path) as edge:
        client = await edge.client("alice")
        refused = {
            "not_found": await client.get("/v1/jobs/0199a1b2-0000-7000-8000-000000000000"),
            "forbidden": await client.get("/v1/keys"),
            "invalid_request": await client.post("/diffusion/v1/generate", json={"steps": "many"}),
            "unauthorized": await edge.client_with(None).get("/v1/jobs"),
        }
        accepted = await client.post("/diffusion/v1/generate", json=diffusion_body())
        assert accepted.status_code == 202
        prometheus = await edge.client("operator", scopes=[Scope.METRICS])
        page = await prometheus.get("/metrics")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = Samples.of_page(page.text)
    for reason, answer in refused.items():
        assert answer.json()["error"]["type"] == reason
        assert samples("requests_refused_total", reason=reason) == 1
