"""`/prompt`, as ComfyUI's clients call it."""

from __future__ import annotations

import json
from typing import Any

import httpx

from events.ids import new_id
from tests.support.edge import Edge
from tests.support.generate_bodies import workflow_body
from tests.unit.serve_app.adapters.comfyui.conftest import CLIENT, queue


async def test_a_prompt_is_a_job_at_each_twin_of_the_path(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    for place in ("", "/api", "/comfy/api"):
        answer = await client.post(f"{place}/prompt", json=workflow_body())
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert said["node_errors"] == {}
        assert said["number"] > 0
        job = await edge.job(said["prompt_id"])
        assert job.submitted.flavour == "workflow"
        assert job.submitted.client_id == ""


async def test_json_is_taken_as_the_form_that_pythons_own_client_calls_it(
    client: httpx.AsyncClient,
) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps(workflow_body())
    answer = await client.post("/prompt", content=body, headers=headers)
    assert answer.status_code == 200, answer.text


async def test_a_graph_that_is_not_valid_is_told_node_by_node(client: httpx.AsyncClient) -> None:
    answer = await client.post("/prompt", json=workflow_body(steps=0))
    assert answer.status_code == 400
    said = answer.json()
    assert said["error"]["type"] == "prompt_outputs_failed_validation"
    assert said["node_errors"]["3"]["errors"][0]["type"] == "value_smaller_than_min"


MALFORMED = [
    b"",
    b"[]",
    b"null",
    b'{"prompt": 3}',
    b'{"prompt": {"1": null}}',
    b'{"prompt": {"1": {"class_type": [], "inputs": 4}}}',
    b'{"prompt": {"1": {"class_type": "LoadImage", "inputs": {"image": [1]}}}}',
    b'{"prompt": {}, "client_id": {}}',
    b'{"prompt": {}, "client_id": "' + b"a" * 129 + b'"}',
    b'{"prompt": {}, "prompt_id": "../../x"}',
    b'{"prompt": {}, "extra_data": [], "partial_execution_targets": {"a": 1}}',
    b'{"prompt": {}, "partial_execution_targets": [[[]], {}, null]}',
]


async def test_a_malformed_prompt_is_400(client: httpx.AsyncClient) -> None:
    for body in MALFORMED:
        answer = await client.post("/prompt", content=body)
        assert answer.status_code == 400, answer.text
        assert "node_errors" in answer.json()


async def test_an_id_that_the_caller_chose_is_the_jobs_and_a_repeat_meets_it(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    id = new_id()
    assert await queue(client, prompt_id=id) == id
    assert await queue(client, prompt_id=id) == id
    other = await client.post("/prompt", json=workflow_body(seed=8) | {"prompt_id": id})
    assert other.status_code == 409
    async with await edge.client("bob") as bob:
        body = workflow_body() | {"client_id": CLIENT, "prompt_id": id}
        assert (await bob.post("/prompt", json=body)).status_code == 409
        refused = await bob.post("/prompt", json=body | workflow_body(steps=0))
        assert refused.status_code == 400  # as for an id that nobody has


async def test_outputs_that_are_not_wanted_are_left_out(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    body: dict[str, Any] = workflow_body()
    body["prompt"]["10"] = {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}}
    id = await queue(client, prompt=body["prompt"], partial_execution_targets=["10"])
    assert {"9", "10"} & (await edge.job(id)).submitted.request["prompt"].keys() == {"10"}


PREVIEWS = [
    ("", None, None),
    ("", "auto", True),
    ("", "none", None),
    ("/comfy/api", None, True),
    ("/comfy/api", "none", None),
]


async def test_previews_are_made_for_whoever_asks_and_for_comfyuis_page(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    for place, method, is_shown in PREVIEWS:
        extra = {} if method is None else {"extra_data": {"preview_method": method}}
        answer = await client.post(f"{place}/prompt", json=workflow_body() | extra)
        assert (await edge.job(answer.json()["prompt_id"])).submitted.preview is is_shown


async def test_uploads_are_found_by_the_names_that_clients_make_of_them(
    edge: Edge, client: httpx.AsyncClient, png: bytes
) -> None:
    form = {"image": ("cat.png", png)}
    answer = await client.post("/upload/image", files=form, data={"subfolder": "pets"})
    assert answer.json() == {"name": "cat.png", "subfolder": "pets", "type": "input"}
    prompt = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "pets/cat.png [input]"}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }
    job = await edge.job(await queue(client, prompt=prompt))
    assert list(job.submitted.input_files or {}) == ["cat.png"]


async def test_it_is_said_how_many_of_the_callers_jobs_are_left(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    await queue(client)
    await edge.project()
    assert (await client.get("/prompt")).json() == {"exec_info": {"queue_remaining": 1}}
    async with await edge.client("bob") as bob:
        assert (await bob.get("/prompt")).json() == {"exec_info": {"queue_remaining": 0}}
