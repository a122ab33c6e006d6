"""Jobs of Comfy API v2."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from events.decisions import FailAttempt
from events.wire.progress import JobProgress
from tests.support.edge import ACTOR, Edge
from tests.support.generate_bodies import workflow_body
from tests.support.polling import eventually
from tests.support.uploads import png
from tests.unit.serve_app.adapters.comfy_v2.test_assets import code, post
from tests.unit.serve_app.adapters.conftest import followed

JOBS = "/api/v2/jobs"


def body(**more: Any) -> dict[str, Any]:
    return {"workflow": workflow_body()["prompt"], **more}


def with_image(reference: Any) -> dict[str, Any]:
    workflow = workflow_body()["prompt"]
    workflow["10"] = {"class_type": "LoadImage", "inputs": {"image": reference}}
    workflow["11"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["4", 2]}}
    workflow["3"]["inputs"]["latent_image"] = ["11", 0]
    return {"workflow": workflow}


def reference(id: Any, **info: Any) -> dict[str, Any]:
    return {"__type": "core/ASSET", "info": {"id": id, **info}}


async def submit(client: httpx.AsyncClient, sent: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await client.post(JOBS, json=sent or body())
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def test_a_job_is_followed_by_its_links(edge: Edge, client: httpx.AsyncClient) -> None:
    job = await submit(client)
    assert (job["status"], job["outputs"], job["error"]) == ("queued", [], None)
    await edge.start(job["id"])
    edge.progress[job["id"]] = JobProgress(5, 20, node="3", class_type="KSampler")
    running = (await client.get(job["urls"]["self"])).json()
    assert (running["status"], running["progress"]["value"]) == ("running", 0.25)
    assert running["progress"]["current_node"] == "3"
    await edge.store_image(job["id"])
    await edge.complete(job["id"])
    ended = (await client.get(job["urls"]["self"])).json()
    assert ended["status"] == "succeeded"
    assert ended["completed_at"] < ended["expires_at"]
    [output] = ended["outputs"]
    assert (output["node_id"], output["type"]) == ("9", "image")
    assert (await client.get(f"/api/v2/assets/{output['id']}/content")).content == b"pixels"
    assert (await client.get(output["url"])).content == b"pixels"
    graph = (await client.get(f"{JOBS}/{job['id']}/workflow")).json()
    assert (graph["format"], graph["workflow"]["9"]["class_type"]) == ("api", "SaveImage")


async def test_a_failed_job_says_why(edge: Edge, client: httpx.AsyncClient) -> None:
    job = await submit(client)
    await edge.start(job["id"])
    failure = FailAttempt(actor=ACTOR, message="No.", final=True, code="node_failed")
    await edge.execute(job["id"], failure)
    ended = (await client.get(job["urls"]["self"])).json()
    assert (ended["status"], ended["error"]) == (
        "failed",
        {"code": "node_failed", "message": "No."},
    )


async def test_a_job_is_cancelled_at_once_or_where_it_runs(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    waiting, running = await submit(client), await submit(client)
    await edge.start(running["id"])
    assert (await client.post(waiting["urls"]["cancel"])).json()["status"] == "canceled"
    for _ in range(2):
        answer = await client.post(running["urls"]["cancel"])
        assert answer.json()["status"] == "canceling"


async def test_references_are_the_callers_assets(edge: Edge, client: httpx.AsyncClient) -> None:
    asset = (await post(client, png(size=(64, 64)))).json()
    job = await submit(client, with_image(reference(asset["id"], hash=asset["hash"])))
    recorded = await edge.job(job["id"])
    [name] = recorded.submitted.input_files or {}
    assert recorded.submitted.request["prompt"]["10"]["inputs"]["image"] == name
    by_hash = with_image(
        reference("0199a1b2-0000-7000-8000-000000000000", hash=asset["hash"])
    )  # the same bytes, sent twice at once
    assert (await client.post(JOBS, json=by_hash)).status_code == 201
    await client.delete(f"/api/v2/assets/{asset['id']}")
    gone = await client.post(JOBS, json=with_image(reference(asset["id"], hash=asset["hash"])))
    assert code(gone) == (422, "missing_asset")


async def test_a_result_is_an_input_of_another_job(edge: Edge, client: httpx.AsyncClient) -> None:
    first = await submit(client)
    await edge.start(first["id"])
    await edge.store_image(first["id"], data=png(size=(64, 64)))
    await edge.complete(first["id"])
    job = await submit(client, with_image(reference(f"{first['id']}-0")))
    assert (await edge.job(job["id"])).submitted.input_files
    again = await submit(client, with_image(reference(f"{first['id']}-0")))
    files = [(await edge.job(id)).submitted.input_files for id in (job["id"], again["id"])]
    assert files[0] == files[1]  # it is copied once
    async with await edge.client("bob") as bob:
        stolen = await bob.post(JOBS, json=with_image(reference(f"{first['id']}-0")))
        assert code(stolen) == (422, "missing_asset")


async def test_another_owners_asset_is_missing(edge: Edge, client: httpx.AsyncClient) -> None:
    asset = (await post(client, png(size=(64, 64)))).json()
    async with await edge.client("bob") as bob:
        answer = await bob.post(JOBS, json=with_image(reference(asset["id"], hash=asset["hash"])))
    assert code(answer) == (422, "missing_asset")


NO_MODEL = body()
del NO_MODEL["workflow"]["3"]["inputs"]["model"]


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        ({}, "invalid_workflow"),
        ([], "invalid_workflow"),
        ({"workflow": {}}, "invalid_workflow"),
        ({"workflow": {"1": {"class_type": "Nothing", "inputs": {}}}}, "invalid_workflow"),
        (NO_MODEL, "invalid_workflow"),
        ({"workflow": {"nodes": [], "links": []}}, "workflow_format_ui"),
        (with_image(reference("nothing")), "missing_asset"),
        (with_image(reference(7)), "missing_asset"),
        (with_image({"__type": "core/ASSET"}), "missing_asset"),
        (with_image({"__type": "core/ASSET", "info": []}), "missing_asset"),
        (body(webhook_url="https://example.com"), "invalid_request"),
        (body(metadata={"a": "b"}), "metadata_not_supported"),
    ],
)
async def test_what_cannot_run_is_refused_with_the_codes_of_the_contract(
    edge: Edge, client: httpx.AsyncClient, sent: Any, refused: str
) -> None:
    answer = await client.post(JOBS, json=sent)
    assert code(answer) == (422, refused)
    assert not edge.log.job_ids()


async def test_what_is_wrong_is_told_by_node(client: httpx.AsyncClient) -> None:
    error = (await client.post(JOBS, json=NO_MODEL)).json()["error"]
    assert "Node 3 (KSampler)" in error["message"]
    assert error["details"]["node_errors"]["3"] == [
        {"field": "model", "reason": "required_input_missing"}
    ]


async def test_an_idempotency_key_is_good_for_one_job_alone(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    headers = {"Idempotency-Key": "once"}
    refused = await client.post(JOBS, json={"workflow": {}}, headers=headers)
    assert code(refused) == (422, "invalid_workflow")  # which leaves the key free
    at_once = await asyncio.gather(
        *(client.post(JOBS, json=body(), headers=headers) for _ in range(4))
    )
    assert sorted(answer.status_code for answer in at_once) == [201, 422, 422, 422]
    for answer in at_once:
        assert answer.status_code == 201 or code(answer) == (422, "idempotency_key_reuse")
    assert len(edge.log.job_ids()) == 1
    async with await edge.client("bob") as bob:
        assert (await bob.post(JOBS, json=body(), headers=headers)).status_code == 201
    ours = await client.post("/workflow/v1/generate", json=workflow_body(), headers=headers)
    assert ours.status_code == 202


async def test_jobs_are_listed_page_by_page(edge: Edge, client: httpx.AsyncClient) -> None:
    ids = [(await submit(client))["id"] for _ in range(3)]
    await edge.project()
    first = (await client.get(JOBS, params={"limit": 2})).json()
    second = (await client.get(JOBS, params={"cursor": first["next_cursor"]})).json()
    assert [each["id"] for each in first["jobs"] + second["jobs"]] == ids[::-1]
    assert "next_cursor" not in second
    labelled = await client.get(JOBS, params={"metadata[a]": "b"})
    assert labelled.json()["jobs"] == []
    assert code(await client.get(JOBS, params={"cursor": "x"})) == (422, "invalid_cursor")


async def test_another_owner_finds_no_job(edge: Edge, client: httpx.AsyncClient) -> None:
    job = await submit(client)
    async with await edge.client("bob") as bob:
        for path in ("", "/workflow", "/events"):
            answer = await bob.get(f"{JOBS}/{job['id']}{path}")
            assert code(answer) == (404, "not_found")
        assert (await bob.post(f"{JOBS}/{job['id']}/cancel")).status_code == 404
        await edge.project()
        assert (await bob.get(JOBS)).json()["jobs"] == []


class TestEvents:
    async def test_a_job_is_told_from_now_until_its_end(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job = await submit(client)
        stream = asyncio.create_task(client.get(job["urls"]["events"]))
        await eventually(lambda: len(edge.progress.listeners) > 1)
        await edge.start(job["id"])
        edge.progress.tell(
            job["id"],
            JobProgress(3, 20, node="3", class_type="KSampler", preview=b"jpeg"),
        )
        await edge.store_image(job["id"])
        await edge.complete(job["id"])
        events = messages((await stream).text)
        kinds = [kind for kind, _ in events]
        statuses = [data["status"] for kind, data in events if kind == "status"]
        # Each is as it was when it was looked for: it is told what has changed, and may be fast.
        assert statuses == [each for each in ("queued", "running", "succeeded") if each in statuses]
        assert events[-1][1]["status"] == "succeeded"
        assert kinds.count("output") == 1
        [output] = [data for kind, data in events if kind == "output"]
        assert output["id"] == f"{job['id']}-0"
        assert len(edge.progress.listeners) == 1

    async def test_progress_and_preview_come_as_they_are_told(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job = await submit(client)
        await edge.start(job["id"])
        edge.progress[job["id"]] = JobProgress(1, 20, node="3", preview=b"jpeg")
        stream = asyncio.create_task(client.get(job["urls"]["events"]))
        newest = await eventually(lambda: followed(edge))
        edge.progress.tell(job["id"], JobProgress(2, 20, node="3", preview=b"jpeg"))
        await eventually(lambda: newest.preview is None)
        await edge.complete(job["id"], images=0)
        told = dict(messages((await stream).text))
        assert told["progress"]["nodes_total"] == len(body()["workflow"])
        assert told["preview"]["data_base64"] == "anBlZw=="

    async def test_a_job_that_has_ended_is_told_as_it_is(
        self, edge: Edge, client: httpx.AsyncClient
    ) -> None:
        job = await submit(client)
        await edge.run(job["id"])
        kinds = [kind for kind, _ in messages((await client.get(job["urls"]["events"])).text)]
        assert kinds == ["output", "status"]


def messages(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream, without its comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found
