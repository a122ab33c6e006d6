"""Members of `extra_data` for a ComfyUI server: they are encrypted, and nothing shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from events.types import Submitted
from storage.service_secret import unsealed
from tests.support.edge import Client, Edge, refusal
from tests.support.edge_services import SECRET
from tests.support.generate_bodies import workflow_body

GENERATE = "/workflow/v1/generate"
KEYS = {"api_key_comfy_org": "s3cret", "auth_token_comfy_org": {"deep": ["t0ken"]}}
PNGINFO = {"workflow": {"nodes": []}}
EXTRA_DATA = {**KEYS, "extra_pnginfo": PNGINFO, "client_id": "a", "create_time": 1}
UNKNOWN = {"1": {"class_type": "NodeOfAPack", "inputs": {}}}


@pytest.fixture(autouse=True)
async def endpoints(admin: Client) -> None:
    comfyui = {"id": "comfy", "engine": "comfyui", "comfyui_dir": "/srv/ComfyUI"}
    for endpoint in (comfyui, {"id": "both", "fallback": "comfy"}):
        assert (await admin.post("/v1/endpoints", json=endpoint)).is_success


def opened(submitted: Submitted) -> Any:
    text = submitted.sealed_extra_data
    return None if text is None else json.loads(unsealed(SECRET, text))


@pytest.mark.parametrize(
    ("endpoint", "prompt", "kept"),
    [
        ("comfy", UNKNOWN, KEYS),
        ("both", UNKNOWN, KEYS),
        ("both", workflow_body()["prompt"], None),
    ],
    ids=["ComfyUI", "the fallback", "Darkroom"],
)
async def test_only_a_job_for_comfyui_keeps_them(
    edge: Edge, client: Client, endpoint: str, prompt: Any, kept: Any
) -> None:
    body = {"prompt": prompt, "extra_data": EXTRA_DATA}
    submitted = await edge.submitted(
        await client.post(f"{GENERATE}?endpoint={endpoint}", json=body)
    )
    assert opened(submitted) == kept
    assert submitted.request["extra_data"] == {"extra_pnginfo": PNGINFO}


async def test_they_are_shown_nowhere(
    edge: Edge, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"prompt": UNKNOWN, "extra_data": EXTRA_DATA}
    job_id = (await client.post("/prompt?endpoint=comfy", json=body)).json()["prompt_id"]
    submitted = (await edge.job(job_id)).submitted
    assert opened(submitted) == KEYS
    paths = [f"/history/{job_id}", "/queue", f"/api/jobs/{job_id}", f"/v1/jobs/{job_id}"]
    paths += [f"/v1/jobs/{job_id}/result", "/v1/jobs?results=true"]
    shown = [(await client.get(path)).text for path in paths]
    await edge.run(job_id)
    await edge.project()
    shown += [(await client.get(path)).text for path in paths]
    assert job_id in shown[-1]
    shown.append((await client.get(f"/v1/jobs/{job_id}/events")).text)
    shown += [submitted.model_dump_json(), repr(submitted), caplog.text]
    assert not [
        each for each in shown if "s3cret" in each or "t0ken" in each or "comfy_org" in each
    ]


async def test_too_many_are_refused_without_their_values(client: Client) -> None:
    body = {"prompt": UNKNOWN, "extra_data": {"token": "s3cret" * 2000}}
    answer = await client.post(f"{GENERATE}?endpoint=comfy", json=body)
    assert refusal(answer) == (400, "invalid_request")
    assert answer.json()["error"]["extra_info"]["fields"][0]["field"] == "extra_data"
    assert "s3cret" not in answer.text
