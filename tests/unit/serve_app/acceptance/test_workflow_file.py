"""A workflow as it comes from ComfyUI: with and without a member `prompt`."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.support.generate_bodies import workflow_body

GENERATE = "/workflow/v1/generate"


async def test_the_bare_file_of_a_graph_is_taken(client: httpx.AsyncClient) -> None:
    answer = await client.post(GENERATE, json=workflow_body()["prompt"])
    assert answer.status_code == 202
    job = (await client.get(f"/v1/jobs/{answer.json()['request_id']}")).json()
    assert job["request"]["prompt"].keys() == workflow_body()["prompt"].keys()


@pytest.mark.parametrize("body", [{"3": 1}, {"3": {}}, {"3": {"class_type": "KSampler"}, "4": 1}])
async def test_what_is_no_graph_is_no_prompt(
    client: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    answer = await client.post(GENERATE, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "no_prompt")
