"""How large a refusal may become, whatever a caller sends in half a megabyte."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from events.store.records import Scope
from serve_app.error_responses import ApiError
from tests.support.edge import Client, Edge
from tests.support.engine.workflows import node
from tests.support.generate_bodies import diffusion_body, workflow_body

MAX_BYTES = 512 * 1024
LARGEST = 200_000
WORKFLOW, DIFFUSION, KEYS = "/workflow/v1/generate", "/diffusion/v1/generate", "/v1/keys"
ENDPOINTS = "/v1/endpoints"


def many(letter: str) -> dict[str, int]:
    return {f"{letter}{number:x}": 0 for number in range(30_000)}


def bad_nodes(letter: str, count: int) -> dict[str, Any]:
    ids = [f"{number}".ljust(128, letter) for number in range(count)]
    return {i: node("SaveImage", images=[last, 7]) for i, last in pairwise(ids)}


LONG = {letter: letter * (400_000 // len(letter.encode())) for letter in ("a", "ä", "\U0001f600")}
HOSTILE = {
    "bad nodes": (WORKFLOW, {"prompt": bad_nodes("a", 1000)}),
    "bad nodes, ä": (WORKFLOW, {"prompt": bad_nodes("ä", 800)}),
    "bad nodes, controls": (WORKFLOW, {"prompt": bad_nodes("\x01", 300)}),
    "long id": (WORKFLOW, {"prompt": {LONG["a"]: node("SaveImage")}}),
    "long type": (WORKFLOW, {"prompt": {"1": node(LONG["a"])}}),
    "long link": (WORKFLOW, {"prompt": {"1": node("SaveImage", images=[LONG["ä"], 0])}}),
    "long value": (WORKFLOW, workflow_body(steps=LONG["a"])),
    "long choice": (WORKFLOW, workflow_body(scheduler=LONG["\U0001f600"])),
    "texts": (WORKFLOW, {**workflow_body(), "extra_data": {"extra_pnginfo": many("\n")}}),
    "long text": (WORKFLOW, {**workflow_body(), "extra_data": {"extra_pnginfo": {"a": LONG["ä"]}}}),
    "members": (DIFFUSION, diffusion_body() | many("x")),
    "long member": (DIFFUSION, diffusion_body() | {LONG["ä"]: 0}),
    "long name": (DIFFUSION, diffusion_body(sampler_name=LONG["a"])),
    "long prompt": (DIFFUSION, diffusion_body(prompt=LONG["a"])),
    "settings": (DIFFUSION, diffusion_body(override_settings=many("x"))),
    "lists": (DIFFUSION, diffusion_body(styles=[0] * 150_000)),
    "key members": (KEYS, {"owner": "a"} | many("x")),
    "scopes": (KEYS, {"owner": "a", "scopes": ["x"] * 100_000}),
    "hosts": (KEYS, {"owner": "a", "limits": {"callback_hosts": [0] * 100_000}}),
    "labels": (ENDPOINTS, {"id": "a", "labels": many("x")}),
    "resources": (ENDPOINTS, {"id": "a", "resources": dict.fromkeys(many("x"), "x")}),
    "owner": (KEYS, {"owner": LONG["a"]}),
}


@pytest.fixture
async def client(edge: Edge) -> AsyncGenerator[Client]:
    async with await edge.client("root", scopes=frozenset(Scope)) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), HOSTILE.values(), ids=HOSTILE)
async def test_a_refusal_is_small_and_comes_soon(
    client: Client, path: str, body: dict[str, Any]
) -> None:
    content = json.dumps(body, ensure_ascii=False).encode()
    assert len(content) <= MAX_BYTES
    headers = {"Content-Type": "application/json"}
    times = []
    for _ in range(3):
        began = time.process_time()
        answer = await client.post(path, content=content, headers=headers)
        times.append(time.process_time() - began)
    assert answer.status_code == 400
    assert len(answer.content) < LARGEST
    assert set(answer.json()) == {"error", "node_errors"}
    assert min(times) < 0.5  # meant to be under 100 ms


async def test_a_refusal_says_how_many_errors_there_are(client: Client) -> None:
    extra_data = {"extra_pnginfo": {f"\n{n}": 0 for n in range(75)}}
    answer = await client.post(WORKFLOW, json={**workflow_body(), "extra_data": extra_data})
    error = answer.json()["error"]
    assert error["extra_info"]["errors"] == 75
    assert len(error["extra_info"]["fields"]) == 50
    assert error["details"].endswith("and 65 more")


def test_half_of_a_surrogate_pair_can_be_repeated() -> None:
    body = bytes(ApiError(400, "invalid_request", "\ud800 ä").response().body)
    assert json.loads(body.decode())["error"]["message"] == "\ud800 ä"
