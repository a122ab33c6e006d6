from pathlib import Path

import httpx
import pytest

from events.decisions import Complete, FailAttempt
from events.errors import LogUnavailable
from events.ids import lane_of
from events.log import utc_now
from events.store.records import Scope
from events.types import Erased
from storage.images import ImageNotFound
from tests.support.edge import ACTOR, Edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body

UNKNOWN = "0199a1b2-0000-7000-8000-000000000000"


async def submit(client: httpx.AsyncClient, flavour: str = "diffusion") -> str:
    body = diffusion_body() if flavour == "diffusion" else workflow_body()
    answer = await client.post(f"/{flavour}/v1/generate", json=body)
    return str(answer.json()["request_id"])


async def listed(client: httpx.AsyncClient, query: str = "") -> list[str]:
    answer = await client.get(f"/v1/jobs{query}")
    return [job["request_id"] for job in answer.json()["jobs"]]


class TestList:
    async def test_it_has_the_callers_jobs_newest_first(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        ids = [await submit(client) for _ in range(3)]
        async with await edge.client("bob") as bob:
            await submit(bob)
            await edge.project()
            assert len(await listed(bob)) == 1
        assert await listed(client) == ids[::-1]

    async def test_pages_join_without_gap_or_repeat(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        ids = [await submit(client) for _ in range(5)]
        await edge.project()
        seen: list[str] = []
        cursor = ""
        while True:
            page = (await client.get(f"/v1/jobs?limit=2{cursor}")).json()
            seen += [job["request_id"] for job in page["jobs"]]
            if "next_cursor" not in page:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert seen == ids[::-1]

    async def test_it_has_the_images_where_they_are_asked_for(
        self, edge: Edge, client: httpx.AsyncClient
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
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        answer = await client.post("/diffusion/v1/generate", json=diffusion_body(n_iter=9))
        await edge.project()
        [job] = (await client.get("/v1/jobs?results=true")).json()["jobs"]
        assert answer.status_code == 202
        assert (len(job["results"]), job["result_count"]) == (4, 9)

    async def test_filters_narrow_it(self, edge: Edge, client: httpx.AsyncClient) -> None:
        ended, waiting = await submit(client), await submit(client, "workflow")
        await edge.run(ended)
        await edge.project()
        assert await listed(client, "?status=1") == [ended]
        assert await listed(client, "?status=0") == [waiting]
        assert await listed(client, "?status=2") == []
        assert await listed(client, "?flavour=workflow") == [waiting]
        assert await listed(client, "?endpoint=default") == [waiting, ended]
        assert await listed(client, "?endpoint=other") == []

    @pytest.mark.parametrize(
        "query",
        ["limit=0", "limit=201", "limit=x", "status=3", "status=x", "flavour=x", "cursor=x"],
    )
    async def test_a_bad_filter_is_a_bad_request(
        self, client: httpx.AsyncClient, query: str
    ) -> None:
        answer = await client.get(f"/v1/jobs?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request"

    async def test_another_callers_cursor_shows_nothing(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        await submit(client)
        async with await edge.client("bob") as bob:
            foreign = await submit(bob)
        await edge.project()
        assert await listed(client, f"?cursor={foreign}") == []


class TestShow:
    async def test_it_has_request_result_attempts_and_timings(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        await edge.start(job_id)
        await edge.execute(job_id, FailAttempt(actor=ACTOR, message="a hiccup", final=False))
        await edge.start(job_id)
        await edge.store_image(job_id)
        await edge.complete(job_id)
        body = (await client.get(f"/v1/jobs/{job_id}")).json()
        assert body["attempts"] == 2
        assert body["last_failure"] == "a hiccup"
        assert body["request"] == (await edge.job(job_id)).submitted.request
        result = await client.get(f"/diffusion/v1/result?request_id={job_id}")
        assert body["result"] == result.json()
        assert set(body["timings"]) == {"queued_s", "running_s", "total_s"}

    async def test_nothing_of_a_recorded_request_is_left_out(
        self, client: httpx.AsyncClient
    ) -> None:
        extra_data = {"extra_pnginfo": {"none": None, "list": [None, {"none": None}]}}
        body = {**workflow_body(), "extra_data": extra_data}
        answer = await client.post("/workflow/v1/generate", json=body)
        shown = (await client.get(f"/v1/jobs/{answer.json()['request_id']}")).json()
        assert shown["request"] == {"prompt": body["prompt"], "extra_data": extra_data}


class TestCancel:
    async def test_a_job_that_waits_ends_at_once(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        answer = await client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.json() == {"cancelled": True}
        result = (await client.get(f"/diffusion/v1/result?request_id={job_id}")).json()
        assert (result["status"], result["message"]) == (2, "The job was cancelled.")
        assert edge.queue.removed == [("default", lane_of("alice"), job_id)]

    async def test_a_running_job_is_asked_to_stop(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        await edge.start(job_id)
        for _ in range(2):
            answer = await client.post(f"/v1/jobs/{job_id}/cancel")
            assert answer.json() == {"cancelled": True}
        job = await edge.job(job_id)
        assert (job.cancel_requested, job.end, job.version) == (True, None, 3)
        assert edge.queue.removed == []

    async def test_it_is_idempotent(self, edge: Edge, client: httpx.AsyncClient) -> None:
        job_id = await submit(client)
        for _ in range(2):
            answer = await client.post(f"/v1/jobs/{job_id}/cancel")
            assert answer.json() == {"cancelled": True}
        assert (await edge.job(job_id)).version == 2

    async def test_a_job_that_has_ended_stays_as_it_is(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        await edge.run(job_id)
        answer = await client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.json() == {"cancelled": False}

    async def test_an_entry_that_cannot_be_removed_does_not_undo_it(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        edge.queue.error = LogUnavailable()
        answer = await client.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.json() == {"cancelled": True}


class TestErase:
    async def test_nothing_of_a_job_that_has_ended_is_left(
        self, edge: Edge, client: httpx.AsyncClient
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

    async def test_a_job_that_waits_is_cancelled_first(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        await client.delete(f"/v1/jobs/{job_id}")
        assert (await edge.job(job_id)).version == 3  # submitted, cancelled, erased
        assert edge.queue.removed == [("default", lane_of("alice"), job_id)]

    async def test_an_actor_that_still_runs_it_can_write_nothing_more(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job_id = await submit(client)
        await edge.start(job_id)
        running = await edge.job(job_id)
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 200
        outcome = await edge.services.writer.execute(Complete(ACTOR, images=0), running)
        assert outcome.added == ()
        assert (await edge.job(job_id)).erased
        assert edge.queue.removed == []

    async def test_it_is_idempotent(self, edge: Edge, client: httpx.AsyncClient) -> None:
        job_id = await submit(client)
        for _ in range(2):
            assert (await client.delete(f"/v1/jobs/{job_id}")).json() == {"erased": True}
        assert (await edge.job(job_id)).version == 3

    async def test_what_cannot_be_removed_yet_is_said_and_done_by_the_next_try(
        self, edge: Edge, client: httpx.AsyncClient, log: FailingLog, tmp_path: Path
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

    async def test_its_idempotency_key_is_not_taken_again(self, client: httpx.AsyncClient) -> None:
        headers = {"Idempotency-Key": "once"}
        first = await client.post("/diffusion/v1/generate", json=diffusion_body(), headers=headers)
        await client.delete(f"/v1/jobs/{first.json()['request_id']}")
        again = await client.post("/diffusion/v1/generate", json=diffusion_body(), headers=headers)
        assert again.status_code == 409
        assert "erased" in again.json()["error"]["message"]

    async def test_the_scope_is_asked_for(self, edge: Edge, client: httpx.AsyncClient) -> None:
        job_id = await submit(client)
        async with await edge.client(scopes=(Scope.READ, Scope.GENERATE)) as reader:
            assert (await reader.delete(f"/v1/jobs/{job_id}")).status_code == 403


@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("POST", "/cancel"), ("DELETE", "")])
async def test_an_unknown_job_and_another_owners_are_alike(
    edge: Edge, client: httpx.AsyncClient, method: str, tail: str
) -> None:
    job_id = await submit(client)
    async with await edge.client("bob") as bob:
        foreign = await bob.request(method, f"/v1/jobs/{job_id}{tail}")
        unknown = await bob.request(method, f"/v1/jobs/{UNKNOWN}{tail}")
        nonsense = await bob.request(method, f"/v1/jobs/%00{tail}")
    assert foreign.status_code == unknown.status_code == nonsense.status_code == 404
    assert foreign.json() == unknown.json() == nonsense.json()
    assert (await edge.job(job_id)).version == 1
