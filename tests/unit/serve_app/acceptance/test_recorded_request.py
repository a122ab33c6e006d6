"""What is recorded of a request: what a run needs of it, in the types that it needs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.edge import Edge
from tests.support.generate_bodies import workflow_body

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
