"""What a job may cost: for the service, on an endpoint, with a key."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.graph.limits import Limits
from events.store.records import Endpoint
from settings.graph import GraphSettings
from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.support.uploads import png, upload

WORKFLOW = "/api/v1/workflow/generate"
DIFFUSION = "/diffusion/v1/generate"
SMALL = 33.6
"""What `workflow_body` costs, rounded up."""


def test_limits_without_settings_are_those_of_the_defaults() -> None:
    assert Limits(**Endpoint("any").limits(GraphSettings())) == Limits()


def from_upload(factor: float) -> dict[str, Any]:
    """A workflow that loads an image and enlarges it."""
    larger = {"image": ["1", 0], "upscale_method": "bicubic", "scale_by": factor}
    return {
        "prompt": {
            "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
            "2": {"class_type": "ImageScaleBy", "inputs": larger},
            "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
        }
    }


async def test_a_cost_is_answered_recorded_and_shown(edge: Edge, client: httpx.AsyncClient) -> None:
    accepted = (await client.post(WORKFLOW, json=workflow_body())).json()
    cost = accepted["cost"]
    assert cost["work"] == pytest.approx(SMALL, abs=0.1)
    assert (cost["rows"], cost["tokens"], cost["outputs"]) == (2, 77, 1)
    job_id = accepted["request_id"]
    recorded = (await edge.job(job_id)).submitted.cost
    assert recorded is not None
    assert recorded.model_dump() == cost
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["cost"] == cost


@pytest.mark.parametrize(
    ("flavour", "body"), [("workflow", workflow_body()), ("diffusion", diffusion_body())]
)
async def test_what_a_job_would_cost_is_told_without_one(
    edge: Edge, client: httpx.AsyncClient, flavour: str, body: dict[str, Any]
) -> None:
    checked = await client.post(f"/{flavour}/v1/check", json=body)
    await edge.project()
    assert (checked.status_code, (await client.get("/v1/jobs")).json()["jobs"]) == (200, [])
    accepted = (await client.post(f"/{flavour}/v1/generate", json=body)).json()
    assert checked.json()["cost"] == accepted["cost"]
    images = len(accepted["results"]) if flavour == "diffusion" else 0
    assert checked.json()["images"] == images


async def test_a_check_refuses_what_is_refused(client: httpx.AsyncClient) -> None:
    refused = workflow_body(steps=10_000)
    checked = await client.post("/workflow/v1/check", json=refused)
    submitted = await client.post(WORKFLOW, json=refused)
    assert (checked.status_code, checked.json()) == (400, submitted.json())
    query = {"callback_url": "https://example.com"}
    assert (await client.post("/workflow/v1/check", params=query)).status_code == 400


async def test_a_workflow_beyond_a_limit_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post(WORKFLOW, json=workflow_body(steps=10_000))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "cost_too_high"
    assert error["details"].startswith("node 3 (KSampler): the job costs 5,96")
    assert "at most 2,000 are taken; lower the steps" in error["details"]
    assert list(answer.json()["node_errors"]) == ["3"]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"steps": 150, "width": 1024, "height": 1024, "batch_size": 16}, "steps"),
        ({"prompt": "BREAK " * 1000}, "prompt"),
    ],
)
async def test_a_diffusion_request_beyond_a_limit_names_the_parameter(
    parameters: dict[str, Any], field: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body(**parameters))
    assert answer.status_code == 400
    (found,) = answer.json()["error"]["extra_info"]["fields"]
    assert (found["type"], found["field"]) == ("cost_too_high", field)
    assert "are taken" in found["message"]


async def test_an_endpoint_has_a_limit_of_its_own(edge: Edge, client: httpx.AsyncClient) -> None:
    await edge.services.endpoints.put(Endpoint(id="cheap", max_cost=10.0))
    await edge.services.endpoints.put(Endpoint(id="dear", max_cost=6000.0))
    await edge.services.endpoints.put(Endpoint(id="any", max_cost=0.0))
    long = workflow_body(steps=10_000)
    for endpoint, body, status in (
        ("cheap", workflow_body(), 400),
        ("dear", long, 202),
        ("any", long, 202),
    ):
        answer = await client.post(WORKFLOW, params={"endpoint": endpoint}, json=body)
        assert answer.status_code == status


@pytest.mark.parametrize(("max_cost", "status"), [(10.0, 400), (0.0, 202), (1e9, 202)])
async def test_a_key_has_a_limit_of_its_own(edge: Edge, max_cost: float, status: int) -> None:
    text = await edge.key()
    async with edge.client_with(text) as client:
        key_id = text.split("_")[1]
        assert await edge.services.keys.change(key_id, max_cost=max_cost) is not None
        answer = await client.post(WORKFLOW, json=workflow_body())
        assert answer.status_code == status


async def test_no_key_has_more_than_its_endpoint_takes(edge: Edge) -> None:
    text = await edge.key()
    async with edge.client_with(text) as client:
        await edge.services.keys.change(text.split("_")[1], max_cost=1e9)
        answer = await client.post(WORKFLOW, json=workflow_body(steps=10_000))
        assert answer.status_code == 400


async def test_an_upload_costs_what_its_size_makes_it_cost(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    await upload(client, "cat.png", data=png("red", size=(2000, 1000)))
    accepted = await client.post(WORKFLOW, json=from_upload(2.0))
    assert accepted.json()["cost"]["work"] == pytest.approx(2 * 4 + 8 * 1 + 8 * 4)
    answer = await client.post(WORKFLOW, json=from_upload(8.0))
    assert answer.status_code == 400
    assert answer.json()["error"]["details"].startswith("node 2 (ImageScaleBy): the job holds")
