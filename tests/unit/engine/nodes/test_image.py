"""Nodes that make images and masks of others, on plain tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engine.errors import EngineError, TooLarge
from engine.graph.limits import Limits
from tests.support.engine.bodies import outputs_of

SMALL = Limits(max_pixels=64 * 64, max_batch=2)


def images(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, height, width, 3, generator=generator)


def row(*levels: float) -> torch.Tensor:
    """One image of one row."""
    return torch.tensor(levels, dtype=torch.float32)[None, None, :, None].expand(1, 1, -1, 3)


def levels(image: torch.Tensor) -> list[float]:
    """The first row of the first image."""
    return [round(float(each), 4) for each in image[0, 0, :, 0]]


def scale(image: torch.Tensor, width: int, height: int, **options: Any) -> Any:
    inputs: dict[str, Any] = {"upscale_method": "bilinear", "crop": "disabled"} | options
    (scaled,) = outputs_of("ImageScale", image=image, width=width, height=height, **inputs)
    return scaled


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((20, 30), (20, 30)),
        ((0, 0), (10, 7)),
        ((20, 0), (20, 14)),
        ((0, 5), (7, 5)),
        ((1, 0), (1, 1)),
    ],
)
@pytest.mark.parametrize("method", ["nearest-exact", "bilinear", "area", "bicubic", "lanczos"])
def test_a_side_of_0_follows_from_the_other(
    asked: tuple[int, int], expected: tuple[int, int], method: str
) -> None:
    scaled = scale(images(2, 7, 10), *asked, upscale_method=method)
    assert scaled.shape == (2, expected[1], expected[0], 3)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("nearest-exact", [0.0, 0.0, 1.0, 1.0]),
        ("bilinear", [0.0, 0.25, 0.75, 1.0]),
        ("area", [0.0, 0.0, 1.0, 1.0]),
        ("bicubic", [-0.1055, 0.2266, 0.7734, 1.1055]),
    ],
)
def test_each_method_fills_in_its_own_way(method: str, expected: list[float]) -> None:
    assert levels(scale(row(0, 1), 4, 1, upscale_method=method)) == expected


def test_area_takes_the_mean_of_what_a_pixel_covers() -> None:
    assert levels(scale(row(0, 1, 0.25, 0.25), 2, 1, upscale_method="area")) == [0.5, 0.25]


def test_lanczos_is_pillows_on_8_bits() -> None:
    image = images(1, 9, 12)
    pixels = Image.fromarray((image[0].numpy() * 255).astype(np.uint8))
    expected = np.asarray(pixels.resize((5, 20), Image.Resampling.LANCZOS))
    found = scale(image, 5, 20, upscale_method="lanczos")[0].numpy() * 255
    assert np.array_equal(found.round().astype(np.uint8), expected)


@pytest.mark.parametrize(
    ("width", "height", "kept"),
    [(1, 1, [0.2, 0.3]), (2, 1, [0.1, 0.2, 0.3, 0.4]), (3, 2, [0.1, 0.2, 0.3, 0.4])],
)
def test_a_crop_keeps_the_middle(width: int, height: int, kept: list[float]) -> None:
    image = row(0.1, 0.2, 0.3, 0.4).repeat(1, 2, 1, 1)
    scaled = scale(image, width, height, upscale_method="area", crop="center")
    assert float(scaled.mean()) == pytest.approx(sum(kept) / len(kept))


@pytest.mark.parametrize(("factor", "size"), [(1.5, (10, 16)), (0.5, (4, 6)), (0.01, (1, 1))])
def test_a_factor_is_rounded_to_whole_pixels(factor: float, size: tuple[int, int]) -> None:
    inputs = {"upscale_method": "bilinear", "scale_by": factor}
    (scaled,) = outputs_of("ImageScaleBy", image=images(1, 7, 11), **inputs)
    assert scaled.shape[1:3] == size


def test_an_inverted_image_is_the_negative() -> None:
    (inverted,) = outputs_of("ImageInvert", image=row(0, 0.25, 1))
    assert levels(inverted) == [1.0, 0.75, 0.0]


def test_a_batch_has_the_size_of_its_first_image() -> None:
    first, second = images(2, 8, 8), images(1, 8, 16)
    (batch,) = outputs_of("ImageBatch", image1=first, image2=second)
    assert batch.shape == (3, 8, 8, 3)
    assert torch.equal(batch[:2], first)
    assert torch.equal(batch[2], second[0, :, 4:12])


def test_an_empty_image_has_the_colour() -> None:
    inputs = {"width": 3, "height": 2, "batch_size": 2, "color": 0xFF8000}
    (image,) = outputs_of("EmptyImage", **inputs)
    assert image.shape == (2, 2, 3, 3)
    assert image[1, 1, 2].tolist() == pytest.approx([1.0, 128 / 255, 0.0])


@pytest.mark.parametrize(
    "padding",
    [
        {"left": 8, "top": 0, "right": 0, "bottom": 0, "feathering": 4},
        {"left": 0, "top": 16, "right": 8, "bottom": 8, "feathering": 5},
        {"left": 8, "top": 8, "right": 8, "bottom": 8, "feathering": 12},
        {"left": 8, "top": 8, "right": 8, "bottom": 8, "feathering": 0},
    ],
)
def test_a_frame_is_grey_and_its_mask_soft_where_there_is_room(padding: dict[str, int]) -> None:
    image = images(2, 24, 20)
    framed, mask = outputs_of("ImagePadForOutpaint", image=image, **padding)
    left, top, right, bottom, feathering = padding.values()
    assert framed.shape == (2, 24 + top + bottom, 20 + left + right, 3)
    inside = (slice(None), slice(top, top + 24), slice(left, left + 20))
    assert torch.equal(framed[inside], image)
    assert float(framed.sum() - image.sum()) == pytest.approx(
        0.5 * (framed.numel() - image.numel()), rel=1e-4
    )
    expected = torch.ones(framed.shape[1:3])
    for y in range(24):
        for x in range(20):
            sides = [(left, x), (top, y), (right, 20 - x), (bottom, 24 - y)]
            near = min((distance for padded, distance in sides if padded), default=feathering)
            soft = 2 * feathering < 20 and near < feathering
            expected[top + y, left + x] = ((feathering - near) / feathering) ** 2 if soft else 0
    assert mask.shape == (1, *expected.shape)
    assert torch.allclose(mask[0], expected)


@pytest.mark.parametrize(("channel", "index"), [("red", 0), ("green", 1), ("blue", 2)])
def test_a_channel_becomes_a_mask_and_a_mask_a_grey_image(channel: str, index: int) -> None:
    image = images(2, 4, 5)
    (mask,) = outputs_of("ImageToMask", image=image, channel=channel)
    assert torch.equal(mask, image[..., index])
    (grey,) = outputs_of("MaskToImage", mask=mask)
    assert grey.shape == image.shape
    assert all(torch.equal(grey[..., c], mask) for c in range(3))


def test_a_channel_that_is_not_there_is_named() -> None:
    with pytest.raises(EngineError, match="no channel alpha"):
        outputs_of("ImageToMask", image=images(1, 4, 5), channel="alpha")


@pytest.mark.parametrize("class_type", ["SaveImage", "PreviewImage"])
def test_output_nodes_cut_to_8_bits(class_type: str) -> None:
    extra = {"filename_prefix": "x"} if class_type == "SaveImage" else {}
    (pixels,) = outputs_of(class_type, images=row(-1, 0.499, 0.999, 2), **extra)
    assert pixels[0, :, 0].tolist() == [0, 127, 254, 255]


@pytest.mark.parametrize(
    ("class_type", "inputs"),
    [
        ("ImageScale", {"width": 65, "height": 64, "upscale_method": "area", "crop": "center"}),
        ("ImageScale", {"width": 65, "height": 0, "upscale_method": "area", "crop": "disabled"}),
        ("ImageScaleBy", {"scale_by": 2.1, "upscale_method": "lanczos"}),
        (
            "ImagePadForOutpaint",
            dict.fromkeys(("left", "top", "right", "bottom"), 32) | {"feathering": 1},
        ),
    ],
)
def test_images_that_would_be_too_large_are_refused(
    class_type: str, inputs: dict[str, Any]
) -> None:
    with pytest.raises(TooLarge, match="at most 2 images and 4096 pixels"):
        outputs_of(class_type, limits=SMALL, image=images(1, 32, 32), **inputs)


def test_a_batch_that_would_be_too_large_is_refused() -> None:
    with pytest.raises(TooLarge, match="3 images"):
        outputs_of("ImageBatch", limits=SMALL, image1=images(2, 4, 4), image2=images(1, 4, 4))
    with pytest.raises(TooLarge, match="64 x 65"):
        outputs_of("EmptyImage", limits=SMALL, width=64, height=65, batch_size=1, color=0)
