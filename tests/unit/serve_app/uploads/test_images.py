"""Pictures as callers send them, and what is made of them."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from serve_app.refusals import UploadRefused
from serve_app.upload_store import read_input_image

MAX_PIXELS = 10_000
ORIENTATION = 0x0112
KINDS = ("PNG", "JPEG", "WEBP")


def picture(mode: str = "RGB", size: tuple[int, int] = (6, 4)) -> Image.Image:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], channels), np.uint8)
    return Image.fromarray(values.squeeze())


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def read(data: bytes) -> Image.Image:
    found = read_input_image(data, max_pixels=MAX_PIXELS)
    image = Image.open(io.BytesIO(found.data))
    assert image.format == "PNG"
    assert image.size == (found.width, found.height)
    image.load()
    assert image.info == {}
    return image


def pixels(image: Image.Image) -> list[Any]:
    return np.asarray(image).tolist()


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_pixels_and_alpha_are_kept(kind: str, mode: str) -> None:
    sent = picture(mode)
    image = read(encoded(sent, kind, lossless=True, exact=True))
    assert image.mode == mode
    assert pixels(image) == pixels(sent)


def test_a_jpeg_is_close_to_what_was_drawn() -> None:
    sent = Image.new("RGB", (16, 16), (200, 30, 60))
    image = read(encoded(sent, "JPEG", quality=95))
    assert np.abs(np.asarray(image).astype(int) - np.asarray(sent)).max() <= 4


def test_grey_palette_and_cmyk_become_colours() -> None:
    grey = picture("L")
    assert pixels(read(encoded(grey))) == pixels(grey.convert("RGB"))
    palette = picture().quantize(8)
    assert pixels(read(encoded(palette))) == pixels(palette.convert("RGB"))
    assert read(encoded(picture().convert("CMYK"), "JPEG")).mode == "RGB"


def test_a_transparent_palette_entry_is_alpha() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((1, 0), 1)
    image = read(encoded(palette, transparency=0))
    assert pixels(image) == [[[255, 0, 0, 0], [0, 0, 255, 255]]]


def test_sixteen_bits_of_grey_keep_their_range() -> None:
    deep = Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16))
    assert pixels(read(encoded(deep))) == [[[0] * 3, [128] * 3, [255] * 3]]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_turned_as_exif_says_and_nothing_else_of_exif_is_kept(kind: str) -> None:
    sent = picture(size=(6, 4))
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # a quarter turn
    exif[0x010E] = "taken at home"
    data = encoded(sent, kind, exif=exif, lossless=True)
    assert b"taken at home" in data
    image = read(data)
    assert image.size == (4, 6)
    assert b"taken at home" not in encoded(image)
    if kind != "JPEG":
        assert pixels(image) == pixels(sent.transpose(Image.Transpose.ROTATE_270))


def test_text_and_profile_are_dropped() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("prompt", "a secret")
    found = read_input_image(
        encoded(picture(), pnginfo=text, icc_profile=b"profile", dpi=(72, 72)),
        max_pixels=MAX_PIXELS,
    )
    kinds = [found.data[at + 4 : at + 8] for at in chunk_starts(found.data)]
    assert set(kinds) == {b"IHDR", b"IDAT", b"IEND"}


def chunk_starts(png: bytes) -> list[int]:
    at, starts = 8, []
    while at < len(png):
        starts.append(at)
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return starts


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_behind_the_picture_does_not_come_through(kind: str) -> None:
    archive = b"PK\x03\x04<script>alert(1)</script>"
    found = read_input_image(encoded(picture(), kind) + archive, max_pixels=MAX_PIXELS)
    assert b"script" not in found.data


def test_other_formats_are_refused() -> None:
    texts = (b"", b"text", b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    images = [encoded(picture(), kind) for kind in ("GIF", "BMP", "TIFF", "ICO")]
    for data in (*texts, b"%PDF-1.4\n" + encoded(picture()), *images):
        with pytest.raises(UploadRefused, match="not a PNG, JPEG or WebP"):
            read(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_cut_off_is_refused(kind: str) -> None:
    data = encoded(picture(size=(60, 60)), kind)
    with pytest.raises(UploadRefused, match="damaged or cut off"):
        read(data[: len(data) // 2])


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_an_animation_is_refused(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    with pytest.raises(UploadRefused, match="animated"):
        read(data)


def test_a_phones_two_pictures_in_one_file_are_its_first() -> None:
    first, second = picture(), picture(size=(9, 9))
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert read(data).size == first.size


def png_of(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [101, 12_000, 20_000, 2**31 - 1])
def test_too_many_pixels_are_refused_by_the_header(side: int) -> None:
    """The larger ones pass Pillow's own limits, at which it warns or gives up."""
    with pytest.raises(UploadRefused, match="more than 10000 pixels"):
        read(png_of(side, side, b""))


@pytest.mark.parametrize("size", [(1, 2**17 + 1), (2**25, 1)])
def test_a_side_that_is_too_long_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UploadRefused, match="a side of more than 131072 pixels"):
        read_input_image(png_of(*size, b""), max_pixels=2**25)


def test_a_jpeg_with_too_many_scans_is_refused_before_it_is_decoded() -> None:
    jpeg = encoded(picture(), "JPEG", progressive=True)
    last = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    scans = jpeg.count(b"\xff\xda")
    most = jpeg[:-2] + last * (500 - scans)
    assert read(most + jpeg[-2:]).size == (6, 4)
    with pytest.raises(UploadRefused, match="more than 500 scans"):
        read(most + last + jpeg[-2:])


def test_the_largest_picture_is_taken() -> None:
    assert read(png_of(100, 100, bytes(100 * 14))).size == (100, 100)


@given(st.data(), st.sampled_from(KINDS))
def test_damage_is_refused_or_repaired_but_never_raises_anything_else(
    data: st.DataObject, kind: str
) -> None:
    whole = bytearray(encoded(picture(size=(24, 24)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UploadRefused):
        read(bytes(whole))
