"""Encoding images to latents with the encoder of the tiny checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from engine.diffusion.images.vae import Encode, Vae, prepared_for_inpainting
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from tests.support.engine.bodies import outputs_of
from tests.support.engine.workflows import TINY, Watched, node, text_to_image

Submit = Callable[..., Watched]


@pytest.fixture(scope="module")
def vae(catalogue: Catalogue) -> Vae:
    store = ModelStore(catalogue.models, torch.device("cpu"), 2**30)
    return load_checkpoint(store, TINY).vae


def images(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(count, height, width, 3, generator=generator)


def modes(vae: Vae, pixels: torch.Tensor) -> torch.Tensor:
    """The modes of the distributions that the encoder gives, by diffusers."""
    with torch.inference_mode():
        moments = vae.autoencoder.encode(pixels.movedim(-1, 1) * 2 - 1).latent_dist
    mean: torch.Tensor = moments.mean
    return mean


def test_the_mode_of_each_image_is_taken(vae: Vae) -> None:
    pixels = images(2, 32, 48)
    (latent,) = outputs_of("VAEEncode", pixels=pixels, vae=vae)
    assert latent.samples.shape == (2, 4, 4, 6)
    assert torch.allclose(latent.samples, modes(vae, pixels), atol=1e-5)


@pytest.mark.parametrize(
    ("size", "kept"),
    [((40, 45), (slice(0, 40), slice(2, 42))), ((39, 33), (slice(3, 35), slice(0, 32)))],
)
def test_sides_that_are_no_multiple_of_8_are_cropped_evenly(
    size: tuple[int, int], kept: tuple[slice, slice], vae: Vae
) -> None:
    pixels = images(1, *size)
    (latent,) = outputs_of("VAEEncode", pixels=pixels, vae=vae)
    (expected,) = outputs_of("VAEEncode", pixels=pixels[:, kept[0], kept[1]], vae=vae)
    assert torch.equal(latent.samples, expected.samples)


def inpaint(vae: Vae, pixels: torch.Tensor, mask: torch.Tensor, grow_by: int) -> Any:
    inputs = {"pixels": pixels, "vae": vae, "mask": mask, "grow_mask_by": grow_by}
    return outputs_of("VAEEncodeForInpaint", **inputs)[0]


@pytest.mark.parametrize(
    ("grow_by", "rows", "columns"),
    [
        (0, (8, 16), (16, 24)),
        (1, (8, 16), (16, 24)),
        (6, (6, 19), (14, 27)),
        (3, (7, 17), (15, 25)),
    ],
)
def test_what_is_masked_is_grey_and_its_mask_grows(
    grow_by: int, rows: tuple[int, int], columns: tuple[int, int], vae: Vae
) -> None:
    pixels, mask = images(1, 32, 48), torch.zeros(1, 32, 48)
    mask[:, 8:16, 16:24] = 1
    latent = inpaint(vae, pixels, mask, grow_by)
    grey = pixels.clone()
    grey[:, 8:16, 16:24] = 0.5
    assert torch.allclose(latent.samples, modes(vae, grey), atol=1e-5)
    expected = torch.zeros(1, 32, 48)
    expected[:, rows[0] : rows[1], columns[0] : columns[1]] = 1
    assert torch.equal(latent.noise_mask, expected)


@pytest.mark.parametrize("by", [0, 1, 2, 3, 6, 33, 64])
def test_a_mask_grows_as_by_a_convolution_with_ones(by: int) -> None:
    mask = (torch.rand(2, 40, 56, generator=torch.Generator().manual_seed(by)) > 0.97).float()
    _, grown = prepared_for_inpainting(images(2, 40, 56), mask, by)
    if by == 0:
        assert torch.equal(grown, mask)
        return
    ones = torch.ones(1, 1, by, by)
    touched = torch.nn.functional.conv2d(mask[:, None], ones, padding=-(-(by - 1) // 2))
    assert torch.equal(grown, touched[:, 0, :40, :56].clamp(0, 1))


def test_a_large_mask_grows_in_a_time_that_does_not_hold_the_others_up() -> None:
    """A convolution would take a quarter of an hour."""
    mask = torch.ones(1, 4096, 4096)
    _, grown = prepared_for_inpainting(torch.zeros(1, 4096, 4096, 3), mask, 64)
    assert grown.shape == mask.shape


def test_a_mask_of_another_size_is_brought_to_the_images(vae: Vae) -> None:
    mask = torch.zeros(64, 64)
    mask[:, 32:] = 0.6
    latent = inpaint(vae, images(2, 36, 48), mask, 0)
    assert latent.samples.shape == (2, 4, 4, 6)
    expected = torch.zeros(1, 32, 48)
    expected[..., 24:] = 1
    assert torch.equal(latent.noise_mask, expected)


def test_what_cannot_be_encoded_is_refused_with_its_reason(vae: Vae) -> None:
    with pytest.raises(EngineError, match="less than 8 pixels"):
        outputs_of("VAEEncode", pixels=images(1, 64, 7), vae=vae)
    with pytest.raises(EngineError, match="3 masks are too many or too few for 2 images"):
        inpaint(vae, images(2, 16, 16), torch.zeros(3, 16, 16), 6)


def test_images_of_one_size_share_a_call_and_large_ones_count_for_more(vae: Vae) -> None:
    small, wide = images(3, 32, 32), images(1, 256, 512)
    requests = [Encode(vae, image) for image in small.split(1)]
    assert len({request.key for request in requests}) == 1
    assert requests[0].key != Encode(vae, wide).key
    assert (requests[0].rows, Encode(vae, wide).rows) == (1, 16)
    with torch.inference_mode():
        together = Encode.run_batch(requests)
    alone = outputs_of("VAEEncode", pixels=small, vae=vae)[0].samples
    assert torch.allclose(torch.cat(list(together)), alone, atol=1e-5)


def test_a_workflow_from_image_to_image_keeps_its_seed_and_saves_a_latent(submit: Submit) -> None:
    content = io.BytesIO()
    Image.fromarray(np.full((40, 64, 3), 200, np.uint8)).save(content, "PNG")
    prompt = text_to_image(latent_image=["21", 0], denoise=0.5) | {
        "20": node("LoadImage", image="x.png"),
        "21": node("VAEEncode", pixels=["20", 0], vae=["4", 2]),
        "22": node("PreviewImage", images=["20", 0]),
        "14": node("SaveLatent", samples=["3", 0], filename_prefix="x"),
    }
    watched = submit(prompt, input_files={"x.png": content.getvalue()})
    end = watched.wait()
    results = {each.node_id: each for each in watched.events if hasattr(each, "node_id")}
    assert (type(end).__name__, end.images) == ("Finished", 3)
    assert [results[name].index for name in ("9", "22", "14")] == [0, 1, 2]
    assert results["9"].pixels.shape == (40, 64, 3)
    assert (results["22"].pixels == 200).all()
    assert (results["14"].samples.shape, results["14"].seed) == ((1, 4, 5, 8), 1)


def test_a_workflow_fixes_its_picture_up_in_a_second_pass(submit: Submit) -> None:
    second = text_to_image(latent_image=["15", 0], seed=2, denoise=0.6)["3"]
    upscale = {"upscale_method": "bislerp", "width": 96, "height": 0, "crop": "disabled"}
    prompt = text_to_image() | {
        "15": node("LatentUpscale", samples=["3", 0], **upscale),
        "16": second,
        "8": node("VAEDecode", samples=["16", 0], vae=["4", 2]),
    }
    (image,) = submit(prompt).images()
    assert (image.pixels.shape, image.seed) == ((96, 96, 3), 2)


def test_an_upscale_chain_ends_with_a_message_that_says_what_is_too_large(submit: Submit) -> None:
    prompt: dict[str, Any] = {"0": node("EmptyImage", width=64, height=64, batch_size=1, color=0)}
    for number in range(1, 9):
        inputs = {"upscale_method": "nearest-exact", "scale_by": 8.0}
        prompt[str(number)] = node("ImageScaleBy", image=[str(number - 1), 0], **inputs)
    prompt["save"] = node("PreviewImage", images=["8", 0])
    end = submit(prompt, limits=Limits(max_cost=0, max_live_bytes=0)).wait()
    assert "node 3 (ImageScaleBy): the job holds" in str(end.error)
