import pytest

from events.decisions import FailAttempt
from events.errors import LogUnavailable
from events.ids import lane_of
from events.log import utc_now
from events.types import Erased
from storage.images import ImageNotFound
from tests.support.edge import ACTOR, Client, Edge, submit
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import diffusion_body, workflow_body


async def submit_workflow(client: Client) -> str:
    answer = await client.post("/workflow/v1/generate", json=workflow_body())
    return str(answer.json()["request_id"])


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
        answer = await client.post("/diffusion/v1/generate", json=diffusion_body(n_iter=9))
        await edge.project()
        [job] = (await client.get("/v1/jobs?results=true")).json()["jobs"]
        assert answer.status_code == 202
        assert (len(job["results"]), job["result_count"]) == (4, 9)

    async def test_filters_narrow_it(self, edge: Edge, client: Client) -> None:
        ended, waiting = await submit(client), await submit_workflow(client)
        await edge.run(ended)
        await edge.project()
        assert await listed(client, "?status=1") == [ended]
        assert await listed(client, "?status=0") == [waiting]
        assert await listed(client, "?status=2") == []
        assert await listed(client, "?flavour=workflow") == [waiting]
        assert await listed(client, "?endpoint=default") == [waiting, ended]
        assert await listed(client, "?endpoint=other") == []

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
