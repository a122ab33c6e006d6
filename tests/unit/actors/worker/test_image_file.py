import io
import json

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import IFD, Base

from actors.worker.image_file import ImageEncoding, encode_image
from engine.webui.infotext.exif import read_user_comment
from storage.keys import JPEG, WEBP

GRAPH = json.dumps({"3": {"class_type": "KSampler"}})
TEXT = {"prompt": GRAPH, "parameters": "ein größer 😀 Kreis\nSteps: 20", "seed": "7"}
PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3), np.uint8)


def image(
    kind: str, quality: int, text: dict[str, str], pixels: NDArray[np.uint8] = PIXELS
) -> tuple[Image.Image, str | None]:
    content, media_type = encode_image(pixels, text, ImageEncoding.asked(kind, quality))
    return Image.open(io.BytesIO(content)), media_type


@pytest.mark.parametrize(("kind", "media_type"), [("webp", WEBP), ("jpeg", JPEG)])
def test_an_image_has_the_format_and_the_texts_of_both_programs(kind: str, media_type: str) -> None:
    made, said = image(kind, 90, TEXT | {"workflow": "{}", "extra": "[1]"})
    assert (made.format, said, made.size) == (kind.upper(), media_type, (40, 24))
    exif = made.getexif()
    assert exif[Base.Model] == f"prompt:{GRAPH}"
    assert exif[Base.Make] == "workflow:{}"
    assert {exif[Base.ImageDescription], exif[Base.DocumentName]} == {"extra:[1]", "seed:7"}
    assert exif.get_ifd(IFD.Exif)[0x9286].startswith(b"UNICODE\0\0e\0i\0n")
    assert read_user_comment(made) == TEXT["parameters"]


@pytest.mark.parametrize("kind", ["webp", "jpeg"])
def test_an_image_that_says_nothing_has_no_exif(kind: str) -> None:
    made, _ = image(kind, 90, {})
    assert not made.getexif()
    assert read_user_comment(made) is None


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


def test_a_jpeg_leaves_out_what_its_exif_has_no_room_for() -> None:
    text = TEXT | {"workflow": "[" + "1," * 40_000 + "1]", "small": "1"}
    made, _ = image("jpeg", 90, text)
    exif = made.getexif()
    assert read_user_comment(made) == TEXT["parameters"]
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
