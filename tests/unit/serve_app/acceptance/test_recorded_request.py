"""What is recorded of a request: what a run needs of it, in the types that it needs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.edge import Edge
from tests.support.generate_bodies import diffusion_body, workflow_body

WORKFLOW = "/workflow/v1/generate"
DIFFUSION = "/diffusion/v1/generate"


async def recorded(edge: Edge, client: httpx.AsyncClient, path: str, body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return (await edge.job(answer.json()["request_id"])).submitted.request


@pytest.mark.parametrize("inputs", [None, 5, "ckpt_name", {"ckpt_name": ["a", 0]}])
async def test_a_node_that_no_output_needs_is_not_recorded(
    edge: Edge, client: httpx.AsyncClient, inputs: Any
) -> None:
    body = workflow_body()
    idle = {"class_type": "KSampler", "inputs": inputs}
    sent = {"prompt": {"idle": idle, **body["prompt"]}}
    assert await recorded(edge, client, WORKFLOW, sent) == body


async def test_an_input_that_no_node_declares_is_not_recorded(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    body = workflow_body()
    body["prompt"]["3"]["inputs"]["unknown"] = "x" * 100_000
    body["prompt"]["3"]["is_changed"] = ["x" * 100_000]
    assert await recorded(edge, client, WORKFLOW, body) == workflow_body()


async def test_literals_are_recorded_in_their_types(edge: Edge, client: httpx.AsyncClient) -> None:
    request = await recorded(edge, client, WORKFLOW, workflow_body(steps="20", cfg="8"))
    inputs = request["prompt"]["3"]["inputs"]
    assert (inputs["steps"], inputs["cfg"]) == (20, 8.0)


async def test_of_extra_data_the_texts_of_images_are_recorded(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    pnginfo = {"workflow": {"nodes": []}}
    sent = {**workflow_body(), "extra_data": {"extra_pnginfo": pnginfo, "token": "x" * 100_000}}
    request = await recorded(edge, client, WORKFLOW, sent)
    assert request["extra_data"] == {"extra_pnginfo": pnginfo}


async def test_extra_data_of_half_a_megabyte_is_refused(client: httpx.AsyncClient) -> None:
    sent = {**workflow_body(), "extra_data": {"extra_pnginfo": {"workflow": "x" * 400_000}}}
    answer = await client.post(WORKFLOW, json=sent)
    assert answer.status_code == 400
    assert "at most 65536 are taken" in answer.json()["error"]["details"]


async def test_a_member_without_effect_is_not_recorded(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    without_effect = {"save_images": True, "hr_prompt": "x" * 100_000, "styles": [], "eta": None}
    body = diffusion_body(seed=7)
    assert await recorded(edge, client, DIFFUSION, body | without_effect) == body


async def test_numbers_of_a_diffusion_request_are_recorded_as_numbers(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    request = await recorded(edge, client, DIFFUSION, diffusion_body(steps=f"{' ' * 100_000}20"))
    assert request["steps"] == 20


async def test_the_name_of_a_model_is_bounded(client: httpx.AsyncClient) -> None:
    body = {**diffusion_body(), "sd_model_checkpoint": "x" * 1025}
    answer = await client.post(DIFFUSION, json=body)
    assert answer.status_code == 400
