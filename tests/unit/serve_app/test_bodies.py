"""How the bodies of requests wait for their turn, and how slowly they may come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import diffusion_body, workflow_body

JSON = {"Content-Type": "application/json"}
PATH = "/diffusion/v1/generate"
LARGE = json.dumps(diffusion_body(prompt="a" * 20_000)).encode()


@asynccontextmanager
async def edge_with(folder: Path, **settings: float) -> AsyncGenerator[Edge]:
    """It holds two large bodies, one of each owner, and does not wait for the rest of any."""
    limits = {"max_held_body_bytes": 2 * len(LARGE), "max_unread_body_bytes": 0}
    async with running_edge(folder, **limits, **settings) as edge:
        yield edge


class Sender:
    """A body of which all but the last byte has been sent."""

    def __init__(self, client: httpx.AsyncClient, body: bytes = LARGE) -> None:
        self.may_end, self.begun = asyncio.Event(), asyncio.Event()
        headers = {**JSON, "Content-Length": str(len(body))}
        content = self._content(body)
        self.answer = asyncio.create_task(client.post(PATH, content=content, headers=headers))

    async def _content(self, body: bytes) -> AsyncGenerator[bytes]:
        self.begun.set()
        yield body[:-1]
        await self.may_end.wait()
        yield body[-1:]


async def test_a_body_waits_for_its_turn(tmp_path: Path) -> None:
    async with (
        edge_with(tmp_path) as edge,
        await edge.client("alice") as alice,
        await edge.client("bob") as bob,
    ):
        first, second = Sender(alice), Sender(alice)
        await first.begun.wait()
        other = Sender(bob)
        await other.begun.wait()
        assert not second.begun.is_set()  # half of the bytes are one owner's
        small = await alice.post(PATH, json=diffusion_body())
        assert small.status_code == 202
        for each in (first, other, second):
            each.may_end.set()
            assert (await each.answer).status_code == 202


async def test_who_waits_too_long_for_a_turn_gets_503(tmp_path: Path) -> None:
    async with (
        edge_with(tmp_path, body_wait_s=0.1) as edge,
        await edge.client("alice") as alice,
    ):
        first = Sender(alice)
        await first.begun.wait()
        second = Sender(alice)
        answer = await second.answer
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "busy"
        assert answer.headers["Retry-After"] == "5"
        assert not second.begun.is_set()
        first.may_end.set()
        assert (await first.answer).status_code == 202


async def test_a_body_that_stops_coming_gets_408_and_ends_its_turn(tmp_path: Path) -> None:
    async with (
        edge_with(tmp_path, body_grace_s=0.2) as edge,
        await edge.client("alice") as alice,
    ):
        slow = Sender(alice)
        answer = await slow.answer
        assert answer.status_code == 408
        assert answer.json()["error"]["type"] == "body_too_slow"
        assert answer.headers["Connection"] == "close"
        again = Sender(alice)
        again.may_end.set()
        assert (await again.answer).status_code == 202


async def test_a_large_body_is_checked_like_a_small_one(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge, await edge.client("alice") as alice:
        nodes = {f"n{n}": {"class_type": "Nope", "inputs": {}} for n in range(200)}
        body = workflow_body()
        body["prompt"] |= nodes
        refused = await alice.post("/workflow/v1/generate", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["type"] == "missing_node_type"
        broken = await alice.post(PATH, content=LARGE[:-1], headers=JSON)
        assert broken.json()["error"]["type"] == "invalid_json"


async def test_no_key_no_turn(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge, edge.client_with(None) as stranger:
        sender = Sender(stranger)
        answer = await sender.answer
        assert answer.status_code == 401
        assert answer.headers["Connection"] == "close"
        assert not sender.begun.is_set()


async def test_what_has_no_body_or_was_read_keeps_its_connection(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge, await edge.client("alice") as alice:
        assert "Connection" not in (await alice.get("/v1/jobs")).headers
        assert "Connection" not in (await alice.post(PATH, content=LARGE, headers=JSON)).headers
        assert "Connection" not in (await alice.post(PATH, content=b"{", headers=JSON)).headers
