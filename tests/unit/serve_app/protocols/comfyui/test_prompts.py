"""Prompts, queue, history and jobs, as ComfyUI's clients call them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from PIL import Image, ImageColor

from events.ids import new_id
from events.types import Cancelled
from serve_app.protocols.comfyui.records import queue_item, shown_name
from tests.support.edge import Client, Edge, submit
from tests.support.generate_bodies import workflow_body
from tests.support.uploads import MKV
from tests.support.uploads import png as make_png
from tests.unit.serve_app.protocols.comfyui.conftest import CLIENT, ended, queue


async def test_a_prompt_is_a_job_at_each_twin_of_the_path(edge: Edge, client: Client) -> None:
    for place in ("", "/api", "/comfy/api"):
        answer = await client.post(f"{place}/prompt", json=workflow_body())
        assert answer.status_code == 200, answer.text
        said = answer.json()
        assert (said["node_errors"], said["number"] > 0) == ({}, True)
        submitted = (await edge.job(said["prompt_id"])).submitted
        assert (submitted.flavour, submitted.client_id) == ("workflow", "")


async def test_json_is_taken_as_the_form_that_pythons_own_client_calls_it(client: Client) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps(workflow_body())
    assert (await client.post("/prompt", content=body, headers=headers)).status_code == 200


async def test_a_graph_that_is_not_valid_is_told_node_by_node(client: Client) -> None:
    answer = await client.post("/prompt", json=workflow_body(steps=0))
    assert answer.status_code == 400
    said = answer.json()
    assert said["error"]["type"] == "prompt_outputs_failed_validation"
    assert said["node_errors"]["3"]["errors"][0]["type"] == "value_smaller_than_min"


MALFORMED = [
    b"",
    b"[]",
    b"null",
    b'{"prompt": 3}',
    b'{"prompt": {"1": null}}',
    b'{"prompt": {"1": {"class_type": [], "inputs": 4}}}',
    b'{"prompt": {"1": {"class_type": "LoadImage", "inputs": {"image": [1]}}}}',
    b'{"prompt": {}, "client_id": {}}',
    b'{"prompt": {}, "client_id": "' + b"a" * 129 + b'"}',
    b'{"prompt": {}, "prompt_id": "../../x"}',
    b'{"prompt": {}, "extra_data": [], "partial_execution_targets": {"a": 1}}',
    b'{"prompt": {}, "partial_execution_targets": [[[]], {}, null]}',
]


async def test_a_malformed_prompt_is_400(client: Client) -> None:
    for body in MALFORMED:
        answer = await client.post("/prompt", content=body)
        assert answer.status_code == 400, answer.text
        assert "node_errors" in answer.json()


async def test_an_id_that_the_caller_chose_is_the_jobs_and_a_repeat_meets_it(
    client: Client, bob: Client
) -> None:
    id = new_id()
    assert await queue(client, prompt_id=id) == id
    assert await queue(client, prompt_id=id) == id
    other = await client.post("/prompt", json=workflow_body(seed=8) | {"prompt_id": id})
    assert other.status_code == 409
    body = workflow_body() | {"client_id": CLIENT, "prompt_id": id}
    assert (await bob.post("/prompt", json=body)).status_code == 409
    refused = await bob.post("/prompt", json=body | workflow_body(steps=0))
    assert refused.status_code == 400  # as for an id that nobody has


async def test_outputs_that_are_not_wanted_are_left_out(edge: Edge, client: Client) -> None:
    prompt = workflow_body()["prompt"]
    prompt["10"] = {"class_type": "PreviewImage", "inputs": {"images": ["8", 0]}}
    id = await queue(client, prompt=prompt, partial_execution_targets=["10"])
    assert {"9", "10"} & (await edge.job(id)).submitted.request["prompt"].keys() == {"10"}


async def test_an_output_that_a_wanted_one_needs_is_kept(edge: Edge, client: Client) -> None:
    prompt = workflow_body()["prompt"]
    prompt["10"] = {"class_type": "PreviewImage", "inputs": {"images": ["9", 0]}}
    prompt["11"] = {"class_type": "PreviewImage", "inputs": {"images": ["10", 0]}}
    id = await queue(client, prompt=prompt, partial_execution_targets=["10"])
    kept = (await edge.job(id)).submitted.request["prompt"]
    assert {"9", "10", "11"} & kept.keys() == {"9", "10"}
    assert kept["10"]["inputs"]["images"] == ["8", 0]


PREVIEWS = [
    ("", None, None),
    ("", "auto", True),
    ("", "none", None),
    ("/comfy/api", None, True),
    ("/comfy/api", "none", None),
]


async def test_previews_are_made_for_whoever_asks_and_for_comfyuis_page(
    edge: Edge, client: Client
) -> None:
    for place, method, is_shown in PREVIEWS:
        extra = {} if method is None else {"extra_data": {"preview_method": method}}
        answer = await client.post(f"{place}/prompt", json=workflow_body() | extra)
        assert (await edge.job(answer.json()["prompt_id"])).submitted.preview is is_shown


async def test_a_client_id_may_be_a_number(edge: Edge, client: Client) -> None:
    for given, kept in ((12345, "12345"), (0, "0"), (1.5, "1.5"), (None, ""), (False, "")):
        id = await queue(client, client_id=given)
        assert (await edge.job(id)).submitted.client_id == kept
    answer = await client.post("/prompt", json=workflow_body() | {"client_id": ["a"]})
    assert answer.status_code == 400


def shown(image: str, *, at: int = 0) -> dict[str, Any]:
    """A graph with two nodes that shows an image file. `at` gives the nodes other ids."""
    load, preview = str(2 * at + 1), str(2 * at + 2)
    return {
        load: {"class_type": "LoadImage", "inputs": {"image": image}},
        preview: {"class_type": "PreviewImage", "inputs": {"images": [load, 0]}},
    }


async def test_uploads_are_found_by_the_names_that_clients_make_of_them(
    edge: Edge, client: Client, png: bytes
) -> None:
    form = {"image": ("cat.png", png)}
    answer = await client.post("/upload/image", files=form, data={"subfolder": "pets"})
    assert answer.json() == {"name": "cat.png", "subfolder": "pets", "type": "input"}
    job = await edge.job(await queue(client, prompt=shown("pets/cat.png [input]")))
    assert list(job.submitted.input_files or {}) == ["cat.png"]


async def test_an_upload_of_each_type_has_its_own_name(edge: Edge, client: Client) -> None:
    """As in ComfyUI, whose page sends webcam pictures and drawings with the type `temp`."""
    digests = set()
    for kind, colour in (("input", "red"), ("output", "lime"), ("temp", "blue")):
        form = {"image": ("cat.png", make_png(colour))}
        sent = await client.post("/upload/image", files=form, data={"type": kind})
        assert sent.json() == {"name": "cat.png", "subfolder": "", "type": kind}
        seen = await client.get("/view", params={"filename": "cat.png", "type": kind})
        assert Image.open(io.BytesIO(seen.content)).getpixel((0, 0)) == ImageColor.getrgb(colour)
        job = await edge.job(await queue(client, prompt=shown(f"webcam/cat.png [{kind}]")))
        [file] = (job.submitted.input_files or {}).values()
        digests.add(file.digest)
    assert len(digests) == 3
    other = {"image": ("cat.png", make_png("black"))}
    sent = await client.post("/upload/image", files=other, data={"type": "temp"})
    assert sent.json() == {"name": "cat (1).png", "subfolder": "", "type": "temp"}
    clip = {"image": ("clip.webm", MKV)}
    await client.post("/upload/image", files=clip, data={"type": "temp"})
    video = await client.get("/view", params={"filename": "clip.webm", "type": "temp"})
    assert video.headers["Content-Type"] == "video/webm"


async def test_a_result_that_is_no_input_is_not_an_upload_of_its_name(
    edge: Edge, client: Client, png: bytes
) -> None:
    job_id = await queue(client)
    await edge.start(job_id)
    await edge.store_image(job_id, node="9", media_type="text/plain", text="a cat")
    await edge.project()
    text = shown_name((await edge.job(job_id)).images[0], job_id=job_id, prefix="a")
    for name in ("cat.png", "webcam/cat.png", text, "ComfyUI_00001_.png"):
        await client.post("/upload/image", files={"image": (name.rpartition("/")[2], png)})
        answer = await client.post("/prompt", json={"prompt": shown(f"{name} [output]")})
        assert answer.status_code == 400, name
        [error] = answer.json()["node_errors"]["1"]["errors"]
        assert name.rpartition("/")[2] + " [output]" in error["details"]
    many = {}
    for index in range(17):
        many |= shown(f"{index}.png [output]", at=index)
    answer = await client.post("/prompt", json={"prompt": many})
    assert answer.json()["error"]["type"] == "too_many_files"


@pytest.mark.parametrize("kind", ["output", "temp"])
async def test_a_result_is_an_input_of_the_next_prompt(
    edge: Edge, client: Client, bob: Client, png: bytes, kind: str
) -> None:
    first = await queue(client)
    await edge.start(first)
    await edge.store_image(first, node="9", data=png)
    await edge.project()
    job = await edge.job(first)
    name = shown_name(job.images[0], job_id=first, prefix="a")
    for path in (name, f"{first}/{name}"):
        prompt = shown(f"{path} [{kind}]")
        next_job = await edge.job(await queue(client, prompt=prompt))
        [file] = (next_job.submitted.input_files or {}).values()
        assert (file.width, file.height) == (8, 8)
        refused = await bob.post("/prompt", json={"prompt": prompt})
        assert refused.json()["node_errors"]["1"]["errors"][0]["type"] == "value_not_in_list"


async def test_it_is_said_how_many_of_the_callers_jobs_are_left(
    edge: Edge, client: Client, bob: Client
) -> None:
    await queue(client)
    await edge.project()
    assert (await client.get("/prompt")).json() == {"exec_info": {"queue_remaining": 1}}
    assert (await bob.get("/prompt")).json() == {"exec_info": {"queue_remaining": 0}}


async def test_the_queue_has_what_waits_and_what_runs(edge: Edge, client: Client) -> None:
    first, second = await queue(client), await queue(client)
    await edge.start(first)
    await edge.project()
    said = (await client.get("/queue")).json()
    [[number, id, prompt, extra, outputs]] = said["queue_running"]
    assert (id, prompt["3"]["class_type"], outputs) == (first, "KSampler", ["9"])
    assert extra["client_id"] == CLIENT
    [later] = said["queue_pending"]
    assert later[1] == second
    assert later[0] >= number


async def test_the_history_has_the_results_by_node_and_view_has_the_picture(
    edge: Edge, client: Client
) -> None:
    id = await ended(edge, client)
    for answer in (await client.get(f"/history/{id}"), await client.get("/history")):
        item = answer.json()[id]
        assert item["status"]["status_str"] == "success"
        assert item["status"]["completed"] is True
        assert [name for name, _ in item["status"]["messages"]][-1] == "execution_success"
        [image] = item["outputs"]["9"]["images"]
        name = f"ComfyUI_{id}_00001_.png"
        assert image == {"filename": name, "subfolder": id, "type": "output"}
        assert item["prompt"][2]["9"]["class_type"] == "SaveImage"
        seen = await client.get("/view", params=image)
        assert seen.content == b"pixels"
        assert seen.headers["cross-origin-resource-policy"] == "same-origin"


async def test_videos_sounds_and_texts_are_listed_as_comfyui_lists_them(
    edge: Edge, client: Client
) -> None:
    id = await queue(client)
    await edge.start(id)
    video, sound = {"media_type": "video/mp4", "poster": b"jpeg"}, {"media_type": "audio/flac"}
    await edge.store_image(id, index=0, node="1", duration_s=2.5, data=b"a video", **video)
    await edge.store_image(id, index=1, node="2", duration_s=2.5, **sound)
    await edge.store_image(id, index=2, node="3", media_type="text/plain", text="a cat")
    await edge.store_image(id, index=3, node="4", media_type="text/plain")
    await edge.complete(id, images=4)
    file, start = {"subfolder": id, "type": "output"}, f"ComfyUI_{id}"
    outputs = (await client.get(f"/history/{id}")).json()[id]["outputs"]
    assert outputs == {
        "1": {"images": [{"filename": f"{start}_00001_.mp4", **file}], "animated": [True]},
        "2": {"audio": [{"filename": f"{start}_00002_.flac", **file}]},
        "3": {"text": ["a cat"]},
        "4": {"files": [{"filename": f"{start}_00004_.txt", **file}]},
    }
    [shown] = outputs["1"]["images"]
    part = await client.get("/view", params=shown, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"vid")
    assert part.headers["content-type"] == "video/mp4"
    job = (await client.get(f"/api/jobs/{id}")).json()
    assert job["previewable_outputs_count"] == 2
    preview = job["preview_output"]
    assert (preview["nodeId"], preview["mediaType"]) == ("2", "audio")


async def test_a_history_is_empty_until_the_end(edge: Edge, client: Client) -> None:
    waiting = await queue(client)
    await edge.project()
    for id in (waiting, "nonsense", "..%5Cetc"):
        assert (await client.get(f"/history/{id}")).json() == {}, id
    assert (await client.get("/history")).json() == {}


async def test_max_items_are_the_newest_with_the_oldest_of_them_first(
    edge: Edge, client: Client
) -> None:
    ids = [await ended(edge, client) for _ in range(3)]
    assert list((await client.get("/history", params={"max_items": 2})).json()) == ids[1:]
    before = await client.get("/history", params={"max_items": 1, "offset": 2})
    assert list(before.json()) == ids[:1]
    assert (await client.get("/history", params={"offset": 10**9})).status_code == 400


async def test_deleting_from_the_queue_spares_what_runs_and_what_others_have(
    edge: Edge, client: Client, bob: Client
) -> None:
    running, waiting, kept = [await queue(client) for _ in range(3)]
    await edge.start(running)
    await bob.post("/queue", json={"delete": [waiting], "clear": True})
    assert (await edge.job(waiting)).end is None
    answer = await client.post("/queue", json={"delete": [waiting, running, "x", CLIENT]})
    assert answer.status_code == 200
    assert isinstance((await edge.job(waiting)).end, Cancelled)
    assert not (await edge.job(running)).cancel_requested
    assert (await edge.job(kept)).end is None


async def test_clearing_and_interrupting_spare_jobs_that_came_by_another_way(
    edge: Edge, client: Client
) -> None:
    other = (await client.post("/workflow/v1/generate", json=workflow_body())).json()["request_id"]
    running, waiting = await queue(client), await queue(client)
    await edge.start(running)
    await edge.start(other)
    await edge.project()
    await client.post("/interrupt")
    await client.post("/queue", json={"clear": True})
    assert (await edge.job(running)).cancel_requested
    assert isinstance((await edge.job(waiting)).end, Cancelled)
    assert not (await edge.job(other)).cancel_requested


async def test_an_interrupt_with_a_name_stops_that_job_alone(edge: Edge, client: Client) -> None:
    first, second = await queue(client), await queue(client)
    for id in (first, second):
        await edge.start(id)
    await client.post("/interrupt", json={"prompt_id": second})
    requested = [(await edge.job(id)).cancel_requested for id in (first, second)]
    assert requested == [False, True]


async def test_a_job_is_cancelled_by_its_id(edge: Edge, client: Client) -> None:
    for way in ("/jobs/{id}/cancel", "/jobs/cancel"):
        id = await queue(client)
        answer = await client.post(way.format(id=id), json={"job_ids": [id]})
        assert answer.json() == {"cancelled": [id]}
        assert isinstance((await edge.job(id)).end, Cancelled)


async def test_deleting_from_the_history_erases_and_clearing_takes_what_came_this_way(
    edge: Edge, client: Client, bob: Client
) -> None:
    named, own = await ended(edge, client), await ended(edge, client)
    answer = await client.post("/workflow/v1/generate", json=workflow_body())
    other = answer.json()["request_id"]
    await edge.run(other)
    await edge.project()
    await bob.post("/history", json={"delete": [named], "clear": True})
    assert (await client.get(f"/v1/jobs/{named}")).status_code == 200
    await client.post("/history", json={"delete": [named, "nonsense"]})
    assert (await client.get(f"/v1/jobs/{named}")).status_code == 404
    assert (await client.get(f"/v1/jobs/{own}")).status_code == 200
    await client.post("/history", json={"clear": True})
    assert (await client.get(f"/v1/jobs/{own}")).status_code == 404
    assert (await client.get(f"/v1/jobs/{other}")).status_code == 200


async def test_a_malformed_change_is_400(client: Client) -> None:
    for path in ("/queue", "/history", "/interrupt", "/jobs/cancel"):
        for body in (
            b"[]",
            b"{",
            b'{"delete": 3, "job_ids": 3, "prompt_id": 3}',
            b'{"delete": [[]], "job_ids": [{}], "prompt_id": []}',
        ):
            assert (await client.post(path, content=body)).status_code == 400, (path, body)


async def test_jobs_are_listed_by_their_states(edge: Edge, client: Client) -> None:
    done, running, waiting = await ended(edge, client), await queue(client), await queue(client)
    await edge.start(running)
    await submit(client)  # has no graph
    await edge.project()

    async def ids(total: int = 3, **query: Any) -> list[str]:
        listed = (await client.get("/api/jobs", params=query)).json()
        found = [each["id"] for each in listed["jobs"]]
        assert listed["pagination"]["total"] == total
        assert listed["pagination"]["has_more"] == (query.get("offset", 0) + len(found) < total)
        return found

    assert await ids() == await ids(status="") == [waiting, running, done]
    assert await ids(2, status="in_progress,pending") == [waiting, running]
    assert await ids(1, status="pending") == [waiting]
    assert await ids(1, status="completed,failed,cancelled") == [done]
    assert await ids(0, status="failed") == []
    assert await ids(limit=1, offset=1) == [running]
    assert await ids(limit=1, offset=2) == [done]
    assert await ids(limit=1, offset=3) == []
    await client.post("/queue", json={"delete": [waiting]})
    await edge.project()
    assert await ids(2, status="completed,cancelled", limit=1) == [waiting]
    assert await ids(1, status="cancelled", offset=1) == []
    assert (await client.get("/api/jobs", params={"status": "lost"})).status_code == 400


async def test_a_job_alone_has_its_graph_and_its_outputs(edge: Edge, client: Client) -> None:
    shown = {"workflow": {"nodes": []}}
    id = await ended(edge, client, extra_data={"extra_pnginfo": shown})
    job = (await client.get(f"/api/jobs/{id}")).json()
    assert job["status"] == "completed"
    assert job["workflow"]["extra_data"]["extra_pnginfo"] == shown
    assert job["outputs"]["9"]["images"][0]["filename"] == f"ComfyUI_{id}_00001_.png"
    assert job["preview_output"]["nodeId"] == "9"


async def test_the_outputs_of_a_graph_are_found_by_reading_it_once(
    edge: Edge, client: Client
) -> None:
    job = await edge.job(await queue(client))
    prompt = {
        str(id): {"class_type": "A", "inputs": Counted(a=[str(id - 1), 0])} for id in range(50)
    }
    job.submitted.request["prompt"] = prompt
    assert queue_item(job)[-1] == ["49"]
    assert Counted.reads == 50


class Counted(dict[str, Any]):
    reads = 0

    def values(self) -> Any:
        Counted.reads += 1
        return super().values()
