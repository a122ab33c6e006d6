"""Images that a request brings along or names: by upload, data URL, base64 or https URL."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import threading
from base64 import b64encode
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from events.errors import FetchFailed
from tests.support.edge import Client, Edge, refusal
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.support.polling import eventually
from tests.support.uploads import names, png, png_of, upload

GENERATE = "/workflow/v1/generate"
URL = "https://pictures.example.com/cat.png?secret=s3cret"
BASE64 = b64encode(png()).decode()
DATA_URL = f"data:image/png;base64,{BASE64}"
KEY = {"Idempotency-Key": "order 1"}


no_image = pytest.mark.parametrize(
    "image",
    [
        URL,
        "data:image/svg+xml;base64," + b64encode(b"<svg/>").decode(),
        "data:image/png;base64," + b64encode(b"<html></html>").decode(),
        "data:text/html,<script>",
        "A" * 2000,
        b64encode(png()[:50]).decode(),
    ],
)
DIFFUSION = "/diffusion/v1/generate"


def workflow(*images: str) -> dict[str, Any]:
    prompt: dict[str, Any] = {}
    for number, image in enumerate(images):
        prompt[f"t{number}"] = {"class_type": "LoadImage", "inputs": {"image": image}}
        saved = {"images": [f"t{number}", 0], "filename_prefix": ""}
        prompt[f"s{number}"] = {"class_type": "SaveImage", "inputs": saved}
    return {"prompt": prompt}


def body(**changed: Any) -> dict[str, Any]:
    return diffusion_body() | {"init_images": ["cat.png"], "compatibility": "webui", **changed}


async def submit(client: Client, *images: str, **more: Any) -> httpx.Response:
    return await client.post(GENERATE, json=workflow(*images), **more)


async def test_each_way_becomes_an_upload_that_the_recorded_graph_names(
    edge: Edge, client: Client
) -> None:
    edge.pictures[URL] = png("blue", (7, 5))
    await upload(client)
    answer = await submit(client, DATA_URL, BASE64, URL, "cat.png", URL)
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    taken = [submitted.request["prompt"][f"t{at}"]["inputs"]["image"] for at in range(5)]
    assert taken[0] == taken[1]
    assert taken[2] == taken[4]
    assert taken[3] == "cat.png"
    assert submitted.input_files is not None
    assert submitted.input_files.keys() == set(taken)
    assert submitted.input_files[taken[2]].width == 7
    assert set(await names(client)) == set(taken)
    assert "s3cret" not in submitted.model_dump_json()
    stored = await edge.services.images.get(submitted.input_files[taken[2]].key)
    assert Image.open(io.BytesIO(stored)).getpixel((0, 0)) == (0, 0, 255)


async def test_a_job_records_the_files_as_they_were(edge: Edge, client: Client) -> None:
    await upload(client)
    await upload(client, "dog.png", data=png("blue"))
    accepted = await submit(client, "cat.png", "dog.png", "cat.png")
    assert accepted.status_code == 202
    await upload(client, data=png("green"))
    await client.delete("/v1/uploads/dog.png")

    files = (await edge.job(accepted.json()["request_id"])).submitted.input_files
    assert files is not None
    assert list(files) == ["cat.png", "dog.png"]
    shown = (await client.get(f"/v1/jobs/{accepted.json()['request_id']}")).json()
    assert shown["input_files"] == {name: file.digest for name, file in files.items()}
    for name, colour in (("cat.png", (255, 0, 0)), ("dog.png", (0, 0, 255))):
        data = await edge.services.images.get(files[name].key)
        assert files[name].digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert Image.open(io.BytesIO(data)).getpixel((0, 0)) == colour
    assert (await submit(client, "dog.png")).status_code == 400


async def test_a_job_without_files_records_none(edge: Edge, client: Client) -> None:
    accepted = await client.post(GENERATE, json=workflow_body())
    assert (await edge.job(accepted.json()["request_id"])).submitted.input_files is None


async def test_a_file_of_another_owner_is_not_in_the_list(client: Client, bob: Client) -> None:
    await upload(bob, "bobs.png")
    await upload(client)
    await upload(client, "dog.png")
    answer = await submit(client, "cat.png", "bobs.png")
    assert answer.status_code == 400
    [error] = answer.json()["node_errors"]["t1"]["errors"]
    assert error["type"] == "value_not_in_list"
    assert error["details"] == "image: 'bobs.png' not in [cat.png, dog.png]"
    for caller, listed in ((client, ["cat.png", "dog.png"]), (bob, ["bobs.png"])):
        info = (await caller.get("/v1/object_info")).json()["LoadImage"]
        found, options = info["input"]["required"]["image"]
        assert (sorted(found), options["image_upload"]) == (listed, True)


async def test_a_mask_may_be_sent_too_and_a_latent_may_not(client: Client) -> None:
    mask = {"class_type": "LoadImageMask", "inputs": {"image": DATA_URL, "channel": "red"}}
    shown = {"class_type": "MaskToImage", "inputs": {"mask": ["1", 0]}}
    saved = {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": ""}}
    body = {"prompt": {"1": mask, "2": shown, "3": saved}}
    assert (await client.post(GENERATE, json=body)).status_code == 202
    for sent in (BASE64, DATA_URL):
        body["prompt"]["1"] = {"class_type": "ETN_LoadMaskBase64", "inputs": {"mask": sent}}
        assert (await client.post(GENERATE, json=body)).status_code == 202
    body["prompt"]["1"] = {"class_type": "LoadLatent", "inputs": {"latent": DATA_URL}}
    assert (await client.post(GENERATE, json=body)).status_code == 400


async def test_a_repeat_is_one_job_and_one_file(client: Client) -> None:
    first = await submit(client, DATA_URL, headers=KEY)
    again = await submit(client, DATA_URL, headers=KEY)
    assert again.json()["request_id"] == first.json()["request_id"]
    assert (await submit(client, BASE64, headers=KEY)).status_code == 409
    assert len(await names(client)) == 1


async def test_a_repeat_finds_its_job_once_the_image_is_gone(edge: Edge, client: Client) -> None:
    edge.pictures[URL] = png()
    first = await submit(client, URL, headers=KEY)
    edge.pictures[URL] = AssertionError("it was fetched again")
    again = await submit(client, URL, headers=KEY)
    assert (again.status_code, again.json()) == (202, first.json())


@no_image
async def test_what_is_no_image_is_an_error_of_its_node(client: Client, image: str) -> None:
    answer = await submit(client, DATA_URL, image)
    assert answer.status_code == 400
    error = answer.json()
    assert error["error"]["type"] == "prompt_outputs_failed_validation"
    assert error["node_errors"].keys() == {"t1"}
    [told] = error["node_errors"]["t1"]["errors"]
    assert told["type"] == "custom_validation_failed"
    assert told["extra_info"] == {"input_name": "image"}
    assert error["node_errors"]["t1"]["dependent_outputs"] == ["s1"]
    assert "s3cret" not in answer.text


async def test_nothing_is_fetched_for_a_request_that_is_not_valid(
    edge: Edge, client: Client
) -> None:
    edge.pictures[URL] = AssertionError("it was fetched")
    asked = workflow(URL)
    asked["prompt"]["s0"]["inputs"]["images"] = ["nowhere", 0]
    assert (await client.post(GENERATE, json=asked)).status_code == 400
    for changed in ({"init_images": [URL], "steps": 0}, {"init_images": [], "mask": URL}):
        assert (await client.post(DIFFUSION, json=body(**changed))).status_code == 400


async def test_nothing_is_fetched_for_a_node_that_no_output_needs(
    edge: Edge, client: Client
) -> None:
    edge.pictures[URL] = AssertionError("it was fetched")
    await upload(client)
    asked = workflow("cat.png")
    asked["prompt"]["unused"] = {"class_type": "LoadImage", "inputs": {"image": URL}}
    assert (await client.post(GENERATE, json=asked)).status_code == 202


@pytest.mark.parametrize("flavour", ["workflow", "diffusion"])
async def test_too_many_images_are_refused_before_any_is_read(client: Client, flavour: str) -> None:
    sent = [f"{DATA_URL}{'=' * at}" for at in range(1, 18)]
    asked = workflow(*sent) if flavour == "workflow" else body(init_images=sent)
    answer = await client.post(f"/{flavour}/v1/generate", json=asked)
    assert answer.status_code == 400
    error = answer.json()["error"]
    told = error if flavour == "workflow" else error["extra_info"]["fields"][0]
    assert told["type"] == "too_many_images"
    assert await names(client) == []


async def test_a_check_says_what_an_image_costs(client: Client) -> None:
    def sent(side: int) -> str:
        return b64encode(png(size=(side, side))).decode()

    costs = [
        (await client.post("/workflow/v1/check", json=workflow(sent(side)))).json()["cost"]
        for side in (64, 256)
    ]
    assert costs[0]["live_bytes"] < costs[1]["live_bytes"]


@pytest.mark.edge(
    max_body_bytes=2000,
    max_image_body_bytes=100_000,
    max_upload_bytes=30_000,
    max_upload_pixels=10_000,
)
class TestSizes:
    async def test_a_body_may_be_longer_by_its_images(self, client: Client) -> None:
        noise = png_of(np.random.default_rng(1).integers(0, 255, (90, 90), np.uint8))
        assert len(noise) > 2000
        sent = b64encode(noise).decode()
        assert (await submit(client, sent, sent)).status_code == 202
        assert (await client.post(DIFFUSION, json=body(init_images=[sent]))).status_code == 202
        for path, asked in (
            (GENERATE, {**workflow(sent), "client_id": "a" * 2000}),
            (DIFFUSION, body(init_images=[sent], prompt="a" * 2000)),
        ):
            assert refusal(await client.post(path, json=asked)) == (413, "too_large")

    @pytest.mark.parametrize("flavour", ["workflow", "diffusion"])
    async def test_without_images_it_may_not(self, client: Client, flavour: str) -> None:
        asked = {**workflow("cat.png"), "prompt_": "a" * 3000}
        for path in ("generate", "check"):
            assert (await client.post(f"/{flavour}/v1/{path}", json=asked)).status_code == 413

    async def test_and_there_is_a_most_for_all_of_it(self, client: Client) -> None:
        assert (await submit(client, "A" * 100_000)).status_code == 413

    @pytest.mark.parametrize("size", [(101, 100), (4000, 4000)])
    async def test_an_image_of_too_many_pixels_is_refused(
        self, client: Client, size: tuple[int, int]
    ) -> None:
        answer = await submit(client, b64encode(png_of(np.zeros(size, np.uint8))).decode())
        assert "pixels" in answer.json()["node_errors"]["t0"]["errors"][0]["details"]


@pytest.mark.edge(owner_max_upload_bytes=100_000)
async def test_what_is_stored_counts_for_the_owner(client: Client) -> None:
    other = b64encode(png("blue")).decode()
    assert refusal(await submit(client, BASE64, other)) == (413, "too_many_upload_bytes")


@pytest.mark.edge(fetch_enabled=False)
async def test_fetching_may_be_turned_off(edge: Edge, client: Client) -> None:
    edge.pictures[URL] = AssertionError("it was fetched")
    answer = await submit(client, URL)
    assert answer.status_code == 400
    assert "data URL" in answer.text


@pytest.mark.edge(fetch_in_flight=2, fetch_per_owner=1, body_wait_s=0.2)
async def test_an_owner_whose_hosts_hang_leaves_turns_to_others(
    edge: Edge, client: Client, bob: Client
) -> None:
    edge.pictures[URL] = png()
    edge.hanging.add("https://hangs.example.com/")
    hangs = asyncio.create_task(submit(client, "https://hangs.example.com/"))
    await edge.hangs.wait()
    assert refusal(await submit(client, URL)) == (503, "busy")
    assert (await submit(bob, URL)).status_code == 202
    hangs.cancel()
    await asyncio.gather(hangs, return_exceptions=True)


@pytest.mark.edge(fetch_in_flight=2, fetch_per_owner=1)
async def test_a_fetched_image_has_its_turn_until_it_is_stored(
    edge: Edge, client: Client, bob: Client
) -> None:
    """However many requests name images, so many of them are in memory."""
    edge.pictures[URL] = png()
    decodes = edge.app.state.replica.submission.uploads.decodes
    may_end = threading.Event()
    busy = asyncio.create_task(decodes.run("alice", may_end.wait, 30, is_quick=False))
    sent = [asyncio.create_task(submit(client, URL)) for _ in range(2)]
    await eventually(lambda: bool(edge.fetched))
    assert (await submit(bob, DATA_URL)).status_code == 202
    fetched = len(edge.fetched)
    may_end.set()
    answers = await asyncio.gather(*sent)
    await busy
    assert [answer.status_code for answer in answers] == [202, 202]
    assert fetched == 1


async def test_what_a_url_may_not_have_is_told_in_words(edge: Edge, client: Client) -> None:
    edge.pictures[URL] = FetchFailed("10.0.0.1 is not a public address")
    answer = await submit(client, URL)
    details = answer.json()["node_errors"]["t0"]["errors"][0]["details"]
    assert details == "image: The image could not be fetched: 10.0.0.1 is not a public address."
    assert json.dumps(answer.json()).count("pictures.example.com") == 0


async def test_a_name_that_is_no_upload_is_a_field_in_error(client: Client, bob: Client) -> None:
    await upload(client)
    await upload(bob, "bobs.png")
    answer = await client.post(
        DIFFUSION,
        json=body(init_images=["cat.png", "bobs.png"], batch_size=2, mask="none.png"),
    )
    assert answer.status_code == 400
    fields = answer.json()["error"]["extra_info"]["fields"]
    assert [each["field"] for each in fields] == ["init_images", "mask"]
    assert "'bobs.png'" in fields[0]["message"]
    assert "there are: cat.png" in answer.json()["error"]["details"]


@pytest.mark.parametrize("file", ["init_images", "mask"])
async def test_the_cost_counts_the_files_as_large_as_they_are(client: Client, file: str) -> None:
    works = []
    await upload(client, "small.png")
    await upload(client, "mask.png", data=png())
    for side in (8, 800):
        await upload(client, "large.png", data=png(size=(side, side)))
        asked = {"init_images": ["small.png"], "mask": "mask.png"}
        named = {file: ["large.png"] if file == "init_images" else "large.png"}
        answer = await client.post("/diffusion/v1/check", json=body(**asked | named))
        works.append(answer.json()["cost"]["work"])
    assert works[1] > works[0] + 1


@pytest.mark.parametrize("compatibility", ["webui", "comfyui"])
async def test_an_image_may_stand_in_the_place_of_a_name(
    edge: Edge, client: Client, compatibility: str
) -> None:
    edge.pictures[URL] = png("white", (7, 5))
    await upload(client)
    asked = body(compatibility=compatibility, init_images=["cat.png", DATA_URL, BASE64, URL])
    answer = await client.post(DIFFUSION, json=asked | {"batch_size": 4, "mask": URL})
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    first, *others = submitted.request["init_images"]
    assert (first, others[0]) == ("cat.png", others[1])
    assert others[2] == submitted.request["mask"]
    assert set(submitted.input_files or ()) == {first, *others}
    assert (submitted.input_files or {})[others[2]].width == 7
    assert set(await names(client)) == {first, *others}
    recorded = submitted.model_dump_json()
    assert "s3cret" not in recorded
    assert BASE64 not in recorded


@no_image
async def test_what_is_no_image_is_an_error_of_its_member(client: Client, image: str) -> None:
    asked = {"init_images": [DATA_URL, image], "batch_size": 2}
    for sent, field in (
        (asked, "init_images.1"),
        ({"init_images": [DATA_URL], "mask": image}, "mask"),
    ):
        answer = await client.post(DIFFUSION, json=body(**sent))
        assert answer.status_code == 400
        [told] = answer.json()["error"]["extra_info"]["fields"]
        assert told["field"] == field
        assert "the image cannot be used" in told["message"]
        assert "s3cret" not in answer.text


@pytest.mark.parametrize("sent", [{"init_images": URL}, {"init_images": [1]}, {"mask": [DATA_URL]}])
async def test_members_of_another_type_are_refused(client: Client, sent: dict[str, Any]) -> None:
    assert (await client.post(DIFFUSION, json=body(**sent))).status_code == 400
