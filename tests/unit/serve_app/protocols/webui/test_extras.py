"""Enlarged images, and the texts of a PNG."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

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
        ({"upscaling_resize_w": 0, "codeformer_weight": -1, "upscaler_2": ""}, (128, 96)),
        ({"upscaler_2": "None", "extras_upscaler_2_visibility": 9}, (128, 96)),
        ({"gfpgan_visibility": None, "upscaling_resize": None, "name": ""}, (128, 96)),
        ({"resize_mode": 1, "upscaling_resize_w": 128, "upscaling_resize_h": 128}, (128, 128)),
        ({"resize_mode": 1, "upscaling_resize_w": 96, "upscaling_crop": False}, (680, 512)),
        ({"resize_mode": 1.0, "upscaling_resize_w": 128, "upscaling_resize_h": 128}, (128, 128)),
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


async def test_an_unknown_endpoint_is_refused_before_the_image_is_stored(client: Client) -> None:
    body = {"image": "no image", "upscaler_1": "Lanczos"}
    answer = await client.post(SINGLE, params={"endpoint": "none"}, json=body)
    assert answer.status_code == 404, answer.text
    assert "no such endpoint" in answer.text


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
    ({"resize_mode": 1, "upscaling_resize_w": -1}, 422, "upscaling_resize_w"),
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


async def test_a_size_is_told_as_two_numbers(client: Client) -> None:
    text = (
        "a 3x4 grid\nNegative prompt: 5x6\nSteps: 20, Sampler: Euler, Seed: 5, Size: 512x768, "
        "Hires resize: 1024x1536, Model: 12x12-v1, Mask blur: 4x8"
    )
    data = encode_png(np.zeros((8, 8, 3), np.uint8), {"parameters": text})
    assert (await info_of(client, data)).json()["parameters"] == {
        "Prompt": "a 3x4 grid",
        "Negative prompt": "5x6",
        "Steps": "20",
        "Sampler": "Euler",
        "Seed": "5",
        "Size-1": "512",
        "Size-2": "768",
        "Hires resize-1": "1024",
        "Hires resize-2": "1536",
        "Model": "12x12-v1",
        "Mask blur-1": "4",
        "Mask blur-2": "8",
    }


async def test_the_texts_of_other_programs_are_read(client: Client) -> None:
    comment = {"steps": 9, "sampler": "k_heun", "seed": 77, "scale": 5.5, "uc": "dog", "noise": 0.2}
    texts = {"Software": "NovelAI", "Description": "a cat", "Comment": json.dumps(comment)}
    told = (await info_of(client, encode_png(np.zeros((64, 64, 3), np.uint8), texts))).json()
    assert told["info"] == (
        "a cat\nNegative prompt: dog\nSteps: 9, Sampler: Heun, CFG scale: 5.5, Seed: 77, "
        "Size: 64x64, Clip skip: 2, ENSD: 31337"
    )
    assert {"Prompt": "a cat", "Seed": "77"}.items() <= told["parameters"].items()
    assert told["items"]["Description"] == "a cat"
    assert told["left_out"] == ["noise"]


async def test_a_jpeg_has_its_text_in_a_comment(client: Client) -> None:
    text = "a cat\nSteps: 20, Sampler: Nope, CFG scale: 7, Seed: 5"
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "JPEG", comment=text.encode())
    told = (await info_of(client, out.getvalue())).json()
    assert (told["info"], told["left_out"]) == (text, ["Sampler"])


async def test_a_text_that_cannot_be_read_is_refused(client: Client) -> None:
    info = PngInfo()
    info.add_text("parameters", '{"prompt": "x", "steps": 1, "width": 1e999, "height": 512}')
    written = io.BytesIO()
    Image.new("RGB", (8, 8)).save(written, "png", pnginfo=info)
    answer = await info_of(client, written.getvalue())
    assert answer.status_code == 400
    assert "cannot be read" in answer.json()["detail"]


async def test_what_is_no_image_says_nothing(client: Client) -> None:
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
    assert "chunks" in answer.json()["detail"]
