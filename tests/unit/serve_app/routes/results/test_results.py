import asyncio
import time

import httpx
import pytest

from events.decisions import Cancel, Complete, FailAttempt
from events.job_cost import Timing
from events.wire.progress import JobProgress
from tests.support.edge import ACTOR, Edge
from tests.support.generate_bodies import diffusion_body

WORKFLOW = "/workflow/v1/generate"
DIFFUSION = "/diffusion/v1/generate"


async def submit(client: httpx.AsyncClient, **parameters: object) -> str:
    answer = await client.post(DIFFUSION, json=diffusion_body(**parameters))
    return str(answer.json()["request_id"])


def result_url(job_id: str, **query: object) -> str:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return f"/diffusion/v1/result?request_id={job_id}{more}"


async def test_a_completed_job_has_its_images(edge: Edge, client: httpx.AsyncClient) -> None:
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
async def test_no_cache_keeps_a_result(edge: Edge, client: httpx.AsyncClient, ended: bool) -> None:
    job_id = await submit(client)
    if ended:
        await edge.run(job_id)
    answer = await client.get(result_url(job_id))
    assert answer.headers["Cache-Control"] == "no-store"


async def test_a_completed_job_says_where_its_time_went(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    assert "Server-Timing" not in (await client.get(result_url(job_id))).headers
    timing = Timing(stage_s={"denoise": 0.5})
    await edge.execute(job_id, Complete(actor=ACTOR, images=0, timing=timing))
    assert "denoise;dur=500.0" in (await client.get(result_url(job_id))).headers["Server-Timing"]


async def test_a_finished_image_shows_while_the_rest_runs(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    job_id = await submit(client, batch_size=2)
    await edge.start(job_id)
    await edge.store_image(job_id, index=0)
    edge.progress[job_id] = JobProgress(done=1, total=2)
    body = (await client.get(result_url(job_id))).json()
    assert (body["status"], body["progress"]) == (0, 0.5)
    assert [item["status"] for item in body["results"]] == [1, 0]


async def test_a_failed_job_says_why(edge: Edge, client: httpx.AsyncClient) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    edge.progress[job_id] = JobProgress(done=1, total=2)
    await edge.execute(job_id, FailAttempt(actor=ACTOR, message="no memory", final=True))
    body = (await client.get(result_url(job_id))).json()
    assert (body["status"], body["message"]) == (2, "no memory")
    assert body["results"] == [{"status": 2}]
    assert "progress" not in body


@pytest.mark.parametrize("projected", [False, True])
async def test_row_and_log_give_the_same_answer(
    edge: Edge, client: httpx.AsyncClient, projected: bool
) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    before = (await client.get(result_url(job_id))).content
    if projected:
        await edge.project()
    assert (await client.get(result_url(job_id))).content == before


class TestNotFound:
    @pytest.mark.parametrize(
        "request_id", ["0", "", "x" * 300, "../..", "0199a1b2-0000-7000-8000-000000000000", "\x00"]
    )
    async def test_an_unknown_id(self, client: httpx.AsyncClient, request_id: str) -> None:
        answer = await client.get("/diffusion/v1/result", params={"request_id": request_id})
        assert answer.status_code == 404

    @pytest.mark.parametrize("projected", [False, True])
    async def test_another_owners_is_as_unknown_and_another_flavours_says_where_it_is(
        self, edge: Edge, client: httpx.AsyncClient, projected: bool
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        if projected:
            await edge.project()
        unknown = await client.get(result_url("0199a1b2-0000-7000-8000-000000000000"))
        flavour = await client.get("/workflow/v1/result", params={"request_id": job_id})
        async with await edge.client("bob") as bob:
            owner = await bob.get(result_url(job_id))
        assert flavour.status_code == owner.status_code == 404
        assert owner.json() == unknown.json()
        assert "/diffusion/v1/result" in flavour.json()["error"]["message"]

    async def test_a_missing_id_is_a_bad_request(self, client: httpx.AsyncClient) -> None:
        answer = await client.get("/diffusion/v1/result")
        assert answer.status_code == 400
        assert answer.json()["error"]["extra_info"]["fields"][0]["field"] == "request_id"


class TestWait:
    async def test_the_answer_comes_when_the_job_ends(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        await edge.start(job_id)
        begun = time.monotonic()
        waiting = asyncio.create_task(client.get(result_url(job_id, wait=30)))
        await edge.store_image(job_id)
        await edge.complete(job_id)
        answer = await waiting
        assert answer.json()["status"] == 1
        assert time.monotonic() - begun < 5

    async def test_a_cancelled_job_ends_the_wait(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        waiting = asyncio.create_task(client.get(result_url(job_id, wait=30)))
        await edge.execute(job_id, Cancel())
        assert (await waiting).json()["status"] == 2

    @pytest.mark.parametrize("projected", [False, True])
    async def test_a_job_that_has_ended_is_not_waited_for(
        self, edge: Edge, client: httpx.AsyncClient, projected: bool
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        if projected:
            await edge.project()
        begun = time.monotonic()
        assert (await client.get(result_url(job_id, wait=30))).json()["status"] == 1
        assert time.monotonic() - begun < 5

    async def test_the_answer_comes_when_the_time_is_over(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        answer = await client.get(result_url(job_id, wait=0.05))
        assert answer.json()["status"] == 0

    @pytest.mark.parametrize("wait", ["-1", "nan", "inf", "x", ""])
    async def test_another_wait_is_a_bad_request(
        self, client: httpx.AsyncClient, wait: str
    ) -> None:
        job_id = await submit(client)
        assert (await client.get(result_url(job_id, wait=wait))).status_code == 400

    async def test_a_caller_that_goes_ends_the_wait(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        authorization = client.headers["Authorization"].encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": "/diffusion/v1/result",
            "raw_path": b"/diffusion/v1/result",
            "query_string": f"request_id={job_id}&wait=30".encode(),
            "root_path": "",
            "headers": [(b"authorization", authorization)],
            "server": ("darkroom.test", 80),
        }
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, object]:
            return messages.pop(0) if messages else {"type": "http.disconnect"}

        async def send(message: object) -> None:
            pass

        begun = time.monotonic()
        await edge.app(scope, receive, send)  # type: ignore[arg-type]  # looser than ASGI's types
        assert time.monotonic() - begun < 10
