"""Uploads that the graphs of requests name: videos, audio files and images."""

from __future__ import annotations

from typing import Any

import pytest

from events.store.records import Endpoint
from tests.support.edge import Client, Edge, refusal
from tests.support.generate_bodies import diffusion_body
from tests.support.uploads import MP4, WAV, upload

WORKFLOW = "/workflow/v1/generate"
DIFFUSION = "/diffusion/v1/generate"


@pytest.fixture
async def client(edge: Edge, client: Client) -> Client:
    endpoint = Endpoint("packs", engine="comfyui", comfyui_url="http://127.0.0.1:8188")
    await edge.services.endpoints.put(endpoint)
    await upload(client, "cat.png")
    await upload(client, "clip.mp4", data=MP4)
    await upload(client, "song.wav", data=WAV)
    return client


def graph(**inputs: Any) -> dict[str, Any]:
    return {"prompt": {"1": {"class_type": "NodeOfAPack", "inputs": inputs}}}


async def test_any_node_of_a_comfyui_server_may_read_an_upload(edge: Edge, client: Client) -> None:
    body = graph(video="clip.mp4", audio="song.wav [input]", picture="cat.png", other="dog.png")

    submitted = await edge.submitted(await client.post(f"{WORKFLOW}?endpoint=packs", json=body))

    assert submitted.request == body
    files = submitted.input_files or {}
    assert files.keys() == {"clip.mp4", "song.wav", "cat.png"}
    assert (files["clip.mp4"].width, files["clip.mp4"].height) == (None, None)
    assert files["cat.png"].width == 3
    assert await edge.services.images.get(files["clip.mp4"].key) == MP4


async def test_texts_that_name_no_upload_stay_as_they_are(edge: Edge, client: Client) -> None:
    body = graph(folder="dog.png", prompt="a cat.png")

    submitted = await edge.submitted(await client.post(f"{WORKFLOW}?endpoint=packs", json=body))

    assert (submitted.request, submitted.input_files) == (body, None)


async def test_an_upload_of_another_owner_is_not_used(
    edge: Edge, client: Client, bob: Client
) -> None:
    answer = await bob.post(f"{WORKFLOW}?endpoint=packs", json=graph(video="clip.mp4"))

    assert (await edge.submitted(answer)).input_files is None


@pytest.mark.edge(max_input_bytes=len(MP4) + 10)
async def test_the_input_files_of_a_job_have_a_largest_size(client: Client) -> None:
    both = graph(video="clip.mp4", audio="song.wav", again="clip.mp4")
    answer = await client.post(f"{WORKFLOW}?endpoint=packs", json=both)
    assert refusal(answer) == (400, "too_large")
    one = graph(video="clip.mp4", again="clip.mp4")
    assert (await client.post(f"{WORKFLOW}?endpoint=packs", json=one)).status_code == 202


async def test_a_known_loader_needs_an_upload(client: Client) -> None:
    body = {"prompt": {"1": {"class_type": "LoadImage", "inputs": {"image": "dog.png"}}}}

    assert refusal(await client.post(f"{WORKFLOW}?endpoint=packs", json=body))[0] == 400


async def test_our_own_engine_refuses_a_video_for_an_image(client: Client) -> None:
    for image in ("clip.mp4", "clip.mp4 [input]"):
        nodes = {
            "1": {"class_type": "LoadImage", "inputs": {"image": image}},
            "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        }
        answer = await client.post(WORKFLOW, json={"prompt": nodes})
        assert answer.status_code == 400
        assert "cannot read video or audio files, such as 'clip.mp4'" in answer.text
        assert list(answer.json()["node_errors"]) == ["1"]

    for member, value in (("init_images", ["clip.mp4"]), ("mask", "song.wav")):
        body = diffusion_body(init_images=["cat.png"]) | {"compatibility": "webui", member: value}
        answer = await client.post(DIFFUSION, json=body)
        assert answer.status_code == 400
        assert "cannot read video or audio files" in answer.text
        assert member in answer.text


@pytest.mark.parametrize(
    ("member", "value"), [("init_images", ["clip.mp4 [input]"]), ("mask", "song.wav [input]")]
)
async def test_a_diffusion_request_cannot_name_a_video(
    client: Client, member: str, value: object
) -> None:
    body = diffusion_body(init_images=["cat.png"], sd_model_checkpoint="a") | {member: value}

    answer = await client.post(f"{DIFFUSION}?endpoint=packs", json=body)

    assert answer.status_code == 400
    assert "cannot read video or audio files" in answer.text
    assert member in answer.text


async def test_files_of_a_diffusion_request_are_recorded_without_a_suffix(
    edge: Edge, client: Client
) -> None:
    names = {"init_images": ["cat.png [input]"], "mask": "cat.png [input]"}
    body = diffusion_body(sd_model_checkpoint="a") | names

    submitted = await edge.submitted(await client.post(f"{DIFFUSION}?endpoint=packs", json=body))

    assert (submitted.request["init_images"], submitted.request["mask"]) == (["cat.png"], "cat.png")
    assert (submitted.input_files or {}).keys() == {"cat.png"}


async def test_a_video_is_no_choice_of_an_image_loader(client: Client) -> None:
    nodes = (await client.get("/v1/object_info")).json()

    assert nodes["LoadImage"]["input"]["required"]["image"][0] == ["cat.png"]
