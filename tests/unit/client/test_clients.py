"""The client against the HTTP edge itself; without asyncio by way of a thread of the edge's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from darkroom_client import AsyncDarkroom, Darkroom, JobFailed, Options, Refused, State

from events.decisions import FailAttempt
from tests.support.edge import ACTOR, Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.support.uploads import MP4, png

URL = "http://darkroom.test"


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    async with running_edge(tmp_path, log=FailingLog()) as edge:
        yield edge


@pytest.fixture
async def darkroom(edge: Edge) -> AsyncIterator[AsyncDarkroom]:
    transport = httpx.ASGITransport(edge.app)
    async with AsyncDarkroom(URL, await edge.key(), transport=transport) as darkroom:
        yield darkroom


async def test_a_job_from_its_submission_to_its_files(
    edge: Edge, darkroom: AsyncDarkroom, tmp_path: Path
) -> None:
    options = Options(image_format="jpeg", image_quality=50)
    job = await darkroom.diffusion(diffusion_body(), options=options)
    assert job.state is State.QUEUED
    await edge.run(job.request_id)
    result = (await darkroom.wait(job, timeout_s=30)).require_completed()
    [image] = result.images
    assert await darkroom.download(image) == b"pixels"
    [path] = await darkroom.save(result, tmp_path / "new" / "folder")
    assert (path.name, path.read_bytes()) == (f"{job.request_id}-0.png", b"pixels")
    inline = await darkroom.result(job, inline=True)
    assert inline.images[0].data == b"pixels"
    assert [event.name async for event in darkroom.watch(job)][-1] == "completed"
    await darkroom.erase(job)
    with pytest.raises(Refused) as refused:
        await darkroom.result(job)
    assert refused.value.status == 404


async def test_a_named_workflow_is_run_with_its_inputs(edge: Edge, darkroom: AsyncDarkroom) -> None:
    await darkroom.call("POST", "/v1/workflows", json={"name": "portrait"} | workflow_body())
    job = await darkroom.run("portrait@1", {"prompt": "a dog"})
    named = (await edge.job(job.request_id)).submitted.workflow
    assert named is not None
    assert (named.version, named.inputs["prompt"]) == (1, "a dog")


async def test_a_failed_job_says_why(edge: Edge, darkroom: AsyncDarkroom) -> None:
    job = await darkroom.workflow(workflow_body()["prompt"])
    await edge.start(job.request_id)
    failed = FailAttempt(ACTOR, "No room.", final=True, code="out_of_memory")
    await edge.execute(job.request_id, failed)
    result = await darkroom.wait(job)
    with pytest.raises(JobFailed, match="No room") as failure:
        result.require_completed()
    assert (failure.value.code, failure.value.is_retryable) == ("out_of_memory", False)


async def test_uploads_cancels_and_refusals(darkroom: AsyncDarkroom) -> None:
    assert (await darkroom.upload("cat.png", png())).name == "cat.png"
    video = await darkroom.upload("clip.mp4", MP4)
    assert (video.width, video.media_type) == (None, "video/mp4")
    job = await darkroom.diffusion(diffusion_body(), idempotency_key="a")
    assert (await darkroom.diffusion(diffusion_body(), idempotency_key="a")) == job
    assert await darkroom.cancel(job)
    assert await darkroom.cancel(job)
    with pytest.raises(Refused, match="steps"):
        await darkroom.diffusion(diffusion_body(steps=0))


class Threaded(httpx.BaseTransport):
    """The edge, which runs on the loop of the test, for a client in a thread."""

    def __init__(self, edge: Edge) -> None:
        self._transport = httpx.ASGITransport(edge.app)
        self._loop = asyncio.get_running_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        sent = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.content
        )
        return asyncio.run_coroutine_threadsafe(self._send(sent), self._loop).result(60)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        content = await response.aread()
        headers = [(k, v) for k, v in response.headers.items() if k != "content-encoding"]
        return httpx.Response(response.status_code, headers=headers, content=content)


async def test_the_same_without_asyncio(edge: Edge, tmp_path: Path) -> None:
    key, transport = await edge.key(), Threaded(edge)
    loop = asyncio.get_running_loop()

    def program() -> Iterator[object]:
        with Darkroom(URL, key, transport=transport) as darkroom:
            darkroom.upload("cat.png", png())
            job = darkroom.diffusion(diffusion_body())
            asyncio.run_coroutine_threadsafe(edge.run(job.request_id), loop).result(60)
            result = darkroom.wait(job).require_completed()
            yield [event.name for event in darkroom.watch(job)][-1]
            yield [path.read_bytes() for path in darkroom.save(result, tmp_path)]
            yield darkroom.cancel(job)
            darkroom.erase(job)

    assert await asyncio.to_thread(lambda: list(program())) == ["completed", [b"pixels"], False]


async def test_the_key_goes_to_no_other_host(darkroom: AsyncDarkroom) -> None:
    from darkroom_client.core import Call
    from darkroom_client.requests import request_of

    request = request_of(darkroom._http, Call("GET", "https://elsewhere.example/0.png"))
    assert "Authorization" not in request.headers
    assert "Authorization" in request_of(darkroom._http, Call("GET", "/v1/usage")).headers
