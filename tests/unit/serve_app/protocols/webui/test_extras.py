"""Enlarged images, and the texts of a PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from actors.worker.result_file import encode_png
from events.decisions import Cancel
from tests.support.edge import Client, Edge
from tests.support.uploads import png
from tests.unit.serve_app.protocols.conftest import Answered

SINGLE, BATCH = "/sdapi/v1/extra-single-image", "/sdapi/v1/extra-batch-images"
IMAGE = base64.b64encode(png(size=(64, 48))).decode()


async def info_of(client: Client, png: bytes) -> httpx.Response:
    image = base64.b64encode(png).decode()
    return await client.post("/sdapi/v1/png-info", json={"image": image})


async def graph_of(edge: Edge) -> Any:
    return (await edge.job(edge.log.job_ids()[-1])).submitted.request["prompt"]


@pytest.mark.parametrize(
    ("asked", "size"),
    [
        ({}, (128, 96)),
        ({"upscaling_resize": 1.3}, (80, 56)),
        ({"resize_mode": 1, "upscaling_resize_w": 128, "upscaling_resize_h": 128}, (128, 128)),
        ({"resize_mode": 1, "upscaling_resize_w": 96, "upscaling_crop": False}, (680, 512)),
    ],
)
async def test_an_image_is_enlarged_by_a_workflow(
    edge: Edge, client: Client, answered: Answered, asked: dict[str, Any], size: tuple[int, int]
) -> None:
    body = {"image": IMAGE, "upscaler_1": "Lanczos", **asked}
    answer = await answered(client.post(SINGLE, json=body), edge.run)
    assert answer.status_code == 200, answer.text
    assert base64.b64decode(answer.json()["image"]) == b"pixels"
    sized = (await graph_of(edge))["sized-0-0"]["inputs"]
    assert (sized["width"], sized["height"]) == size


async def test_two_upscalers_are_blended(edge: Edge, client: Client, answered: Answered) -> None:
    asked = {"upscaler_1": "Lanczos", "upscaler_2": "Nearest", "extras_upscaler_2_visibility": 0.3}
    await answered(client.post(SINGLE, json={"image": IMAGE, **asked}), edge.run)
    assert (await graph_of(edge))["both-0"]["inputs"]["blend_factor"] == 0.3


async def test_several_images_are_one_job(edge: Edge, client: Client, answered: Answered) -> None:
    images = [{"data": IMAGE, "name": "a"}, {"data": IMAGE, "name": "b"}]
    answer = await answered(
        client.post(BATCH, json={"imageList": images}), partial(edge.run, images=2)
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["images"]) == 2


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"upscaler_1": "LDSR"}, 400, "LDSR"),
    ({"upscaler_1": "Latent"}, 400, "Latent"),
    ({"gfpgan_visibility": 1}, 422, "gfpgan_visibility"),
    ({"upscaling_resize": 1e300}, 422, "upscaling_resize"),
    ({"image": "!"}, 400, "base64"),
    ({"image": ""}, 400, "base64"),
    ({"upscaling_resize_w": -1}, 422, "upscaling_resize_w"),
]


async def test_what_cannot_be_done_is_said(client: Client) -> None:
    for asked, status, word in REFUSED:
        answer = await client.post(SINGLE, json={"image": IMAGE, **asked})
        assert answer.status_code == status, answer.text
        assert word in answer.text


async def test_a_png_says_how_it_was_made(client: Client) -> None:
    text = "a cat\nNegative prompt: dog\nSteps: 20, Sampler: Euler, CFG scale: 7, Seed: 5"
    data = encode_png(np.zeros((8, 8, 3), np.uint8), {"parameters": text, "other": "ä→"})
    told = (await info_of(client, data)).json()
    assert (told["info"], told["items"]["other"]) == (text, "ä→")
    assert {"Prompt": "a cat", "Seed": "5"}.items() <= told["parameters"].items()


async def test_what_is_no_png_says_nothing(client: Client) -> None:
    for data in (b"", b"GIF89a", png()[:40], b"\x89PNG\r\n\x1a\n" + bytes(100)):
        assert (await info_of(client, data)).status_code in {200, 400}, data


async def test_an_image_that_was_interrupted_is_no_fault_of_the_service(
    edge: Edge, client: Client, answered: Answered
) -> None:
    asked = {"image": IMAGE, "upscaler_1": "Lanczos"}
    cancel = partial(edge.execute, command=Cancel())
    answer = await answered(client.post(SINGLE, json=asked), cancel)
    assert (answer.status_code, answer.json()["error"]) == (400, "cancelled")


async def test_a_png_of_countless_texts_is_not_read(client: Client) -> None:
    whole = png()
    text = b"tEXta\0b"
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    answer = await info_of(client, whole[:33] + chunk * 300 + whole[33:])
    assert answer.status_code == 400
    assert "parts" in answer.json()["detail"]
