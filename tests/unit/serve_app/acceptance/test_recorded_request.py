"""What is recorded of a request, in which types, and how large its event may be."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from events.cloud_events import encode
from tests.support.edge import Client, Edge, refusal
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.support.uploads import png

WORKFLOW = "/workflow/v1/generate"
DIFFUSION = "/diffusion/v1/generate"
PATH = "/diffusion/v1/generate"
MOST_BYTES = 100_000


async def recorded(edge: Edge, client: Client, path: str, body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return (await edge.job(answer.json()["request_id"])).submitted.request


@pytest.mark.parametrize("inputs", [None, 5, "ckpt_name", {"ckpt_name": ["a", 0]}])
async def test_a_node_that_no_output_needs_is_not_recorded(
    edge: Edge, client: Client, inputs: Any
) -> None:
    body = workflow_body()
    idle = {"class_type": "KSampler", "inputs": inputs}
    sent = {"prompt": {"idle": idle, **body["prompt"]}}
    assert await recorded(edge, client, WORKFLOW, sent) == body


async def test_an_input_that_no_node_declares_is_not_recorded(edge: Edge, client: Client) -> None:
    body = workflow_body()
    body["prompt"]["3"]["inputs"]["unknown"] = "x" * 100_000
    body["prompt"]["3"]["is_changed"] = ["x" * 100_000]
    assert await recorded(edge, client, WORKFLOW, body) == workflow_body()


async def test_literals_are_recorded_in_their_types(edge: Edge, client: Client) -> None:
    request = await recorded(edge, client, WORKFLOW, workflow_body(steps="20", cfg="8"))
    inputs = request["prompt"]["3"]["inputs"]
    assert (inputs["steps"], inputs["cfg"]) == (20, 8.0)


async def test_of_extra_data_the_texts_of_images_are_recorded(edge: Edge, client: Client) -> None:
    pnginfo = {"workflow": {"nodes": []}}
    sent = {**workflow_body(), "extra_data": {"extra_pnginfo": pnginfo, "token": "x" * 100_000}}
    request = await recorded(edge, client, WORKFLOW, sent)
    assert request["extra_data"] == {"extra_pnginfo": pnginfo}


async def test_extra_data_of_half_a_megabyte_is_refused(client: Client) -> None:
    sent = {**workflow_body(), "extra_data": {"extra_pnginfo": {"workflow": "x" * 400_000}}}
    answer = await client.post(WORKFLOW, json=sent)
    assert answer.status_code == 400
    assert "at most 65536 are allowed" in answer.json()["error"]["details"]


async def test_a_member_without_effect_is_not_recorded(edge: Edge, client: Client) -> None:
    without_effect = {"save_images": True, "hr_prompt": "x" * 100_000, "styles": [], "eta": None}
    body = diffusion_body(seed=7)
    assert await recorded(edge, client, DIFFUSION, body | without_effect) == body


async def test_numbers_of_a_diffusion_request_are_recorded_as_numbers(
    edge: Edge, client: Client
) -> None:
    request = await recorded(edge, client, DIFFUSION, diffusion_body(steps=f"{' ' * 100_000}20"))
    assert request["steps"] == 20


async def test_the_name_of_a_model_is_bounded(client: Client) -> None:
    body = {**diffusion_body(), "sd_model_checkpoint": "x" * 1025}
    assert (await client.post(DIFFUSION, json=body)).status_code == 400


MAX_PAYLOAD_BYTES = 2 * 2**20
INPAINTING = {
    "init_images": ["data:image/png;base64," + b64encode(png()).decode()] * 8,
    "mask": "data:image/png;base64," + b64encode(png("white")).decode(),
    "batch_size": 8,
    "inpainting_fill": 2,
    "subseed_strength": 0.5,
}
LONG_TEXTS = {
    "prompt": "x" * 5_000,
    "negative_prompt": "y" * 5_000,
    "enable_hr": True,
    "hr_scale": 1,
}


async def event_bytes(edge: Edge, answer: httpx.Response) -> int:
    [event] = await edge.log.read(answer.json()["request_id"])
    return len(encode(event))


@pytest.mark.edge(max_body_bytes=1_500_000)
async def test_a_request_whose_event_is_too_large_is_refused(edge: Edge, client: Client) -> None:
    """The settings of the image text repeat a prompt that no text limit applies to."""
    hr_prompt = "<lora:" + "a" * 1_300_000 + ":1>"
    body = diffusion_body(compatibility="webui", enable_hr=True, hr_scale=1, hr_prompt=hr_prompt)
    answer = await client.post(PATH, json=body)
    assert refusal(answer) == (400, "too_large")
    check = await client.post(PATH.replace("generate", "check"), json=body)
    assert refusal(check) == (400, "too_large")
    body["hr_prompt"] = hr_prompt[:600_000] + ":1>"
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    assert await event_bytes(edge, answer) <= MAX_PAYLOAD_BYTES


@pytest.mark.edge(owner_max_log_bytes=MOST_BYTES)
@pytest.mark.parametrize("extra", [INPAINTING, LONG_TEXTS])
async def test_the_events_of_an_owner_stay_within_the_limit(
    edge: Edge, client: Client, extra: dict[str, Any]
) -> None:
    stored_bytes = 0
    body = {"prompt": "", "width": 64, "height": 64, **extra}
    for _ in range(80):
        answer = await client.post(PATH, json=body)
        if answer.status_code != 202:
            break
        stored_bytes += await event_bytes(edge, answer)
    assert answer.status_code == 429
    assert 0.5 * MOST_BYTES < stored_bytes <= 1.1 * MOST_BYTES


@pytest.mark.edge(owner_max_log_bytes=50_000)
async def test_an_inline_image_takes_no_room_of_the_log(client: Client) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (512, 512, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(noise).save(out, "PNG")
    image = "data:image/png;base64," + b64encode(out.getvalue()).decode()
    body = diffusion_body(compatibility="webui", init_images=[image])
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text


async def test_a_prompt_that_looks_like_a_placeholder_stays_a_prompt(
    edge: Edge, client: Client
) -> None:
    body = diffusion_body(
        compatibility="webui", prompt="\0sent 0", init_images=INPAINTING["init_images"][:1]
    )
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    assert submitted.request["prompt"] == "\0sent 0"
    assert submitted.graph["text"]["inputs"]["text"] == "\0sent 0"
