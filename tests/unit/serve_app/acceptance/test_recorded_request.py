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
PNGINFO = {"workflow": {"nodes": []}}
MOST_BYTES = 100_000


async def recorded(edge: Edge, client: Client, path: str, body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return (await edge.job(answer.json()["request_id"])).submitted.request


def workflow_with(node: str, **members: Any) -> dict[str, Any]:
    """A workflow with another node, or with other members of one."""
    body = workflow_body()
    body["prompt"][node] = body["prompt"].get(node, {}) | members
    return body


LONG, SEEDED = "x" * 100_000, diffusion_body(seed=7)
INPUTS = workflow_body()["prompt"]["3"]["inputs"]
WITHOUT_EFFECT = {"save_images": True, "hr_prompt": LONG, "styles": [], "eta": None}


@pytest.mark.parametrize(
    ("path", "sent", "request_"),
    [
        *(
            (WORKFLOW, workflow_with("idle", class_type="KSampler", inputs=inputs), workflow_body())
            for inputs in (None, 5, "ckpt_name", {"ckpt_name": ["a", 0]})
        ),
        (WORKFLOW, workflow_with("3", inputs=INPUTS | {"unknown": LONG}), workflow_body()),
        (WORKFLOW, workflow_with("3", is_changed=[LONG]), workflow_body()),
        (WORKFLOW, workflow_body(steps="20", cfg="8"), workflow_body(steps=20, cfg=8.0)),
        (
            WORKFLOW,
            {**workflow_body(), "extra_data": {"extra_pnginfo": PNGINFO, "token": LONG}},
            {**workflow_body(), "extra_data": {"extra_pnginfo": PNGINFO}},
        ),
        (DIFFUSION, SEEDED | WITHOUT_EFFECT, SEEDED),
        (DIFFUSION, SEEDED | {"steps": f"{' ' * 100_000}20"}, SEEDED),
    ],
    ids=[
        *("idle node without inputs", "idle, number", "idle, text", "idle, link"),
        *("undeclared input", "undeclared member of a node", "literals in their types"),
        *("extra data beside texts of images", "members without effect", "number in a text"),
    ],
)
async def test_what_has_an_effect_is_recorded_in_its_type(
    edge: Edge, client: Client, path: str, sent: dict[str, Any], request_: dict[str, Any]
) -> None:
    assert await recorded(edge, client, path, sent) == request_


async def test_extra_data_of_half_a_megabyte_is_refused(client: Client) -> None:
    sent = {**workflow_body(), "extra_data": {"extra_pnginfo": {"workflow": "x" * 400_000}}}
    answer = await client.post(WORKFLOW, json=sent)
    assert answer.status_code == 400
    assert "at most 65536 are allowed" in answer.json()["error"]["details"]


async def test_the_name_of_a_model_is_bounded(client: Client) -> None:
    body = diffusion_body(sd_model_checkpoint="x" * 1025)
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
    answer = await client.post(DIFFUSION, json=body)
    assert refusal(answer) == (400, "too_large")
    check = await client.post("/diffusion/v1/check", json=body)
    assert refusal(check) == (400, "too_large")
    body["hr_prompt"] = hr_prompt[:600_000] + ":1>"
    answer = await client.post(DIFFUSION, json=body)
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
        answer = await client.post(DIFFUSION, json=body)
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
    answer = await client.post(DIFFUSION, json=body)
    assert answer.status_code == 202, answer.text


async def test_a_prompt_that_looks_like_a_placeholder_stays_a_prompt(
    edge: Edge, client: Client
) -> None:
    body = diffusion_body(
        compatibility="webui", prompt="\0sent 0", init_images=INPAINTING["init_images"][:1]
    )
    answer = await client.post(DIFFUSION, json=body)
    assert answer.status_code == 202, answer.text
    submitted = (await edge.job(answer.json()["request_id"])).submitted
    assert submitted.request["prompt"] == "\0sent 0"
    assert submitted.graph["text"]["inputs"]["text"] == "\0sent 0"
