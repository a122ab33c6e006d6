"""The page of metrics, as Prometheus gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from events.store.records import Scope
from telemetry.exposition import ProcessMetrics
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import diffusion_body
from tests.support.telemetry.samples import Samples


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running_edge(tmp_path) as edge:
        yield edge


@pytest.fixture
async def prometheus(edge: Edge) -> httpx.AsyncClient:
    return await edge.client("operator", scopes=[Scope.METRICS])


async def page(client: httpx.AsyncClient) -> Samples:
    answer = await client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Samples.of_page(answer.text)


async def test_refused_requests_are_counted_by_the_type_of_their_error(
    edge: Edge, prometheus: httpx.AsyncClient
) -> None:
    client = await edge.client("alice")
    refused = {
        "not_found": await client.get("/v1/jobs/0199a1b2-0000-7000-8000-000000000000"),
        "forbidden": await client.get("/v1/keys"),
        "invalid_request": await client.post("/diffusion/v1/generate", json={"steps": "many"}),
        "unauthorized": await edge.client_with(None).get("/v1/jobs"),
    }
    accepted = await client.post("/diffusion/v1/generate", json=diffusion_body())
    assert accepted.status_code == 202
    samples = await page(prometheus)
    for reason, answer in refused.items():
        assert answer.json()["error"]["type"] == reason
        assert samples("requests_refused_total", reason=reason) == 1


async def test_the_page_has_what_other_processes_say(
    edge: Edge, prometheus: httpx.AsyncClient
) -> None:
    router = ProcessMetrics("router", process="another-host:1")
    edge.said_metrics.append(await router.encoded())
    text = (await prometheus.get("/metrics")).text
    assert 'darkroom_info{process="another-host:1",role="router"' in text
    assert 'role="api"' in text


async def test_a_key_for_metrics_opens_nothing_else(prometheus: httpx.AsyncClient) -> None:
    for path in ("/v1/jobs", "/v1/keys", "/v1/endpoints", "/v1/models"):
        assert (await prometheus.get(path)).status_code == 403
