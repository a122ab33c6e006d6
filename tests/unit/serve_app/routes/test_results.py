"""Results: their images, how long they are waited for, and where the time went."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from datetime import timedelta

import pytest

from events.decisions import Cancel, Complete
from events.job_progress import JobProgress
from events.types import Completed, EventData, Failed, Started, Timing
from serve_app.routes.results import server_timing
from storage.file_names import SAFETENSORS, WEBP
from tests.support.edge import ACTOR, Client, Edge, submit
from tests.support.events import folded, submitted
from tests.support.generate_bodies import diffusion_body
from tests.support.live.stream import watching

PATHS = ("diffusion/v1/result", "api/v1/diffusion/result")


def result_url(job_id: str, **query: object) -> str:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return f"/diffusion/v1/result?request_id={job_id}{more}"


async def test_a_completed_job_has_its_images(edge: Edge, client: Client) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    for path in ("/diffusion/v1/result", "/api/v1/diffusion/result"):
        body = (await client.get(path, params={"request_id": job_id})).json()
        assert body["status"] == 1
        assert "message" not in body
        [item] = body["results"]
        assert item["status"] == 1
        assert item["url"].startswith(f"http://darkroom.test/files/{job_id}/0.png?token=")


@pytest.mark.parametrize("ended", [False, True])
async def test_no_cache_keeps_a_result(edge: Edge, client: Client, ended: bool) -> None:
    job_id = await submit(client)
    if ended:
        await edge.run(job_id)
    assert (await client.get(result_url(job_id))).headers["Cache-Control"] == "no-store"


async def test_a_completed_job_says_where_its_time_went(edge: Edge, client: Client) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    assert "Server-Timing" not in (await client.get(result_url(job_id))).headers
    timing = Timing(stage_s={"denoise": 0.5})
    await edge.execute(job_id, Complete(actor=ACTOR, images=0, timing=timing))
    assert "denoise;dur=500.0" in (await client.get(result_url(job_id))).headers["Server-Timing"]


async def test_a_finished_image_shows_while_the_rest_runs(edge: Edge, client: Client) -> None:
    job_id = await submit(client, batch_size=2)
    await edge.start(job_id)
    await edge.store_image(job_id, index=0)
    edge.progress[job_id] = JobProgress(done=1, total=2)
    body = (await client.get(result_url(job_id))).json()
    assert (body["status"], body["progress"]) == (0, 0.5)
    assert [item["status"] for item in body["results"]] == [1, 0]


async def test_row_and_log_give_the_same_answer(edge: Edge, client: Client) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    before = (await client.get(result_url(job_id))).content
    await edge.project()
    assert (await client.get(result_url(job_id))).content == before


class TestNotFound:
    @pytest.mark.parametrize(
        "request_id", ["0", "", "x" * 300, "../..", "0199a1b2-0000-7000-8000-000000000000", "\x00"]
    )
    async def test_an_unknown_id(self, client: Client, request_id: str) -> None:
        answer = await client.get("/diffusion/v1/result", params={"request_id": request_id})
        assert answer.status_code == 404

    async def test_another_flavours_path_says_where_it_is(self, client: Client) -> None:
        job_id = await submit(client)
        answer = await client.get("/workflow/v1/result", params={"request_id": job_id})
        assert answer.status_code == 404
        assert "/diffusion/v1/result" in answer.json()["error"]["message"]


class TestWait:
    async def test_the_answer_comes_when_the_job_ends(self, edge: Edge, client: Client) -> None:
        job_id = await submit(client)
        await edge.start(job_id)
        begun = time.monotonic()
        waiting = asyncio.create_task(client.get(result_url(job_id, wait=30)))
        await edge.store_image(job_id)
        await edge.complete(job_id)
        assert (await waiting).json()["status"] == 1
        assert time.monotonic() - begun < 25  # not the 30 s that it may wait

    async def test_a_cancelled_job_ends_the_wait(self, edge: Edge, client: Client) -> None:
        job_id = await submit(client)
        waiting = asyncio.create_task(client.get(result_url(job_id, wait=30)))
        await edge.execute(job_id, Cancel())
        assert (await waiting).json()["status"] == 2

    @pytest.mark.parametrize("projected", [False, True])
    async def test_a_job_that_has_ended_is_not_waited_for(
        self, edge: Edge, client: Client, projected: bool
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        if projected:
            await edge.project()
        begun = time.monotonic()
        assert (await client.get(result_url(job_id, wait=30))).json()["status"] == 1
        assert time.monotonic() - begun < 25  # not the 30 s that it may wait

    async def test_the_answer_comes_when_the_time_is_over(self, client: Client) -> None:
        assert (await client.get(result_url(await submit(client), wait=0.05))).json()["status"] == 0

    async def test_a_caller_that_goes_ends_the_wait(self, edge: Edge, client: Client) -> None:
        job_id = await submit(client)
        url = result_url(job_id, wait=60)
        begun = time.monotonic()
        async with watching(edge.app, url, await edge.key()) as caller:
            caller.leave()
            await caller.end()
        assert time.monotonic() - begun < 55  # not the 60 s that it may wait


LARGE = bytes(range(256)) * 2048


async def job_with(edge: Edge, client: Client, *files: bytes, end: bool = True) -> str:
    body = diffusion_body(batch_size=max(1, len(files)))
    answer = await client.post("/diffusion/v1/generate", json=body)
    job_id = str(answer.json()["request_id"])
    await edge.start(job_id)
    for index, data in enumerate(files):
        media_type = (None, WEBP, SAFETENSORS)[index % 3]
        await edge.store_image(job_id, index=index, data=data, media_type=media_type)
    if end:
        await edge.complete(job_id, images=len(files))
    return job_id


def paths(job_id: str) -> list[str]:
    of_flavour = [f"/{path}?request_id={job_id}&" for path in PATHS]
    return [*of_flavour, f"/v1/jobs/{job_id}/result?"]


async def test_files_are_in_the_result_where_it_is_asked_for_so(edge: Edge, client: Client) -> None:
    files = (LARGE, b"two", b"", b"\0" * 196_609)
    job_id = await job_with(edge, client, *files)
    for path in paths(job_id):
        answer = await client.get(f"{path}inline=true", headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200
        assert len(answer.content) == int(answer.headers["Content-Length"])
        assert answer.headers["Cache-Control"] == "no-store"
        items = answer.json()["results"]
        assert [b64decode(item.pop("data")) for item in items] == list(files)
        plain = (await client.get(path)).json()
        assert items == plain["results"]


async def test_what_is_there_is_shown_while_the_rest_runs(edge: Edge, client: Client) -> None:
    job_id = await job_with(edge, client, b"one", end=False)
    [item] = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert b64decode(item["data"]) == b"one"
    job_id = await job_with(edge, client, end=False)
    [item] = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert item == {"status": 0}


@pytest.mark.edge(max_inline_bytes=7)
async def test_of_more_than_the_limit_there_are_urls_alone(edge: Edge, client: Client) -> None:
    job_id = await job_with(edge, client, b"four", b"four", b"1")
    items = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert ["data" in item for item in items] == [True, False, False]
    assert all(item["url"] for item in items)


async def test_a_file_that_is_gone_is_left_out(edge: Edge, client: Client) -> None:
    job_id = await job_with(edge, client, b"one", b"two")
    await edge.services.images.delete(f"{job_id}/1/0.png")
    items = (await client.get(f"{paths(job_id)[0]}inline=true")).json()["results"]
    assert ["data" in item for item in items] == [False, True]


STARTED = Started(attempt=1, actor="a")
TIMING = Timing(stage_s={"text": 0.02, "denoise": 0.75, "store": 0.0304}, rows_per_call=6.4)


def test_the_stages_of_a_job_are_in_a_header() -> None:
    job = folded([submitted(), STARTED, Completed(images=0, timing=TIMING)])
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.ended_at - job.submitted_at == timedelta(seconds=2)
    assert server_timing(job) == {
        "Server-Timing": "queue;dur=1000.0, text;dur=20.0, denoise;dur=750.0, store;dur=30.4,"
        ' total;dur=2000.0, batch;desc="6.4 rows a call"'
    }


def test_a_job_without_a_call_of_the_model_has_no_batch() -> None:
    timing = Timing(stage_s={"vae": 0.1, "store": 0.01})
    header = server_timing(folded([submitted(), STARTED, Completed(images=0, timing=timing)]))
    assert "batch" not in header["Server-Timing"]


@pytest.mark.parametrize(
    "rest", [[], [STARTED], [STARTED, Completed(images=0)], [STARTED, Failed(message="No.")]]
)
def test_of_other_jobs_nothing_is_said(rest: list[EventData]) -> None:
    assert server_timing(folded([submitted(), *rest])) == {}
