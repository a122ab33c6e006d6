"""Jobs: their lists, cancellation and erasure, and their results."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import timedelta

import pytest

from events.decisions import Cancel, Complete, FailAttempt
from events.errors import LogUnavailable
from events.ids import lane_of
from events.job_progress import JobProgress
from events.log import utc_now
from events.types import Completed, Erased, EventData, Failed, Started, Timing
from serve_app.routes.jobs import server_timing
from storage.file_names import SAFETENSORS, WEBP
from storage.images import ImageNotFound
from tests.support.edge import ACTOR, Client, Edge, submit
from tests.support.events import folded, submitted
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body
from tests.support.live.stream import watching


async def listed(client: Client, query: str = "") -> list[str]:
    answer = await client.get(f"/v1/jobs{query}")
    return [job["request_id"] for job in answer.json()["jobs"]]


class TestList:
    async def test_it_has_the_callers_jobs_newest_first(
        self, edge: Edge, client: Client, bob: Client
    ) -> None:
        ids = [await submit(client) for _ in range(3)]
        await submit(bob)
        await edge.project()
        assert len(await listed(bob)) == 1
        assert await listed(client) == ids[::-1]

    async def test_it_has_the_images_where_they_are_asked_for(
        self, edge: Edge, client: Client
    ) -> None:
        id = await submit(client)
        await edge.run(id)
        await edge.project()
        [without] = (await client.get("/v1/jobs")).json()["jobs"]
        [job] = (await client.get("/v1/jobs?results=true")).json()["jobs"]
        assert "results" not in without
        assert job["results"] == (await client.get(f"/v1/jobs/{id}/result")).json()["results"]
        assert job["result_count"] == 1

    async def test_it_has_the_first_images_of_a_job_with_many(
        self, edge: Edge, client: Client
    ) -> None:
        await submit(client, n_iter=9)
        await edge.project()
        [job] = (await client.get("/v1/jobs?results=true")).json()["jobs"]
        assert (len(job["results"]), job["result_count"]) == (4, 9)

    async def test_filters_narrow_it(self, edge: Edge, client: Client) -> None:
        ended = await submit(client)
        answer = await client.post("/workflow/v1/generate", json=workflow_body())
        waiting = answer.json()["request_id"]
        await edge.run(ended)
        await edge.project()
        expected = {
            "?status=0": [waiting],
            "?status=1": [ended],
            "?status=2": [],
            "?flavour=workflow": [waiting],
            "?endpoint=default": [waiting, ended],
            "?endpoint=other": [],
        }
        assert {query: await listed(client, query) for query in expected} == expected

    async def test_it_tells_a_cancelled_job_from_a_failed_one(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await submit(client)
        await edge.project()
        [waiting] = (await client.get("/v1/jobs")).json()["jobs"]
        assert (waiting["state"], waiting.get("error")) == ("queued", None)
        await client.post(f"/v1/jobs/{job_id}/cancel")
        await edge.project()
        [job] = (await client.get("/v1/jobs")).json()["jobs"]
        assert (job["status"], job["state"]) == (2, "cancelled")
        assert job["error"] == {"code": "cancelled", "retryable": False}
        assert job["message"] == "The job was cancelled."


class TestShow:
    async def test_it_has_request_result_attempts_and_timings(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await submit(client)
        await edge.start(job_id)
        await edge.execute(job_id, FailAttempt(actor=ACTOR, message="a hiccup", final=False))
        await edge.run(job_id)
        body = (await client.get(f"/v1/jobs/{job_id}")).json()
        assert body["attempts"] == 2
        assert body["last_failure"] == "a hiccup"
        assert body["request"] == (await edge.job(job_id)).submitted.request
        result = await client.get(f"/diffusion/v1/result?request_id={job_id}")
        assert body["result"] == result.json()
        assert set(body["timings"]) == {"queued_s", "running_s", "total_s"}

    async def test_nothing_of_a_recorded_request_is_left_out(self, client: Client) -> None:
        extra_data = {"extra_pnginfo": {"none": None, "list": [None, {"none": None}]}}
        body = {**workflow_body(), "extra_data": extra_data}
        answer = await client.post("/workflow/v1/generate", json=body)
        shown = (await client.get(f"/v1/jobs/{answer.json()['request_id']}")).json()
        assert shown["request"] == {"prompt": body["prompt"], "extra_data": extra_data}


class TestCancel:
    async def test_a_job_that_waits_ends_at_once(self, edge: Edge, client: Client) -> None:
        job_id = await submit(client)
        assert (await client.post(f"/v1/jobs/{job_id}/cancel")).json() == {"cancelled": True}
        result = (await client.get(f"/diffusion/v1/result?request_id={job_id}")).json()
        assert (result["status"], result["message"]) == (2, "The job was cancelled.")
        assert edge.queue.removed == [("default", lane_of("alice"), job_id)]

    async def test_an_entry_that_cannot_be_removed_does_not_undo_it(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await submit(client)
        edge.queue.error = LogUnavailable()
        assert (await client.post(f"/v1/jobs/{job_id}/cancel")).json() == {"cancelled": True}


class TestErase:
    async def test_nothing_of_a_job_that_has_ended_is_left(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        await edge.project()
        result = f"/diffusion/v1/result?request_id={job_id}"
        [image] = (await client.get(result)).json()["results"]
        answer = await client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()) == (200, {"erased": True})
        for path in (result, f"/v1/jobs/{job_id}", image["url"]):
            assert (await client.get(path)).status_code == 404
        assert (await client.post(f"/v1/jobs/{job_id}/cancel")).status_code == 404
        assert (await client.get("/v1/jobs")).json()["jobs"] == []
        with pytest.raises(ImageNotFound):
            await edge.services.images.get(f"{job_id}/1/0.png")
        [left] = await edge.log.read(job_id)
        assert isinstance(left.data, Erased)
        await edge.project()
        assert (await client.get(result)).status_code == 404

    async def test_a_job_that_waits_is_cancelled_first(self, edge: Edge, client: Client) -> None:
        job_id = await submit(client)
        await client.delete(f"/v1/jobs/{job_id}")
        assert (await edge.job(job_id)).version == 3  # submitted, cancelled, erased
        assert edge.queue.removed == [("default", lane_of("alice"), job_id)]

    async def test_what_cannot_be_removed_yet_is_said_and_done_by_the_next_try(
        self, edge: Edge, client: Client, log: FailingLog
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        log.purge_error = LogUnavailable()
        answer = await client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()) == (202, {"erased": False})
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 404
        assert (await edge.services.read_model.due_erasures(utc_now(), limit=9))[0][0] == job_id
        log.recover()
        answer = await client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()) == (200, {"erased": True})


PATHS = ("/diffusion/v1/result", "/api/v1/diffusion/result")


def result_url(job_id: str, **query: object) -> str:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return f"/diffusion/v1/result?request_id={job_id}{more}"


async def test_a_completed_job_has_its_images(edge: Edge, client: Client) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    for path in PATHS:
        body = (await client.get(path, params={"request_id": job_id})).json()
        assert body["status"] == 1
        assert "message" not in body
        [item] = body["results"]
        assert item["status"] == 1
        assert item["url"].startswith(f"http://darkroom.test/files/{job_id}/0.png?token=")


async def test_no_cache_keeps_a_result(edge: Edge, client: Client) -> None:
    job_id = await submit(client)
    assert (await client.get(result_url(job_id))).headers["Cache-Control"] == "no-store"
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
    async def test_an_unknown_id(self, client: Client) -> None:
        for job_id in ("0", "", "x" * 300, "../..", "0199a1b2-0000-7000-8000-000000000000", "\x00"):
            answer = await client.get("/diffusion/v1/result", params={"request_id": job_id})
            assert answer.status_code == 404, job_id

    async def test_another_flavours_path_says_where_it_is(self, client: Client) -> None:
        job_id = await submit(client)
        answer = await client.get("/workflow/v1/result", params={"request_id": job_id})
        assert answer.status_code == 404
        assert "/diffusion/v1/result" in answer.json()["error"]["message"]


class TestWait:
    @pytest.fixture(autouse=True)
    def _ends_early(self) -> Iterator[None]:
        begun = time.monotonic()
        yield
        assert time.monotonic() - begun < 25  # not the 30 s that each wait may take

    async def test_the_answer_comes_when_the_job_ends(self, edge: Edge, client: Client) -> None:
        done, cancelled = await submit(client), await submit(client)
        urls = [result_url(job_id, wait=30) for job_id in (done, cancelled)]
        waiting = [asyncio.create_task(client.get(url)) for url in urls]
        await edge.run(done)
        await edge.execute(cancelled, Cancel())
        assert [(await answer).json()["status"] for answer in waiting] == [1, 2]

    async def test_a_job_that_has_ended_is_not_waited_for(self, edge: Edge, client: Client) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        assert (await client.get(result_url(job_id, wait=30))).json()["status"] == 1
        await edge.project()
        assert (await client.get(result_url(job_id, wait=30))).json()["status"] == 1

    async def test_the_answer_comes_when_the_time_is_over(self, client: Client) -> None:
        assert (await client.get(result_url(await submit(client), wait=0.05))).json()["status"] == 0

    async def test_a_caller_that_goes_ends_the_wait(self, edge: Edge, client: Client) -> None:
        url = result_url(await submit(client), wait=30)
        async with watching(edge.app, url, await edge.key()) as caller:
            caller.leave()
            await caller.end()


LARGE = bytes(range(256)) * 2048


async def job_with(edge: Edge, client: Client, *files: bytes, end: bool = True) -> str:
    job_id = await submit(client, batch_size=max(1, len(files)))
    await edge.start(job_id)
    for index, data in enumerate(files):
        media_type = (None, WEBP, SAFETENSORS)[index % 3]
        await edge.store_image(job_id, index=index, data=data, media_type=media_type)
    if end:
        await edge.complete(job_id, images=len(files))
    return job_id


def paths(job_id: str) -> list[str]:
    of_flavour = [f"{path}?request_id={job_id}&" for path in PATHS]
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
