"""NUL and halves of surrogate pairs, wherever a request may hold a text: never a 500."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from events.store.records import Scope
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import workflow_body

GENERATE = "/workflow/v1/generate"


def named(name: str) -> dict[str, Any]:
    """A workflow that loads the image of this name."""
    return workflow_body() | {
        "prompt": {
            "1": {"class_type": "LoadImage", "inputs": {"image": name}},
            "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
        }
    }


async def post(client: Client, path: str, body: dict[str, Any]) -> httpx.Response:
    """In ASCII, which can say half of a surrogate pair."""
    headers = {"Content-Type": "application/json"}
    return await client.post(path, content=json.dumps(body), headers=headers)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/keys/a%00b"),
        ("PATCH", "/v1/keys/a%00b"),
        ("DELETE", "/v1/keys/a%00b"),
        ("POST", "/v1/keys/a%00b/rotate"),
        ("GET", "/v1/keys?owner=a%00b"),
        ("GET", "/v1/keys?cursor=a%00b"),
        ("GET", "/v1/jobs?endpoint=a%00b"),
        ("GET", "/v1/jobs?cursor=a%00b"),
        ("GET", "/v1/jobs/a%00b"),
        ("DELETE", "/v1/jobs/a%00b"),
        ("POST", "/v1/jobs/a%00b/cancel"),
        ("GET", "/v1/jobs/a%00b/callback"),
        ("GET", "/workflow/v1/result?request_id=a%00b"),
        ("DELETE", "/v1/uploads/a%00b"),
        ("GET", "/v1/uploads?cursor=a%00b"),
        ("GET", "/v1/files/a%00b/1/0.png?token=a%00b"),
    ],
)
async def test_of_a_path_or_a_query(edge: Edge, method: str, path: str) -> None:
    key = await edge.key("root", scopes=list(Scope))
    async with edge.client_with(key) as client:
        answer = await client.request(method, path, json={} if method == "PATCH" else None)
    assert answer.status_code in {400, 403, 404}, answer.text


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800"])
async def test_of_a_body(edge: Edge, client: Client, text: str) -> None:
    assert (await post(client, GENERATE, named(text))).status_code == 400
    admin = await edge.key("root", scopes=[Scope.ADMIN])
    async with edge.client_with(admin) as root:
        for body in ({"owner": text}, {"owner": "a", "name": text}):
            assert (await post(root, "/v1/keys", body)).status_code == 400


async def test_of_a_header(client: Client) -> None:
    headers = [("Idempotency-Key", b"a\x00b")]
    answer = await client.post(GENERATE, json=workflow_body(), headers=headers)
    assert answer.status_code in {202, 400}
