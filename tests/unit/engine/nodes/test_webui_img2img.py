"""The WebUI's img2img: how pictures are brought to a size, and its nodes, on plain tensors."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from engine.diffusion.images.img2img import Region, levels_of, region_of, resized
from engine.diffusion.images.latents import Latent
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise_sources import cpu_randn
from engine.diffusion.samplers.philox import Philox
from tests.support.engine.bodies import outputs_of

NO_TRANSPARENCY = torch.zeros(1, 64, 64)


def picture(height: int = 20, width: int = 30) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(1, height, width, 3, generator=generator) * 255).round() / 255


def square(height: int = 20, width: int = 30, *, at: int = 8, side: int = 4) -> Tensor:
    mask = torch.zeros(1, height, width)
    mask[:, at : at + side, at : at + side] = 1
    return mask


def started(image: Tensor, transparency: Tensor = NO_TRANSPARENCY, **inputs: Any) -> Tensor:
    sized = {"width": 0, "height": 0, "resize_mode": "just resize"} | inputs
    return outputs_of("WebUIInitImage", image=image, transparency=transparency, **sized)[0]


def test_what_is_transparent_is_white() -> None:
    found = started(picture(), square())
    assert (found[0, 8:12, 8:12] == 1).all()
    assert torch.equal(found[0, :8], picture()[0, :8])


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("just resize", (64, 16)),
        ("crop and resize", (64, 16)),
        ("crop and resize", (16, 64)),
        ("resize and fill", (64, 16)),
        ("resize and fill", (17, 63)),
    ],
)
def test_every_way_gives_the_size(mode: str, size: tuple[int, int]) -> None:
    width, height = size
    found = started(picture(), width=width, height=height, resize_mode=mode)
    assert found.shape == (1, height, width, 3)
    assert found.min() >= 0
    assert found.max() <= 1


def test_what_is_missing_has_the_colours_of_the_border() -> None:
    found = started(picture(16, 16), width=48, height=16, resize_mode="resize and fill")
    assert torch.equal(found[:, :, 16:32], picture(16, 16))
    assert torch.equal(found[:, :, :16], picture(16, 16)[:, :, :1].expand(-1, -1, 16, -1))


def test_what_is_too_much_is_cut_off_evenly() -> None:
    found = started(picture(16, 48), width=16, height=16, resize_mode="crop and resize")
    assert torch.equal(found, picture(16, 48)[:, :, 16:32])


def painted(image: Tensor, transparency: Tensor = NO_TRANSPARENCY, **inputs: Any) -> Tensor:
    blurs = {"invert": False, "blur_x": 0, "blur_y": 0} | inputs
    return outputs_of("WebUIMask", image=image, transparency=transparency, **blurs)[0]


def test_a_mask_is_what_is_white_or_opaque() -> None:
    white = square()[..., None].expand(-1, -1, -1, 3)
    assert torch.equal(painted(white), square())
    assert torch.equal(painted(white, invert=True), 1 - square())
    assert torch.equal(painted(picture(), 1 - square()), square())


def test_a_mask_is_blurred_by_its_deviation() -> None:
    line = torch.zeros(1, 1, 101, 3)
    line[:, :, 50] = 1
    found = painted(line, blur_x=4).numpy()[0, 0]
    expected = np.exp(-0.5 * (np.arange(101) - 50.0) ** 2 / 16) / (4 * np.sqrt(2 * np.pi))
    assert np.abs(found - expected).max() < 1 / 255
    assert (found[:40] == 0).all()
    assert torch.equal(painted(line, blur_y=4)[0, 0], line[0, 0, :, 0])


def area(image: Tensor, mask: Tensor, **inputs: Any) -> Any:
    given = {"width": 16, "height": 16, "resize_mode": "just resize", "padding": 0}
    return outputs_of(
        "WebUIInpaintArea", image=image, mask=mask, **given | {"only_masked": True} | inputs
    )


def test_the_area_is_what_is_around_the_mask() -> None:
    pixels, mask = area(picture(), square(), padding=2, width=8, height=8)
    assert torch.equal(pixels, picture()[:, 6:14, 6:14])
    assert torch.equal(mask, square()[:, 6:14, 6:14])


@pytest.mark.parametrize("size", [(32, 8), (8, 32), (16, 16)])
def test_the_area_has_the_proportions_of_the_request(size: tuple[int, int]) -> None:
    width, height = size
    for mask in (square(), square(at=0, side=2), square(at=16, side=4), 1 - square()):
        pixels, found = area(picture(), mask, width=width, height=height)
        assert pixels.shape == (1, height, width, 3)
        assert found.shape == (1, height, width)
        assert found.max() > 0


def test_a_blank_mask_or_one_of_another_size_gives_an_area() -> None:
    pixels, mask = area(picture(), torch.zeros(1, 20, 30))
    assert (mask == 1).all()
    assert pixels.shape == (1, 16, 16, 3)
    _, other = area(picture(), square(40, 60, at=16, side=8), width=8, height=8)
    assert other.mean() > 0.4  # of 6 x 6 pixels, of which the mask covers 4 x 4


def test_what_is_made_is_pasted_where_the_mask_is() -> None:
    mask, original = square(), picture()
    pixels, _ = area(original, mask, padding=2, width=8, height=8)
    made = torch.ones_like(pixels)
    inputs = {"original": original, "mask": mask, "only_masked": True, "padding": 2}
    (found,) = outputs_of("WebUIPaste", image=made, **inputs)
    assert (found[mask > 0] == 1).all()
    assert torch.equal(found[mask == 0], original[mask == 0])


def test_a_whole_picture_is_made_where_its_mask_is_half_or_more() -> None:
    original = picture(16, 16)
    mask = torch.full((1, 16, 16), 0.5)
    mask[:, :8] = 0
    inputs = {"original": original, "mask": mask, "only_masked": False, "padding": 0}
    (found,) = outputs_of("WebUIPaste", image=torch.zeros(1, 16, 16, 3), **inputs)
    assert torch.equal(found[:, :8], original[:, :8])
    assert found[:, 8:].max() < 2 / 255


def test_a_fill_has_the_colours_around_it() -> None:
    image = torch.zeros(1, 40, 40, 3)
    image[..., 0] = 1
    image[:, 18:22, 18:22] = torch.tensor([0.0, 0.0, 1.0])
    (found,) = outputs_of("WebUIFill", image=image, mask=square(40, 40, at=18, side=4))
    red = torch.zeros(1, 40, 40, 3)
    red[..., 0] = 1
    assert (found - red).abs().max() < 8 / 255


@pytest.mark.parametrize(
    ("content", "more"),
    [
        ("original", {}),
        ("latent noise", {}),
        ("latent noise", {"randn_source": "NV"}),
        ("latent nothing", {}),
    ],
)
def test_a_latent_starts_from_what_was_asked_for(content: str, more: dict[str, Any]) -> None:
    before = Latent(torch.full((1, 4, 2, 2), 3.0))
    mask = torch.zeros(1, 16, 16)
    mask[:, :, 8:] = 1
    scaled = {"latent_scale": 0.5, "device": torch.device("cpu")}
    model = cast("Model", type("Scaled", (), scaled)())
    inputs = {"model": model, "samples": before, "mask": mask, "content": content, "seed": 7}
    (found,) = outputs_of("WebUILatentMask", **inputs | more)
    assert (found.samples[..., 0] == 3).all()
    assert found.noise_mask.tolist() == [[[0, 1], [0, 1]]]
    noise = (Philox(7).randn if more else cpu_randn(7))((1, 4, 2, 2)) / 0.5
    expected = {
        "original": before.samples,
        "latent noise": noise,
        "latent nothing": torch.zeros_like(noise),
    }[content]
    assert torch.equal(found.samples[..., 1], expected[..., 1])


NOISE = np.random.default_rng(1).random((1, 48, 80, 3), np.float32)


@pytest.mark.parametrize("size", [(64, 64), (33, 96), (160, 40), (80, 24), (17, 48)])
def test_what_is_cut_off_leaves_the_rest_as_it_is(size: tuple[int, int]) -> None:
    width, height = size
    [found] = levels_of(resized(torch.from_numpy(NOISE), width, height, mode="crop and resize"))
    [levels] = levels_of(torch.from_numpy(NOISE))
    scale = max(width / 80, height / 48)
    whole = (width, 48 * width // 80) if width / 80 == scale else (80 * height // 48, height)
    scaled = np.asarray(Image.fromarray(levels).resize(whole, Image.Resampling.LANCZOS))
    left, top = whole[0] // 2 - width // 2, whole[1] // 2 - height // 2
    assert np.array_equal(found, scaled[top : top + height, left : left + width])


@pytest.mark.parametrize("shape", [(1, 16_384, 3), (16_384, 1, 3)])
def test_a_long_thin_picture_is_never_as_large_as_its_sides(shape: tuple[int, int, int]) -> None:
    """All of it would be 12 GiB."""
    ramp = torch.linspace(0, 1, 16_384).repeat_interleave(3).reshape(1, *shape)
    found = resized(ramp, 512, 512, mode="crop and resize")
    assert found.shape == (1, 512, 512, 3)
    assert torch.allclose(found, torch.tensor(0.5), atol=0.01)


def test_the_region_is_what_the_mask_covers_in_the_proportions_of_the_size() -> None:
    mask = torch.zeros(2, 40, 60)
    mask[0, 10:14, 20:28] = 0.5
    mask[1, 12:18, 24:26] = 1
    assert region_of(mask, 64, 64, padding=0) == Region(20, 10, 28, 18)
