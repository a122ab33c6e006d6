"""Whatever another owner calls of any adapter, nothing of the first one's is shown or changed.

It goes over the routes themselves, so that a new one is among them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from events.ids import new_id
from events.job_progress import JobProgress
from events.store.records import Scope
from serve_app.protocols.registry import PROTOCOLS, HttpProtocol
from tests.support.edge import Client, Edge, lasting_headers, submit
from tests.support.generate_bodies import workflow_body
from tests.support.protocols.documents import PICTURE

SECRET = "alices-secret"
"""In all that Alice says."""
EVERYTHING = {"clear": True}


@dataclass(frozen=True, slots=True)
class Alice:
    """What she has: a job that has ended, one that runs, one that waits, and files."""

    client: Client
    job_ids: tuple[str, ...]
    asset_ids: tuple[str, ...]
    secret: str = SECRET

    @property
    def ids(self) -> tuple[str, ...]:
        secret = self.secret
        return (*self.job_ids, *self.asset_ids, f"{secret}.png", f"{secret}.json", secret)


@pytest.fixture
async def alice(edge: Edge, client: Client) -> Alice:
    graph = workflow_body()
    graph["prompt"]["6"]["inputs"]["text"] = SECRET
    job_ids = []
    for _ in range(3):
        answer = await client.post("/prompt", json=graph | {"client_id": SECRET})
        job_ids.append(answer.json()["prompt_id"])
    job_ids.append(await submit(client, prompt=SECRET))
    for id in job_ids[:2]:
        await edge.start(id)
    await edge.store_image(job_ids[0], data=PICTURE + SECRET.encode(), node="9")
    await edge.complete(job_ids[0])
    said = JobProgress(3, 20, node="3", class_type=SECRET, preview=SECRET.encode())
    edge.progress.tell(job_ids[1], said)
    await edge.project()
    upload = await client.post("/upload/image", files={"image": (f"{SECRET}.png", PICTURE)})
    asset = await client.post("/api/v2/assets", files={"file": (f"{SECRET}.png", PICTURE)})
    stored = await client.post(f"/userdata/{SECRET}.json", content=SECRET.encode())
    setting = await client.post(f"/settings/{SECRET}", json=SECRET)
    option = await client.post("/sdapi/v1/options", json={"sd_vae": f"{SECRET}.safetensors"})
    assert all(each.is_success for each in (upload, asset, stored, setting, option)), option.text
    asset_ids = (asset.json()["id"], f"{job_ids[0]}-0", asset.json()["hash"])
    return Alice(client, tuple(job_ids), asset_ids)


def routes(adapter: HttpProtocol) -> Iterator[APIRoute]:
    for router in adapter.routers:
        yield from (route for route in router.routes if isinstance(route, APIRoute))


def urls(route: APIRoute, alice: Alice) -> Iterator[str]:
    """Its path with each of Alice's things in its places."""
    path = route.path_format.replace("{twin}", "")
    names = [name for _, name, _, _ in Formatter().parse(path) if name]
    if path.endswith("/view"):
        for id, kind in itertools.product(alice.job_ids, ("output", "temp", "input")):
            for name in ("darkroom_00001_.png", f"{alice.secret}.png"):
                yield f"{path}?filename={name}&subfolder={id}&type={kind}"
        return
    for values in itertools.product(alice.ids, repeat=len(names)):
        yield path.format(**dict(zip(names, values, strict=True)))


def body(url: str, alice: Alice) -> dict[str, Any]:
    """Of a request that may change something: it names all that Alice has."""
    if url.startswith("/upload/mask"):
        named = f'{{"filename": "{alice.secret}.png", "type": "input"}}'
        return {"files": {"image": ("m.png", PICTURE)}, "data": {"original_ref": named}}
    ids = list(alice.job_ids)
    members = {"delete": ids, "job_ids": ids, "prompt_id": ids[1], "hash": alice.asset_ids[2]}
    return {"json": {**members, **EVERYTHING}}


def named(route: APIRoute, *owners: Alice) -> Iterator[tuple[str, ...]]:
    """Yield a method, and for each owner the same URL with their things."""
    for each in itertools.product(
        sorted(route.methods), zip(*(urls(route, o) for o in owners), strict=True)
    ):
        yield each[0], *each[1]


def told(answer: httpx.Response, owner: Alice) -> tuple[int, str, dict[str, str]]:
    """Return an answer without what was asked for and without times."""
    text = answer.text
    for id in owner.ids:
        text = text.replace(id, "?")
    headers = lasting_headers(answer)
    return answer.status_code, re.sub(r"\d{10,}|\d+\.\d+", "0", text), headers


# `test_mcp.py` has the jobs of other owners, because `/mcp` names no job in its path.
WITH_IDS = [each for each in PROTOCOLS if each.name != "mcp"]


@pytest.mark.parametrize("adapter", WITH_IDS, ids=lambda each: each.name)
async def test_nothing_of_an_owner_is_shown_to_or_changed_by_another_one(
    edge: Edge, adapter: HttpProtocol, alice: Alice
) -> None:
    before = [await edge.job(id) for id in alice.job_ids]
    job_ids = tuple(new_id() for _ in alice.job_ids)
    assets = (new_id(), f"{job_ids[0]}-0", f"blake3:{'0' * 64}")
    nobody = Alice(alice.client, job_ids, assets, secret="unknown-thing")
    async with (
        await edge.client("bob", scopes=tuple(Scope)) as bob,
        await edge.client("carl", scopes=tuple(Scope)) as carl,
    ):
        for route in routes(adapter):
            for method, url, unknown in named(route, alice, nobody):
                sent = {} if method in {"GET", "HEAD"} else body(url, alice)
                answer = await bob.request(method, url, **sent)
                assert answer.status_code < 500, (method, url)
                sent_unknown = {} if method in {"GET", "HEAD"} else body(unknown, nobody)
                other = await carl.request(method, unknown, **sent_unknown)
                assert told(other, nobody) == told(answer, alice), (method, url, unknown)
                # An answer may say what was asked for.
                asked = url.rpartition("/")[2].encode()
                assert sent or SECRET.encode() not in answer.content.replace(asked, b""), url
                shown = [id for id in alice.job_ids if id in answer.text and id not in url]
                assert shown == [], (method, url)
    assert [await edge.job(id) for id in alice.job_ids] == before
    assert (await alice.client.get(f"/userdata/{SECRET}.json")).content == SECRET.encode()
    assert (await alice.client.get(f"/settings/{SECRET}")).json() == SECRET
    assert (await alice.client.get(f"/api/v2/assets/{alice.asset_ids[0]}")).status_code == 200
    assert (await alice.client.get("/sdapi/v1/options")).json()["sd_vae"].startswith(SECRET)
