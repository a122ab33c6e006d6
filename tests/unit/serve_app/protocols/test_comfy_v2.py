"""Assets and jobs of Comfy API v2."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from typing import Any

import httpx
import pytest
from blake3 import blake3
from PIL import Image

from events.decisions import FailAttempt
from events.errors import DatabaseUnavailable
from events.ids import new_id
from events.job_progress import JobProgress
from events.log import utc_now
from events.store.records import Endpoint
from events.store.uploads import Uploads
from storage.file_names import SAFETENSORS
from tests.support.edge import ACTOR, Client, Edge
from tests.support.edge import submit as submit_diffusion
from tests.support.generate_bodies import workflow_body
from tests.support.polling import eventually
from tests.support.uploads import MP4, png
from tests.unit.serve_app.protocols.conftest import followed, messages

ASSETS = "/api/v2/assets"
JOBS = "/api/v2/jobs"
UNKNOWN = "0199a1b2-0000-7000-8000-000000000000"


def hash_of(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


async def post(client: Client, data: bytes, **texts: Any) -> httpx.Response:
    texts = {"content_type": "image/png", "file_path": "photo.png", **texts}
    return await client.post(ASSETS, files={"file": ("photo.png", data)}, data=texts)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


async def test_an_upload_has_the_hash_of_what_was_sent(client: Client) -> None:
    sent = png()
    first = await post(client, sent, expected_hash=hash_of(sent))
    again = await post(client, sent, file_path="other.png")
    assert (first.status_code, again.status_code) == (201, 200)
    asset = first.json()
    assert asset["hash"] == hash_of(sent)
    assert (asset["created_new"], again.json()["created_new"]) == (True, False)
    assert again.json()["id"] == asset["id"]
    assert asset["file_path"] == "photo.png"
    assert asset["url_expires_at"]
    assert (await client.get(f"{ASSETS}/{asset['id']}")).json()["hash"] == hash_of(sent)


async def test_its_content_comes_whole_or_in_part(client: Client) -> None:
    asset = (await post(client, png())).json()
    whole = await client.get(asset["url"])
    assert len(whole.content) == asset["size_bytes"]
    assert Image.open(io.BytesIO(whole.content)).size == (3, 2)
    part = await client.get(asset["url"], headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"PNG")
    assert (await client.get(asset["url"], headers={"Range": "bytes=99999-"})).status_code == 416


async def test_a_video_is_an_asset_with_its_own_suffix(edge: Edge, client: Client) -> None:
    endpoint = Endpoint("packs", engine="comfyui", comfyui_url="http://127.0.0.1:8188")
    await edge.services.endpoints.put(endpoint)
    asset = (await post(client, MP4, file_path="clip.MOV")).json()
    assert (asset["content_type"], asset["size_bytes"]) == ("video/quicktime", len(MP4))
    assert asset["hash"] == hash_of(MP4)
    assert (await client.get(asset["url"])).content == MP4
    found = await client.post(f"{ASSETS}/from-hash", json={"hash": asset["hash"]})
    assert found.json()["id"] == asset["id"]

    load = {"class_type": "LoadVideo", "inputs": {"file": reference(asset["id"])}}
    answer = await client.post(f"{JOBS}?endpoint=packs", json={"workflow": {"1": load}})
    assert answer.status_code == 201, answer.text
    [name] = (await edge.job(answer.json()["id"])).submitted.input_files or {}
    assert name == f"{hash_of(MP4).replace(':', '-')}.mov"


async def test_another_hash_than_was_said_stores_nothing(client: Client) -> None:
    answer = await post(client, png(), expected_hash=hash_of(b"other"))
    assert code(answer) == (409, "hash_mismatch")
    assert (await client.get("/v1/uploads")).json()["uploads"] == []


async def test_an_owner_finds_their_own_bytes_by_hash_and_nobody_elses(
    client: Client, bob: Client
) -> None:
    sent = png()
    digest = hash_of(sent)
    assert (await client.head(f"{ASSETS}/by-hash/{digest}")).status_code == 404
    asset = (await post(client, sent)).json()
    assert (await client.head(f"{ASSETS}/by-hash/{digest}")).status_code == 200
    found = await client.post(f"{ASSETS}/from-hash", json={"hash": digest, "file_path": "b.png"})
    assert (found.status_code, found.json()["id"]) == (200, asset["id"])
    assert found.json()["file_path"] == "b.png"
    assert (await bob.head(f"{ASSETS}/by-hash/{digest}")).status_code == 404
    minted = await bob.post(f"{ASSETS}/from-hash", json={"hash": digest})
    assert code(minted) == (404, "blob_not_found")
    for path in (f"{ASSETS}/{asset['id']}", f"{ASSETS}/{asset['id']}/content"):
        assert code(await bob.get(path)) == (404, "not_found")
    assert code(await bob.delete(f"{ASSETS}/{asset['id']}")) == (404, "not_found")
    own = await post(bob, sent)
    assert own.status_code == 201  # nothing tells that the bytes were known
    assert code(await client.get(f"{ASSETS}/{UNKNOWN}")) == (404, "not_found")


async def test_what_is_deleted_is_gone(client: Client) -> None:
    sent = png()
    path = f"{ASSETS}/{(await post(client, sent)).json()['id']}"
    assert (await client.delete(path)).status_code == 204
    assert code(await client.delete(path)) == (404, "not_found")
    assert (await client.head(f"{ASSETS}/by-hash/{hash_of(sent)}")).status_code == 404
    assert (await post(client, sent)).status_code == 201


async def test_a_result_is_an_asset_that_goes_with_its_job(
    edge: Edge, client: Client, bob: Client
) -> None:
    job_id = await submit_diffusion(client)
    await edge.run(job_id)
    path = f"{ASSETS}/{job_id}-0"
    asset = (await client.get(path)).json()
    assert (asset["job_id"], asset["hash"]) == (job_id, None)
    assert (await client.get(f"{path}/content")).content == b"pixels"
    assert code(await client.delete(path)) == (409, "asset_in_use")
    assert code(await client.get(f"{ASSETS}/{job_id}-1")) == (404, "not_found")
    assert code(await bob.get(path)) == (404, "not_found")
    assert code(await bob.delete(path)) == (404, "not_found")


async def test_a_hash_that_is_none_finds_nothing(client: Client) -> None:
    for digest in ("", "sha256:00", "blake3:zz", "../x", "blake3:" + "0" * 64):
        answer = await client.post(f"{ASSETS}/from-hash", json={"hash": digest})
        assert code(answer) == (404, "blob_not_found"), digest


async def test_what_is_no_image_and_what_is_no_form_is_refused(client: Client) -> None:
    assert code(await post(client, b"text")) == (422, "invalid_image")
    assert (await client.post(ASSETS, data={"file": "text"})).status_code == 415
    bare = await client.post(ASSETS, files={"other": ("a.png", png())})
    assert code(bare) == (422, "invalid_upload")
    assert code(await post(client, b"\x89PNG" + bytes(21 * 1024**2)))[0] == 413


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


async def submit(client: Client, sent: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await client.post(JOBS, json=sent or body())
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def test_a_job_is_followed_by_its_links(edge: Edge, client: Client) -> None:
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


@pytest.mark.parametrize(
    ("media_type", "type"),
    [
        (SAFETENSORS, "latent"),
        ("video/mp4", "video"),
        ("audio/flac", "audio"),
        ("text/plain", "text"),
        ("model/gltf-binary", "file"),
        ("application/json", "file"),
    ],
)
async def test_an_output_has_the_type_of_its_file(
    edge: Edge, client: Client, media_type: str, type: str
) -> None:
    job = await submit(client)
    await edge.run(job["id"], media_type=media_type)
    [output] = (await client.get(job["urls"]["self"])).json()["outputs"]
    assert (output["type"], output["content_type"]) == (type, media_type)


async def test_a_failed_job_says_why(edge: Edge, client: Client) -> None:
    job = await submit(client)
    await edge.start(job["id"])
    failure = FailAttempt(actor=ACTOR, message="No.", final=True, code="node_failed")
    await edge.execute(job["id"], failure)
    ended = (await client.get(job["urls"]["self"])).json()
    assert ended["status"] == "failed"
    assert ended["error"] == {"code": "node_failed", "message": "No."}


async def test_a_job_is_cancelled_at_once_or_where_it_runs(edge: Edge, client: Client) -> None:
    waiting, running = await submit(client), await submit(client)
    await edge.start(running["id"])
    assert (await client.post(waiting["urls"]["cancel"])).json()["status"] == "canceled"
    for _ in range(2):
        assert (await client.post(running["urls"]["cancel"])).json()["status"] == "canceling"


async def test_references_are_the_callers_assets(edge: Edge, client: Client) -> None:
    asset = (await post(client, png(size=(64, 64)))).json()
    job = await submit(client, with_image(reference(asset["id"], hash=asset["hash"])))
    recorded = await edge.job(job["id"])
    [name] = recorded.submitted.input_files or {}
    assert recorded.submitted.request["prompt"]["10"]["inputs"]["image"] == name
    # The same bytes, sent twice at once.
    await submit(client, with_image(reference(UNKNOWN, hash=asset["hash"])))
    await client.delete(f"/api/v2/assets/{asset['id']}")
    gone = await client.post(JOBS, json=with_image(reference(asset["id"], hash=asset["hash"])))
    assert code(gone) == (422, "missing_asset")


async def test_a_result_is_an_input_of_another_job(edge: Edge, client: Client, bob: Client) -> None:
    first = await submit(client)
    await edge.run(first["id"], data=png(size=(64, 64)))
    job = await submit(client, with_image(reference(f"{first['id']}-0")))
    assert (await edge.job(job["id"])).submitted.input_files
    again = await submit(client, with_image(reference(f"{first['id']}-0")))
    files = [(await edge.job(id)).submitted.input_files for id in (job["id"], again["id"])]
    assert files[0] == files[1]  # it is copied once
    stolen = await bob.post(JOBS, json=with_image(reference(f"{first['id']}-0")))
    assert code(stolen) == (422, "missing_asset")


async def test_a_video_of_a_job_is_an_input_of_another_job(edge: Edge, client: Client) -> None:
    endpoint = Endpoint("packs", engine="comfyui", comfyui_url="http://127.0.0.1:8188")
    await edge.services.endpoints.put(endpoint)
    first = await submit(client)
    await edge.run(first["id"], data=MP4, media_type="video/mp4")
    load = {"class_type": "LoadVideo", "inputs": {"file": reference(f"{first['id']}-0")}}
    answer = await client.post(f"{JOBS}?endpoint=packs", json={"workflow": {"1": load}})
    assert answer.status_code == 201, answer.text
    [name] = (await edge.job(answer.json()["id"])).submitted.input_files or {}
    assert name == f"output-{first['id']}-0.mp4"


async def test_another_owners_asset_is_missing(client: Client, bob: Client) -> None:
    asset = (await post(client, png(size=(64, 64)))).json()
    answer = await bob.post(JOBS, json=with_image(reference(asset["id"], hash=asset["hash"])))
    assert code(answer) == (422, "missing_asset")


NO_MODEL = body()
del NO_MODEL["workflow"]["3"]["inputs"]["model"]


REFUSED: list[tuple[Any, str]] = [
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
]


async def test_what_cannot_run_is_refused_with_the_codes_of_the_contract(
    edge: Edge, client: Client
) -> None:
    for sent, refused in REFUSED:
        assert code(await client.post(JOBS, json=sent)) == (422, refused)
        assert not edge.log.job_ids()


async def test_what_is_wrong_is_told_by_node(client: Client) -> None:
    error = (await client.post(JOBS, json=NO_MODEL)).json()["error"]
    assert "Node 3 (KSampler)" in error["message"]
    assert error["details"]["node_errors"]["3"] == [
        {"field": "model", "reason": "required_input_missing"}
    ]


async def test_a_refused_request_leaves_its_key_free(client: Client) -> None:
    headers = {"Idempotency-Key": "once"}
    refused = await client.post(JOBS, json={"workflow": {}}, headers=headers)
    assert code(refused) == (422, "invalid_workflow")
    assert (await client.post(JOBS, json=body(), headers=headers)).status_code == 201


async def test_jobs_are_listed_page_by_page(edge: Edge, client: Client) -> None:
    ids = [(await submit(client))["id"] for _ in range(3)]
    await edge.project()
    first = (await client.get(JOBS, params={"limit": 2})).json()
    second = (await client.get(JOBS, params={"cursor": first["next_cursor"]})).json()
    assert [each["id"] for each in first["jobs"] + second["jobs"]] == ids[::-1]
    assert "next_cursor" not in second
    assert (await client.get(JOBS, params={"metadata[a]": "b"})).json()["jobs"] == []
    assert code(await client.get(JOBS, params={"cursor": "x"})) == (422, "invalid_cursor")


class TestEvents:
    async def test_a_job_is_told_from_now_until_its_end(self, edge: Edge, client: Client) -> None:
        job = await submit(client)
        stream = asyncio.create_task(client.get(job["urls"]["events"]))
        await eventually(lambda: len(edge.progress.listeners) > 1)
        await edge.start(job["id"])
        edge.progress.tell(job["id"], JobProgress(3, 20, node="3", preview=b"jpeg"))
        await edge.store_image(job["id"])
        await edge.complete(job["id"])
        events = messages((await stream).text)
        statuses = [data["status"] for kind, data in events if kind == "status"]
        # Each is as it was when it was looked for: it is told what has changed, and may be fast.
        assert statuses == [each for each in ("queued", "running", "succeeded") if each in statuses]
        assert events[-1][1]["status"] == "succeeded"
        [output] = [data for kind, data in events if kind == "output"]
        assert output["id"] == f"{job['id']}-0"
        assert len(edge.progress.listeners) == 1

    async def test_progress_and_preview_come_as_they_are_told(
        self, edge: Edge, client: Client
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

    async def test_a_job_that_has_ended_is_told_as_it_is(self, edge: Edge, client: Client) -> None:
        job = await submit(client)
        await edge.run(job["id"])
        kinds = [kind for kind, _ in messages((await client.get(job["urls"]["events"])).text)]
        assert kinds == ["output", "status"]


async def test_a_copy_of_a_result_goes_with_its_job(
    edge: Edge, client: Client, bob: Client
) -> None:
    first, other = await submit(client), await submit(client)
    for job in (first, other):
        await edge.run(job["id"], data=png(size=(64, 64)))
        await submit(client, with_image(reference(f"{job['id']}-0")))
    bobs = await edge.services.uploads.find("alice", f"output-{first['id']}-0.png")
    assert bobs is not None
    await edge.services.uploads.add(replace(bobs, owner="bob", id=new_id()))
    assert (await client.delete(f"/v1/jobs/{first['id']}")).is_success
    assert len((await bob.get("/v1/uploads")).json()["uploads"]) == 1
    [copy] = (await client.get("/v1/uploads")).json()["uploads"]
    assert copy["name"] == f"output-{other['id']}-0.png"
    gone = await client.post(JOBS, json=with_image(f"output-{first['id']}-0.png"))
    assert code(gone) == (422, "invalid_workflow")


async def test_a_copy_that_an_outage_left_goes_when_the_erasure_is_finished(
    edge: Edge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(client)
    await edge.run(job["id"], data=png(size=(64, 64)))
    await submit(client, with_image(reference(f"{job['id']}-0")))

    async def away(*_: object) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "remove_all", away)
        assert (await client.delete(f"/v1/jobs/{job['id']}")).status_code == 202
    assert len((await client.get("/v1/uploads")).json()["uploads"]) == 1
    [(due, _)] = await edge.services.read_model.due_erasures(utc_now(), limit=9)
    assert due == job["id"]
    assert await edge.services.removal.erase(job["id"])
    assert (await client.get("/v1/uploads")).json()["uploads"] == []
