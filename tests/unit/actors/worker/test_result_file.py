from __future__ import annotations

import io
import json
import struct

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import IFD, Base
from safetensors.numpy import load

from actors.worker.result_file import ImageEncoding, encode_image, encode_result
from engine.reports import ImageReady, LatentReady
from engine.webui.generation_texts import user_comment
from storage.file_names import JPEG, SAFETENSORS, WEBP

TEXT = {"prompt": '{"1": "größer"}', "seed": "7"}


def test_a_picture_becomes_a_png_with_its_text() -> None:
    pixels = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3)
    file = encode_result(ImageReady(0, "9", pixels, 7), TEXT)
    assert (file.width, file.height, file.media_type) == (6, 4, None)
    image = Image.open(io.BytesIO(file.content))
    assert np.array_equal(np.asarray(image), pixels)
    assert image.info == TEXT


def test_a_latent_becomes_a_file_that_comfyui_reads() -> None:
    samples = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2, 4, 3, 5)
    strided = samples.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)
    file = encode_result(LatentReady(0, "9", strided, 7), TEXT)
    assert (file.width, file.height, file.media_type) == (40, 24, SAFETENSORS)
    tensors = load(file.content)
    assert tensors.keys() == {"latent_tensor", "latent_format_version_0"}
    assert np.array_equal(tensors["latent_tensor"], samples)
    assert tensors["latent_format_version_0"].shape == (0,)
    (length,) = struct.unpack("<Q", file.content[:8])
    assert json.loads(file.content[8 : 8 + length])["__metadata__"] == TEXT


GRAPH = json.dumps({"3": {"class_type": "KSampler"}})
TEXTS = {"prompt": GRAPH, "parameters": "ein größer 😀 Kreis\nSteps: 20", "seed": "7"}
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def image(
    kind: str, quality: int, text: dict[str, str], pixels: NDArray[np.uint8] = PIXELS
) -> tuple[Image.Image, str | None]:
    content, media_type = encode_image(pixels, text, ImageEncoding.asked(kind, quality))
    return Image.open(io.BytesIO(content)), media_type


@pytest.mark.parametrize(("kind", "media_type"), [("webp", WEBP), ("jpeg", JPEG)])
def test_an_image_has_the_format_and_the_texts_of_both_programs(kind: str, media_type: str) -> None:
    made, said = image(kind, 90, TEXTS | {"workflow": "{}", "extra": "[1]"})
    assert (made.format, said, made.size) == (kind.upper(), media_type, (40, 24))
    exif = made.getexif()
    assert exif[Base.Model] == f"prompt:{GRAPH}"
    assert exif[Base.Make] == "workflow:{}"
    assert {exif[Base.ImageDescription], exif[Base.DocumentName]} == {"extra:[1]", "seed:7"}
    assert exif.get_ifd(IFD.Exif)[0x9286].startswith(b"UNICODE\0\0e\0i\0n")
    assert user_comment(made) == TEXTS["parameters"]


@pytest.mark.parametrize("kind", ["webp", "jpeg"])
def test_an_image_that_says_nothing_has_no_exif(kind: str) -> None:
    made, _ = image(kind, 90, {})
    assert not made.getexif()
    assert user_comment(made) is None


def test_a_webp_of_100_is_lossless_and_a_lower_quality_is_smaller() -> None:
    made, _ = image("webp", 100, {})
    assert np.array_equal(np.asarray(made), PIXELS)
    sizes = [
        len(encode_image(PIXELS, {}, ImageEncoding.asked(kind, quality))[0])
        for kind in ("webp", "jpeg")
        for quality in (90, 10)
    ]
    assert sizes[0] > sizes[1]
    assert sizes[2] > sizes[3]


def test_a_transparent_image_is_a_webp_or_png() -> None:
    clear = np.dstack((PIXELS, PIXELS[..., 0]))
    for kind, media_type in (("webp", WEBP), ("png", None), ("jpeg", None)):
        made, said = image(kind, 100, {}, clear)
        assert (said, made.mode) == (media_type, "RGBA")
        shown = clear[..., 3] > 0
        assert np.array_equal(np.asarray(made)[shown], clear[shown])


def test_a_jpeg_leaves_out_what_its_exif_has_no_room_for() -> None:
    text = TEXTS | {"workflow": "[" + "1," * 40_000 + "1]", "small": "1"}
    made, _ = image("jpeg", 90, text)
    exif = made.getexif()
    assert user_comment(made) == TEXTS["parameters"]
    assert exif[Base.Model] == f"prompt:{GRAPH}"
    assert Base.Make not in exif
    assert "small:1" in exif.values()
    assert image("webp", 90, text)[0].getexif()[Base.Make].endswith("1]")


def test_more_texts_than_there_are_tags_do_no_harm() -> None:
    text = {f"name-{number}": "1" for number in range(2000)}
    for kind in ("webp", "jpeg"):
        assert len(image(kind, 90, text)[0].getexif()) == 539


def test_an_image_too_large_for_webp_is_a_png() -> None:
    made, media_type = image("webp", 90, {"seed": "7"}, np.zeros((1, 16_384, 3), np.uint8))
    assert (made.format, media_type, made.info) == ("PNG", None, {"seed": "7"})


def test_a_format_of_a_later_version_is_a_png() -> None:
    assert image("avif", 50, {})[0].format == "PNG"
