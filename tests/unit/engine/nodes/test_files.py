"""Images, masks and latents that come with a job as files."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from actors.worker.result_file import encode_result
from engine.diffusion.images.latents import Latent
from engine.errors import InputFileUnavailable, TooLarge
from engine.graph.limits import Limits
from engine.reports import LatentReady
from tests.support.engine.bodies import outputs_of

COLOURS = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3
ALPHA = np.linspace(0, 255, 24).astype(np.uint8).reshape(4, 6, 1)
BOTH = Image.fromarray(np.concatenate([COLOURS, ALPHA], -1))


def file(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def load(content: bytes, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    image, mask = outputs_of("LoadImage", image="x", files={"x": content}, **options)
    return image, mask


def load_mask(content: bytes, channel: str, **options: Any) -> torch.Tensor:
    inputs = {"image": "x", "channel": channel}
    (mask,) = outputs_of("LoadImageMask", files={"x": content}, **inputs, **options)
    found: torch.Tensor = mask
    return found


def of(levels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(levels.astype(np.float32) / 255.0)


def test_colours_are_loaded_without_a_mask() -> None:
    image, mask = load(file(Image.fromarray(COLOURS)))
    assert torch.equal(image, of(COLOURS)[None])
    assert torch.equal(mask, torch.zeros(1, 64, 64))


def test_what_is_transparent_is_masked() -> None:
    image, mask = load(file(BOTH))
    assert torch.equal(image, of(COLOURS)[None])
    assert torch.equal(mask, 1 - of(ALPHA)[None, ..., 0])


def test_what_is_sent_in_the_graph_is_loaded_like_an_upload() -> None:
    both = file(BOTH)
    image, mask = outputs_of("ETN_LoadImageBase64", image="x", files={"x": both})
    assert torch.equal(image, load(both)[0])
    assert torch.equal(mask, load(both)[1])
    (red,) = outputs_of("ETN_LoadMaskBase64", mask="x", files={"x": both})
    assert torch.equal(red, load_mask(both, "red"))


def test_a_palette_may_be_transparent() -> None:
    palette = Image.fromarray(COLOURS).quantize(4)
    transparent = palette.getpixel((0, 0))
    _, mask = load(file(palette, transparency=transparent))
    expected = np.asarray(palette) == transparent
    assert torch.equal(mask[0], torch.from_numpy(expected).float())


def test_grey_becomes_three_channels() -> None:
    image, _ = load(file(Image.fromarray(COLOURS[..., 0])))
    assert torch.equal(image, of(COLOURS[..., :1].repeat(3, -1))[None])


def test_16_bits_are_brought_to_8() -> None:
    levels = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    image, _ = load(file(Image.fromarray(levels)))
    assert (image[0, 0, :, 0] * 255).round().tolist() == [0, 1, 1, 128, 255]


def test_an_image_is_turned_as_its_camera_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees to the right
    turned = file(Image.fromarray(COLOURS), exif=exif)
    expected = of(np.rot90(COLOURS, -1).copy())
    assert torch.equal(load(turned)[0][0], expected)
    assert torch.equal(load_mask(turned, "green")[0], expected[..., 1])


@pytest.mark.parametrize(("channel", "index"), [("red", 0), ("green", 1), ("blue", 2)])
def test_a_channel_is_loaded_as_a_mask(channel: str, index: int) -> None:
    mask = load_mask(file(Image.fromarray(COLOURS)), channel)
    assert torch.equal(mask, of(COLOURS)[None, ..., index])


def test_an_alpha_channel_masks_what_is_transparent() -> None:
    assert torch.equal(load_mask(file(Image.fromarray(COLOURS)), "alpha"), torch.zeros(1, 4, 6))
    assert torch.equal(load_mask(file(BOTH), "alpha"), 1 - of(ALPHA)[None, ..., 0])


Read = Callable[..., Any]
READS: list[Read] = [load, lambda content, **options: load_mask(content, "red", **options)]


@pytest.mark.parametrize("read", READS)
def test_a_file_that_is_no_image_or_damaged_is_refused(read: Read) -> None:
    whole = file(Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)))
    for content, reason in ((b"", "not a PNG"), (b"<svg/>", "not a PNG"), (whole[:999], "damaged")):
        with pytest.raises(InputFileUnavailable, match=reason):
            read(content)


@pytest.mark.parametrize("kind", ["BMP", "EPS", "GIF", "JPEG", "PPM", "TIFF", "WEBP"])
def test_no_other_kind_of_image_is_decoded(kind: str) -> None:
    """Uploads are stored as PNG, so nothing else comes with a job."""
    content = file(Image.new("RGB", (8, 8)), kind)
    for read in READS:
        with pytest.raises(InputFileUnavailable, match="not a PNG"):
            read(content)


@pytest.mark.parametrize("read", READS)
def test_a_large_image_is_refused_by_its_header(read: Read) -> None:
    bomb = file(Image.new("L", (3000, 3000)))
    header_alone = bomb[: bomb.index(b"IDAT")]
    for content in (bomb, header_alone + b"IDAT"):
        with pytest.raises(TooLarge, match="3000 x 3000"):
            read(content, limits=Limits(max_pixels=3000 * 2999))


def load_latent(content: bytes, **options: Any) -> Any:
    (latent,) = outputs_of("LoadLatent", latent="x", files={"x": content}, **options)
    return latent


def test_a_saved_latent_is_loaded_again() -> None:
    samples = torch.randn(2, 4, 3, 5)
    latent = outputs_of("LatentFromBatch", samples=Latent(samples), batch_index=0, length=2)[0]
    (saved,) = outputs_of("SaveLatent", samples=latent, filename_prefix="x")
    content = encode_result(LatentReady(0, "9", saved.samples, 7), {"prompt": "{}"}).content
    assert torch.equal(load_latent(content).samples, samples)


def test_a_latent_of_the_first_format_is_rescaled() -> None:
    samples = torch.randn(1, 4, 3, 5)
    found = load_latent(save({"latent_tensor": samples.half()})).samples
    assert torch.allclose(found, samples.half().float() / 0.18215)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a latent"),
        (b"\xff" * 64, "not a latent"),
        (save({"other": torch.zeros(1)}), "has no latent_tensor"),
        (save({"latent_tensor": torch.zeros(1, 12, 8, 8)}), "must be .batch, 4 or 16"),
        (save({"latent_tensor": torch.zeros(0, 4, 8, 8)}), "must be"),
    ],
)
def test_what_is_no_latent_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(InputFileUnavailable, match=reason):
        load_latent(content)


def test_a_large_latent_is_refused() -> None:
    content = save({"latent_tensor": torch.zeros(1, 4, 9, 9)})
    with pytest.raises(TooLarge, match="72 x 72"):
        load_latent(content, limits=Limits(max_pixels=72 * 71))
