"""Requests drawn from what is known of each adapter's routes: none is answered by a 5xx.

`DARKROOM_PROPERTY_EXAMPLES` says how many are drawn for each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.store.records import Scope
from serve_app.protocols.registry import PROTOCOLS, HttpProtocol
from tests.support.edge import Client, Edge, running_edge
from tests.support.generate_bodies import workflow_body
from tests.support.protocols.documents import PICTURE, Known, document_of

EXAMPLES = int(os.environ.get("DARKROOM_PROPERTY_EXAMPLES", "60"))
LOOK_S = 0.002


@dataclass(frozen=True, slots=True)
class Caller:
    """Sends requests while each job that they begin is run."""

    edge: Edge
    client: Client
    known: Known

    async def answer(self, request: requests.PreparedRequest) -> httpx.Response:
        # With a key that works: what is drawn for it would end nearly every request at 401.
        headers = {**request.headers, "Authorization": self.client.headers["Authorization"]}
        assert request.method is not None
        assert request.url is not None
        body = request.body.encode() if isinstance(request.body, str) else request.body
        call = self.client.request(request.method, request.url, headers=headers, content=body)
        answering = asyncio.create_task(call)
        while not (await asyncio.wait({answering}, timeout=LOOK_S))[0]:
            await self._run_jobs()
        await self._run_jobs()
        return answering.result()

    async def _run_jobs(self) -> None:
        for job_id in self.edge.log.job_ids():
            job = await self.edge.job(job_id)
            if job.end is None and job.started_at is None:
                await self.edge.run(job_id, data=PICTURE)
        read_model = self.edge.services.read_model
        if await read_model.offset() < await self.edge.log_contents.last_sequence():
            await self.edge.project()


@pytest.fixture
def caller(tmp_path: Path, runner: asyncio.Runner) -> Iterator[Caller]:
    stack = AsyncExitStack()
    edge = runner.run(stack.enter_async_context(running_edge(tmp_path, stream_max_s=0.01)))
    client = runner.run(stack.enter_async_context(runner.run(edge.client(scopes=tuple(Scope)))))
    yield Caller(edge, client, runner.run(_known(edge, client)))
    runner.run(stack.aclose())


async def _known(edge: Edge, client: Client) -> Known:
    """Of a client that has an upload, a job that has ended and one that waits."""
    files = {"image": ("cat.png", PICTURE)}
    assert (await client.post("/upload/image", files=files)).is_success
    asset = (await client.post("/api/v2/assets", files={"file": ("a.png", PICTURE)})).json()
    prompt = workflow_body() | {"client_id": "known"}
    job_id = (await client.post("/prompt", json=prompt)).json()["prompt_id"]
    await edge.run(job_id, data=PICTURE, node="9")
    await edge.project()
    document = edge.app.openapi()
    schemas = {
        flavour: document["paths"][f"/{flavour}/v1/generate"]["post"]["requestBody"]["content"][
            "application/json"
        ]["schema"]
        for flavour in ("workflow", "diffusion")
    }
    return Known(
        job_ids=(job_id,),
        asset_ids=(asset["id"], f"{job_id}-0", asset["hash"]),
        names=("cat.png", "darkroom_00001_.png", "checkpoints", "KSampler", "webp;50", "input"),
        schemas=document["components"]["schemas"],
        workflow=schemas["workflow"],
        diffusion=schemas["diffusion"],
    )


@pytest.mark.parametrize("adapter", PROTOCOLS, ids=lambda each: each.name)
def test_no_drawn_request_is_answered_by_a_server_error(
    adapter: HttpProtocol, runner: asyncio.Runner, caller: Caller
) -> None:
    document = schemathesis.openapi.from_dict(document_of(adapter, caller.known))
    cases = [
        each.ok().as_strategy(generation_mode=mode)
        for each in document.get_all_operations()
        for mode in schemathesis.GenerationMode
    ]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(cases))
    def is_no_server_error(case: schemathesis.Case) -> None:
        drawn = case.as_transport_kwargs(base_url="http://darkroom.test")
        answer = runner.run(caller.answer(requests.Request(**drawn).prepare()))
        assert answer.status_code < 500, (answer.status_code, answer.text[:500])

    is_no_server_error()
