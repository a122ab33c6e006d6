"""Nodes that make, filter, cut, turn and join images and masks, on plain tensors."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from engine.errors import EngineError, TooLarge
from engine.graph.limits import Limits
from tests.support.engine.bodies import output_of, outputs_of

EDGES = ("left", "top", "right", "bottom")
SMALL = Limits(max_pixels=64 * 64, max_batch=2)


def images(count: int = 1, height: int = 12, width: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, height, width, 3, generator=generator)


def row(*levels: float) -> Tensor:
    """One image of one row."""
    return torch.tensor(levels, dtype=torch.float32)[None, None, :, None].expand(1, 1, -1, 3)


def levels(image: Tensor) -> list[float]:
    """The first row of the first image."""
    return [round(float(each), 4) for each in image[0, 0, :, 0]]


def scale(image: Tensor, width: int, height: int, **options: Any) -> Any:
    inputs: dict[str, Any] = {"upscale_method": "bilinear", "crop": "disabled"} | options
    return output_of("ImageScale", image=image, width=width, height=height, **inputs)


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


@pytest.mark.parametrize("method", ["area", "lanczos"])
@pytest.mark.parametrize(("width", "height"), [(1, 4000), (4000, 1)])
def test_a_crop_to_extreme_proportions_keeps_the_nearest_pixels(
    method: str, width: int, height: int
) -> None:
    scaled = scale(images(1, 2, 2) + 0.5, width, height, upscale_method=method, crop="center")
    assert scaled.shape == (1, height, width, 3)
    assert bool((scaled > 0).all())


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
    ("edges", "feathering"),
    [((8, 0, 0, 0), 4), ((0, 16, 8, 8), 5), ((8, 8, 8, 8), 12), ((8, 8, 8, 8), 0)],
)
def test_a_frame_is_grey_and_its_mask_soft_inside(edges: tuple[int, ...], feathering: int) -> None:
    image, padding = images(2, 24, 20), dict(zip(EDGES, edges, strict=True))
    framed, mask = outputs_of("ImagePadForOutpaint", image=image, **padding, feathering=feathering)
    left, top, right, bottom = edges
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
        ("ImagePadForOutpaint", dict.fromkeys(EDGES, 32) | {"feathering": 1}),
    ],
)
def test_images_that_become_too_large_are_refused(class_type: str, inputs: dict[str, Any]) -> None:
    with pytest.raises(TooLarge, match="at most 2 images and 4096 pixels"):
        outputs_of(class_type, limits=SMALL, image=images(1, 32, 32), **inputs)


def test_a_batch_that_would_be_too_large_is_refused() -> None:
    with pytest.raises(TooLarge, match="3 images"):
        outputs_of("ImageBatch", limits=SMALL, image1=images(2, 4, 4), image2=images(1, 4, 4))
    with pytest.raises(TooLarge, match="64 x 65"):
        outputs_of("EmptyImage", limits=SMALL, width=64, height=65, batch_size=1, color=0)
    with pytest.raises(TooLarge):
        outputs_of("RepeatImageBatch", limits=SMALL, image=images(), amount=3)
    with pytest.raises(TooLarge):
        outputs_of("SolidMask", limits=SMALL, value=1.0, width=128, height=128)


def test_a_blur_is_the_mean_by_a_gauss_function() -> None:
    given, radius, sigma = images(2), 3, 0.7
    across = torch.linspace(-1, 1, 2 * radius + 1)
    kernel = (-(across[:, None] ** 2 + across**2) / (2 * sigma**2)).exp()
    kernel = (kernel / kernel.sum()).expand(3, 1, -1, -1)
    framed = functional.pad(given.movedim(-1, 1), (radius,) * 4, mode="reflect")
    expected = functional.conv2d(framed, kernel, groups=3).movedim(1, -1)
    found = output_of("ImageBlur", image=given, blur_radius=radius, sigma=sigma)
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_blur_wider_than_the_image_is_an_error() -> None:
    with pytest.raises(EngineError, match="A radius of 12 is too large for 16 x 12 pixels"):
        output_of("ImageBlur", image=images(), blur_radius=12, sigma=1.0)


def test_sharpening_by_nothing_changes_nothing() -> None:
    given = images()
    found = output_of("ImageSharpen", image=given, sharpen_radius=31, sigma=1.0, alpha=0.0)
    assert torch.equal(found, given)


@pytest.mark.parametrize("dither", ["none", "floyd-steinberg"])
def test_quantized_images_have_few_colours(dither: str) -> None:
    found = output_of("ImageQuantize", image=images(2), colors=4, dither=dither)
    assert found.shape == (2, 12, 16, 3)
    assert all(len(each.reshape(-1, 3).unique(dim=0)) <= 4 for each in found)


def test_a_crop_that_would_lie_outside_keeps_a_pixel() -> None:
    given = images()
    found = output_of("ImageCrop", image=given, width=4, height=4, x=500, y=500)
    assert torch.equal(found, given[:, -1:, -1:])


def test_images_turn_clockwise() -> None:
    given = images()
    found = output_of("ImageRotate", image=given, rotation="90 degrees")
    assert torch.equal(found[0, 0, -1], given[0, 0, 0])
    assert torch.equal(output_of("ImageRotate", image=given, rotation="none"), given)


def test_images_of_a_batch_are_taken_as_far_as_there_are() -> None:
    given = images(3)
    found = output_of("ImageFromBatch", image=given, batch_index=2, length=9)
    assert torch.equal(found, given[2:])
    found = output_of("ImageFromBatch", image=given, batch_index=90, length=1)
    assert torch.equal(found, given[2:])


def test_the_size_is_said() -> None:
    assert outputs_of("GetImageSize", image=images(2)) == (16, 12, 2)


def test_sides_become_multiples() -> None:
    inputs = {"upscale_method": "area", "megapixels": 0.01, "resolution_steps": 8}
    found = output_of("ImageScaleToTotalPixels", image=images(), **inputs)
    assert found.shape == (1, 88, 120, 3)


def test_a_composite_leaves_what_it_is_given() -> None:
    below, above = images(2), images(1, 4, 4)
    before = below.clone()
    inputs = {"destination": below, "source": above, "x": 14, "y": 10, "resize_source": False}
    found = output_of("ImageCompositeMasked", **inputs)
    assert torch.equal(found[:, 10:, 14:], above[:, :2, :2].expand(2, -1, -1, -1))
    assert torch.equal(found[:, :10], before[:, :10])
    assert torch.equal(below, before)
    assert torch.equal(output_of("ImageCompositeMasked", **inputs | {"x": 999}), before)


def test_an_empty_mask_shows_nothing_of_the_source() -> None:
    below, above = images(), images(1, 4, 4)
    inputs = {"destination": below, "source": above, "x": 0, "y": 0, "resize_source": True}
    found = output_of("ImageCompositeMasked", **inputs, mask=torch.zeros(1, 8, 8))
    assert torch.equal(found, below)


def test_three_images_are_not_blended_with_two() -> None:
    inputs = {"image1": images(3), "image2": images(2), "blend_factor": 0.5}
    with pytest.raises(EngineError, match="3 images cannot be blended with 2"):
        output_of("ImageBlend", **inputs, blend_mode="normal")


@pytest.mark.parametrize("mode", ["normal", "multiply", "screen", "overlay", "soft_light"])
def test_a_blend_of_nothing_is_the_first(mode: str) -> None:
    given = images()
    inputs = {"image1": given, "image2": images(1, 5, 7), "blend_factor": 0.0}
    assert torch.allclose(output_of("ImageBlend", **inputs, blend_mode=mode), given)


@pytest.mark.parametrize(("side", "count"), [(2, 4), (4, 16), (16, 256)])
def test_a_threshold_map_has_each_level_once_and_is_even(side: int, count: int) -> None:
    from engine.diffusion.images.filters import _bayer

    found = _bayer(side)
    assert found.shape == (side, side)
    assert len(found.unique()) == count
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)


def canny_edges(images: Tensor, *, low: float, high: float) -> Tensor:
    found = output_of("Canny", image=images, low_threshold=low, high_threshold=high)
    return cast("Tensor", found[..., 0])


def test_a_square_has_a_thin_closed_edge() -> None:
    square = torch.zeros(1, 24, 32, 3)
    square[:, 8:16, 8:24] = 1.0
    (edges,) = canny_edges(square, low=0.2, high=0.6)
    assert set(edges.unique().tolist()) == {0.0, 1.0}
    assert 32 <= int(edges.sum()) <= 64
    assert not edges[11:13, 11:21].any()
    assert not edges[:5].any()
    assert edges[12, 6:10].any()


def test_a_plain_image_has_no_edges() -> None:
    assert not canny_edges(torch.full((2, 9, 9, 3), 0.5), low=0.01, high=0.02).any()


def test_a_weak_edge_counts_where_a_strong_one_goes_on_in_it() -> None:
    image = torch.zeros(1, 24, 40, 3)
    image[:, 12:] = torch.linspace(1.0, 0.3, 40)[:, None]
    (both,) = canny_edges(image, low=0.3, high=1.5)
    (strong,) = canny_edges(image, low=1.4, high=1.5)
    assert both[:, 36].any()
    assert strong[:, 4].any()
    assert not strong[:, 36].any()
    weak = image.clamp(max=0.4)
    assert not canny_edges(weak, low=0.3, high=1.5).any()


def test_a_tiny_image_has_no_edges_to_find() -> None:
    with pytest.raises(EngineError, match="2 x 9 pixels is too small"):
        canny_edges(torch.zeros(1, 9, 2, 3), low=0.1, high=0.2)


def mask(height: int = 9, width: int = 12, count: int = 2, seed: int = 1) -> Tensor:
    return torch.rand(count, height, width, generator=torch.Generator().manual_seed(seed))


def reached(given: Tensor, by: int, *, tapered: bool) -> Tensor:
    """The largest value within a square or a diamond of that radius, by its definition."""
    found = torch.zeros_like(given)
    _, height, width = given.shape
    for y, x in product(range(height), range(width)):
        near = [
            given[:, b, a]
            for b, a in product(range(height), range(width))
            if (abs(a - x) + abs(b - y) if tapered else max(abs(a - x), abs(b - y))) <= by
        ]
        found[:, y, x] = torch.stack(near).amax(0)
    return found


@pytest.mark.parametrize("tapered", [True, False])
@pytest.mark.parametrize("by", [0, 1, 2, 3, 5, 8, 11, 40, 16384])
def test_a_mask_grows_and_shrinks(by: int, tapered: bool) -> None:
    given = mask()
    (grown,) = outputs_of("GrowMask", mask=given, expand=by, tapered_corners=tapered)
    assert torch.equal(grown, reached(given, by, tapered=tapered))
    (shrunk,) = outputs_of("GrowMask", mask=given, expand=-by, tapered_corners=tapered)
    assert torch.allclose(shrunk, 1 - reached(1 - given, by, tapered=tapered))


def test_what_is_given_stays_as_it_is() -> None:
    given, other = mask(), mask(seed=2)
    before = given.clone()
    for operation in ("multiply", "add", "subtract", "and", "or", "xor"):
        inputs = {"destination": given, "source": other, "x": 3, "y": 1, "operation": operation}
        outputs_of("MaskComposite", **inputs)
    outputs_of("GrowMask", mask=given, expand=3, tapered_corners=True)
    outputs_of("FeatherMask", mask=given, left=3, top=3, right=3, bottom=3)
    assert torch.equal(given, before)


def test_a_mask_outside_of_another_changes_nothing() -> None:
    given = mask()
    inputs = {"destination": given, "source": mask(), "x": 500, "y": 0, "operation": "add"}
    assert torch.equal(outputs_of("MaskComposite", **inputs)[0], given)


def test_a_crop_outside_is_an_error() -> None:
    with pytest.raises(EngineError, match="is outside"):
        outputs_of("CropMask", mask=mask(), x=12, y=0, width=4, height=4)


def test_two_masks_do_not_go_over_three() -> None:
    three = mask(count=3)
    inputs = {"destination": three, "source": mask(), "x": 0, "y": 0, "operation": "add"}
    with pytest.raises(
        EngineError, match=r"2 masks can be combined with one mask or .*, but not with 3"
    ):
        outputs_of("MaskComposite", **inputs)


def test_a_colour_is_masked() -> None:
    images = torch.zeros(1, 2, 2, 3)
    images[0, 0, 1] = torch.tensor([1.0, 128 / 255, 0.0])
    (found,) = outputs_of("ImageColorToMask", image=images, color=0xFF8000)
    assert found.tolist() == [[[0.0, 1.0], [0.0, 0.0]]]


RESIZES = [
    ("scale dimensions", {"width": 20, "height": 9, "crop": "center"}, (20, 9)),
    ("scale dimensions", {"width": 20, "height": 0, "crop": "disabled"}, (20, 15)),
    ("scale dimensions", {"width": 0, "height": 0, "crop": "center"}, (16, 12)),
    ("scale by multiplier", {"multiplier": 1.37}, (22, 16)),
    ("scale by multiplier", {"multiplier": 0.01}, (1, 1)),
    ("scale longer dimension", {"longer_size": 23}, (23, 17)),
    ("scale longer dimension", {"longer_size": 1}, (1, 1)),
    ("scale shorter dimension", {"shorter_size": 23}, (31, 23)),
    ("scale width", {"width": 11}, (11, 8)),
    ("scale height", {"height": 11}, (15, 11)),
    ("scale total pixels", {"megapixels": 0.01, "multiple": 1}, (118, 89)),
    ("scale total pixels", {"megapixels": 0.01, "multiple": 16}, (112, 96)),
    ("match size", {"match": torch.zeros(3, 10, 33, 3), "crop": "center"}, (33, 10)),
    ("match size", {"match": torch.zeros(1, 5, 4), "crop": "disabled"}, (4, 5)),
    ("scale to multiple", {"multiple": 5}, (15, 10)),
    ("scale to multiple", {"multiple": 4}, (16, 12)),
    ("scale to multiple", {"multiple": 13}, (16, 12)),
]
"""The ways to resize 16 x 12 pixels, their parts, and the width and height of the result."""


def resized(given: Tensor, resize_type: str, method: str = "area", **parts: Any) -> Tensor:
    inputs = {f"resize_type.{name}": value for name, value in parts.items()}
    found: Tensor = output_of(
        "ResizeImageMaskNode", input=given, resize_type=resize_type, scale_method=method, **inputs
    )
    return found


@pytest.mark.parametrize(("resize_type", "parts", "sides"), RESIZES)
@pytest.mark.parametrize("method", ["nearest-exact", "lanczos"])
def test_images_and_masks_are_resized_alike(
    resize_type: str, parts: dict[str, Any], sides: tuple[int, int], *, method: str
) -> None:
    grey = images(2)[..., :1].expand(-1, -1, -1, 3)
    image = resized(grey, resize_type, method, **parts)
    mask = resized(grey[..., 0], resize_type, method, **parts)
    assert image.shape == (2, sides[1], sides[0], 3)
    assert torch.equal(mask, image[..., 0])


def test_what_is_left_over_of_a_multiple_is_cut_off_evenly() -> None:
    given = torch.arange(20.0).expand(1, 8, -1)
    found = resized(given, "scale to multiple", "nearest-exact", multiple=8)
    assert found.shape == (1, 8, 16)
    assert found[0, 0].tolist() == list(range(2, 18))


@pytest.mark.parametrize("sides", [(16, 12), (12, 16), (9, 9)])
def test_the_longer_side_gets_the_size(sides: tuple[int, int]) -> None:
    inputs = {"upscale_method": "area", "largest_size": 8}
    found = output_of("ImageScaleToMaxDimension", image=images(1, sides[1], sides[0]), **inputs)
    assert max(found.shape[1:3]) == 8
    assert min(found.shape[1:3]) == round(min(sides) / max(sides) * 8)
    thin = output_of("ImageScaleToMaxDimension", image=images(1, 1, 100), **inputs)
    assert thin.shape == (1, 1, 8, 3)


def stitched(first: Tensor, second: Tensor | None, **options: Any) -> Tensor:
    inputs = {
        "direction": "right",
        "match_image_size": False,
        "spacing_width": 0,
        "spacing_color": "white",
    } | options
    more = {} if second is None else {"image2": second}
    found: Tensor = output_of("ImageStitch", image1=first, **more, **inputs)
    return found


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        ("right", [0.0, 0.0, 0.5]),
        ("left", [0.5, 0.0, 0.0]),
        ("down", [0.0, 0.0, 0.5]),
        ("up", [0.5, 0.0, 0.0]),
    ],
)
def test_the_second_image_is_joined_to_one_side(direction: str, expected: list[float]) -> None:
    shape = (1, 1, 2, 3) if direction in ("left", "right") else (1, 2, 1, 3)
    found = stitched(torch.zeros(shape), torch.full((1, 1, 1, 3), 0.5), direction=direction)
    assert found.reshape(-1, 3)[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("colour", "stripe", "frame"),
    [
        ("white", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ("black", [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ("red", [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ("blue", [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]),
    ],
)
def test_a_stripe_has_its_colour_and_a_smaller_image_a_frame(
    colour: str, stripe: list[float], frame: list[float]
) -> None:
    half = torch.full((1, 4, 2, 3), 0.5)
    found = stitched(half, half[:, :1], spacing_width=3, spacing_color=colour)
    assert found.shape == (1, 4, 8, 3)  # a stripe of an even width
    assert (found[0, :, 2:6] == torch.tensor(stripe)).all()
    assert (found[0, 1, 6:] == 0.5).all()
    for row in (0, 2, 3):
        assert (found[0, row, 6:] == torch.tensor(frame)).all()


def test_the_second_image_can_be_resized_to_the_joined_side() -> None:
    first, second = images(2, 12, 16), images(1, 20, 31)
    found = stitched(first, second, match_image_size=True)
    larger = output_of(
        "ImageScale", image=second, upscale_method="lanczos", width=18, height=12, crop="disabled"
    )
    assert torch.equal(found, torch.cat((first, larger.expand(2, -1, -1, -1)), dim=2))
    thin = stitched(first, images(1, 500, 1), match_image_size=True)
    assert thin.shape == (2, 12, 17, 3)


def test_of_a_smaller_batch_the_last_image_is_repeated() -> None:
    first, second = images(2, 4, 5), images(3, 4, 5)
    found = stitched(first, second)
    assert torch.equal(found[:, :, :5], first[[0, 1, 1]])
    assert torch.equal(found[:, :, 5:], second)
    assert torch.equal(stitched(first, None), first)


def test_compared_images_are_saved_in_two_equal_parts() -> None:
    one, three = row(0.1), torch.cat([row(0.2), row(0.3), row(0.4)])
    assert outputs_of("ImageCompare") == []
    for inputs, expected in (
        ({"image_a": three}, [51, 76, 102]),
        ({"image_a": one, "image_b": three}, [25, 25, 25, 51, 76, 102]),
    ):
        assert [int(each[0, 0, 0]) for each in outputs_of("ImageCompare", **inputs)] == expected


def test_a_mask_is_shown_as_grey_images() -> None:
    first, second = outputs_of("MaskPreview", mask=torch.tensor([[[0.0, 1.0]], [[0.5, 0.25]]]))
    assert first.tolist() == [[[0, 0, 0], [255, 255, 255]]]
    assert second[0, :, 1].tolist() == [127, 63]


@pytest.mark.parametrize(
    ("class_type", "inputs"),
    [
        ("ImageScaleToMaxDimension", {"upscale_method": "area", "largest_size": 65}),
        (
            "ResizeImageMaskNode",
            {
                "resize_type": "scale by multiplier",
                "scale_method": "area",
                "resize_type.multiplier": 2.1,
            },
        ),
        (
            "ImageStitch",
            {
                "direction": "up",
                "match_image_size": True,
                "spacing_width": 2,
                "spacing_color": "red",
            },
        ),
    ],
)
def test_results_that_are_too_large_are_refused(class_type: str, inputs: dict[str, Any]) -> None:
    given = images(1, 64, 32)
    if class_type == "ImageStitch":
        inputs = inputs | {"image1": given, "image2": given}
    elif class_type == "ResizeImageMaskNode":
        inputs = inputs | {"input": given}
    else:
        inputs = inputs | {"image": images(1, 64, 64)}
    with pytest.raises(TooLarge, match="at most 2 images and 4096 pixels"):
        outputs_of(class_type, limits=SMALL, **inputs)


def clear(count: int = 1, height: int = 12, width: int = 16) -> Tensor:
    """Images with an opacity."""
    opacity = images(count, height, width)[..., 1:2]
    return torch.cat((images(count, height, width), opacity), dim=-1)


def test_an_image_and_its_opacity_are_joined_and_split() -> None:
    image, mask = images(2, 4, 6), images(2, 4, 6)[..., 0]
    joined = output_of("JoinImageWithAlpha", image=image, alpha=mask)
    assert torch.equal(joined, torch.cat((image, 1.0 - mask[..., None]), dim=-1))
    assert torch.equal(output_of("JoinImageWithAlpha", image=joined, alpha=mask), joined)
    colours, found = outputs_of("SplitImageWithAlpha", image=joined)
    assert torch.equal(colours, image)
    assert torch.allclose(found, mask)
    colours, found = outputs_of("SplitImageWithAlpha", image=image)
    assert torch.equal(colours, image)
    assert torch.equal(found, torch.zeros_like(mask))


def test_masks_for_an_opacity_are_resized_and_the_smaller_batch_is_repeated() -> None:
    image, masks = images(2, 4, 8), torch.tensor([[[0.0, 1.0]], [[0.5, 0.5]], [[1.0, 1.0]]])
    joined = output_of("JoinImageWithAlpha", image=image, alpha=masks)
    assert torch.equal(joined[..., :3], image[[0, 1, 0]])
    assert joined[0, 0, :, 3].tolist() == [1.0, 1.0, 0.875, 0.625, 0.375, 0.125, 0.0, 0.0]
    assert (joined[1, ..., 3] == 0.5).all()
    with pytest.raises(TooLarge, match="3 images"):
        outputs_of("JoinImageWithAlpha", limits=SMALL, image=image, alpha=masks)


def test_an_opacity_is_saved() -> None:
    (pixels,) = outputs_of("PreviewImage", images=torch.full((1, 2, 3, 4), 0.5))
    assert pixels.shape == (2, 3, 4)
    assert (pixels == 127).all()


def test_the_opacity_is_a_channel_of_a_mask() -> None:
    given = clear()
    assert torch.equal(output_of("ImageToMask", image=given, channel="alpha"), given[..., 3])


def test_filters_of_colours_keep_the_opacity() -> None:
    given = clear()
    inverted = output_of("ImageInvert", image=given)
    assert torch.equal(inverted[..., :3], 1 - given[..., :3])
    quantized = output_of("ImageQuantize", image=given, colors=4, dither="none")
    plain = output_of("ImageQuantize", image=given[..., :3], colors=4, dither="none")
    assert torch.equal(quantized[..., :3], plain)
    mixed = {"image2": images(), "blend_factor": 0.5, "blend_mode": "multiply"}
    blended = output_of("ImageBlend", image1=given, **mixed)
    for found in (inverted, quantized, blended):
        assert torch.equal(found[..., 3], given[..., 3])
    edges = {"low_threshold": 0.1, "high_threshold": 0.3}
    found = output_of("Canny", image=given, **edges)
    assert torch.equal(found, output_of("Canny", image=given[..., :3], **edges))


def test_images_with_and_without_an_opacity_are_combined() -> None:
    plain, given = images(1, 4, 5), clear(1, 4, 5)
    opaque = torch.cat((plain, torch.ones(1, 4, 5, 1)), dim=-1)
    for first, second in ((plain, given), (given, plain)):
        joined = output_of("ImageBatch", image1=first, image2=second)
        expected = [opaque if each is plain else given for each in (first, second)]
        assert torch.equal(joined, torch.cat(expected))
        assert torch.equal(stitched(first, second), torch.cat(expected, dim=2))
    pasting = {"x": 0, "y": 0, "resize_source": False}
    for below, above, expected in ((plain, given, given[..., :3]), (given, plain, opaque)):
        found = output_of("ImageCompositeMasked", destination=below, source=above, **pasting)
        assert torch.equal(found, expected)
    assert output_of(
        "ImageBlend", image1=plain, image2=given, blend_factor=1.0, blend_mode="normal"
    ).equal(given[..., :3])


def test_a_frame_around_a_clear_image_is_as_clear_as_its_level() -> None:
    found = stitched(clear(1, 4, 2), images(1, 2, 2), spacing_width=2, spacing_color="black")
    assert found.shape == (1, 4, 6, 4)
    assert (found[0, :, 2:4] == torch.tensor([0.0, 0.0, 0.0, 1.0])).all()
    assert (found[0, 0, 4:] == torch.tensor([0.0, 0.0, 0.0, 1.0])).all()
    turned = stitched(images(1, 4, 2), clear(1, 2, 2), spacing_color="black")
    assert (turned[0, 0, 2:] == 0.0).all()


@pytest.mark.parametrize(
    ("target", "inside"),
    [((32, 20), (3, 0, 26, 20)), ((9, 50), (0, 22, 9, 6)), ((8, 6), (0, 0, 8, 6))],
)
def test_images_are_fitted_into_a_size(
    target: tuple[int, int], inside: tuple[int, int, int, int]
) -> None:
    inputs = {"padding_color": "white", "interpolation": "nearest-exact"}
    found = output_of(
        "ResizeAndPadImage",
        image=torch.zeros(2, 12, 16, 3),
        target_width=target[0],
        target_height=target[1],
        **inputs,
    )
    left, top, width, height = inside
    expected = torch.ones(2, target[1], target[0], 3)
    expected[:, top : top + height, left : left + width] = 0
    assert torch.equal(found, expected)
    with pytest.raises(TooLarge):
        outputs_of(
            "ResizeAndPadImage",
            limits=SMALL,
            image=images(1, 1, 1),
            target_width=65,
            target_height=64,
            **inputs,
        )


def test_many_batches_are_joined_by_number() -> None:
    first, second, tenth = images(1, 4, 4), images(1, 8, 8), images(2, 4, 4)
    found = output_of(
        "BatchImagesNode",
        **{"images.image10": tenth, "images.image2": second, "images.image0": first},
    )
    small = output_of(
        "ImageScale", image=second, upscale_method="bilinear", width=4, height=4, crop="center"
    )
    assert torch.equal(found, torch.cat((first, small, tenth)))
    with pytest.raises(TooLarge, match="3 images"):
        outputs_of(
            "BatchImagesNode", limits=SMALL, **{"images.image0": first, "images.image1": tenth}
        )
