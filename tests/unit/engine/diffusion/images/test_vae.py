"""Encoding and decoding images, in tiles where memory runs out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.images.latents import Latent
from engine.diffusion.images.vae import (
    Decode,
    Encode,
    Vae,
    decoded_within_memory,
    encoded_within_memory,
    prepared_for_inpainting,
)
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.errors import EngineError, OutOfMemory
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from tests.support.engine.bodies import outputs_of
from tests.support.engine.workflows import TINY, Submit, node, text_to_image, with_input
from tests.support.uploads import png_of
from training.tiny_transformers import VAE


@pytest.fixture(scope="module")
def vae(catalogue: Catalogue) -> Vae:
    store = ModelStore(catalogue.models, torch.device("cpu"), 2**30)
    return load_checkpoint(store, TINY).vae


def images(count: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(count, height, width, 3, generator=generator)


def modes(vae: Vae, pixels: Tensor) -> Tensor:
    """The modes of the distributions that the encoder gives, by diffusers."""
    with torch.inference_mode():
        mean: Tensor = vae.autoencoder.encode(pixels.movedim(-1, 1) * 2 - 1).latent_dist.mean
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


def inpaint(vae: Vae, pixels: Tensor, mask: Tensor, grow_by: int) -> Any:
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
    """A convolution would take minutes."""
    mask = torch.ones(1, 2048, 2048)
    _, grown = prepared_for_inpainting(torch.zeros(1, 2048, 2048, 3), mask, 64)
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
    with pytest.raises(EngineError, match=r"masks \(3\) does not fit"):
        inpaint(vae, images(2, 16, 16), torch.zeros(3, 16, 16), 6)


def test_images_of_one_size_share_a_call_and_large_ones_count_for_more(vae: Vae) -> None:
    """A latent depends on its own image only, also if the image is flat."""
    small, wide = images(3, 32, 32), images(1, 256, 512)
    small[1], small[2] = 0.0, 0.7
    requests = [Encode(vae, image) for image in small.split(1)]
    assert len({request.key for request in requests}) == 1
    assert requests[0].key != Encode(vae, wide).key
    assert (requests[0].rows, Encode(vae, wide).rows) == (1, 16)
    with torch.inference_mode():
        together = Encode.run_batch(requests)
        alone = [each for request in requests for each in Encode.run_batch([request])]
    assert torch.equal(torch.cat(list(together)), torch.cat(alone))
    assert torch.allclose(alone[0], modes(vae, small[:1]), atol=1e-5)


def test_a_workflow_from_image_to_image_keeps_its_seed_and_saves_a_latent(submit: Submit) -> None:
    prompt = text_to_image(latent_image=["21", 0], denoise=0.5) | {
        "20": node("LoadImage", image="x.png"),
        "21": node("VAEEncode", pixels=["20", 0], vae=["4", 2]),
        "22": node("PreviewImage", images=["20", 0]),
        "14": node("SaveLatent", samples=["3", 0], filename_prefix="x"),
    }
    watched = submit(prompt, input_files={"x.png": png_of(np.full((40, 64, 3), 200, np.uint8))})
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
    error = submit(prompt, within=Limits(max_cost=0, max_live_bytes=0)).error(EngineError)
    assert "node 3 (ImageScaleBy): at this node the job needs" in str(error)


CELLS = (40, 64)
"""The height and width of a latent, which is cut into parts of 32 cells."""
PIXELS = (8 * 40, 8 * 64)
WHOLE = 40 * 64 // 128


@pytest.fixture(scope="module")
def deep() -> Vae:
    torch.manual_seed(1)
    return Vae(AutoencoderKL(**VAE).eval().requires_grad_(False))


def run(work: Work[Any], *, most_cells: int) -> tuple[Any, list[int]]:
    """What the work returns where calls for more cells fail, and the cells of all calls."""
    calls: list[int] = []
    try:
        request = next(work)
        while True:
            assert isinstance(request, Decode | Encode)
            cells = request.rows  # in a fixed number of cells
            calls.append(cells)
            if cells > most_cells:
                request = work.throw(OutOfMemory())
            else:
                (result,) = type(request).run_batch([request])  # type: ignore[list-item]  # its own
                request = work.send(result)
    except StopIteration as stop:
        return stop.value, calls


def test_what_fits_is_decoded_at_once_and_nothing_is_noted(deep: Vae) -> None:
    noted: list[int] = []
    latent = Latent(torch.randn(2, 16, *CELLS))
    images, calls = run(
        decoded_within_memory(deep, latent, lambda: noted.append(1)), most_cells=WHOLE
    )
    assert (calls, noted, images.shape) == ([WHOLE] * 2, [], (2, *PIXELS, 3))


def test_where_memory_runs_out_it_is_decoded_in_tiles_and_noted(deep: Vae) -> None:
    noted: list[int] = []
    latent = Latent(torch.randn(1, 16, *CELLS, generator=torch.Generator().manual_seed(1)))
    whole, _ = run(decoded_within_memory(deep, latent, lambda: None), most_cells=WHOLE)
    tiled, calls = run(
        decoded_within_memory(deep, latent, lambda: noted.append(1)), most_cells=WHOLE // 2
    )
    assert max(calls[1:]) <= WHOLE // 2
    assert noted == [1]
    assert tiled.shape == whole.shape
    assert (tiled - whole).abs().mean() < 0.05


def test_where_memory_runs_out_it_is_encoded_in_tiles_and_noted(deep: Vae) -> None:
    noted: list[int] = []
    image = images(1, *PIXELS)
    whole, _ = run(encoded_within_memory(deep, image, lambda: None), most_cells=WHOLE)
    tiled, calls = run(
        encoded_within_memory(deep, image, lambda: noted.append(1)), most_cells=WHOLE // 2
    )
    assert max(calls[1:]) <= WHOLE // 2
    assert noted == [1]
    assert (tiled.samples - whole.samples).abs().mean() < 0.1 * whole.samples.abs().mean()


def test_where_tiles_do_not_help_memory_has_run_out(deep: Vae) -> None:
    for cells in ((8, 8), CELLS):
        latent = Latent(torch.zeros(1, 16, *cells))
        with pytest.raises(OutOfMemory):
            run(decoded_within_memory(deep, latent, lambda: None), most_cells=0)


def test_a_run_whose_vae_ran_out_of_memory_says_it_at_its_end(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = AutoencoderKL.decode

    def decode_within_memory(vae: AutoencoderKL, z: torch.Tensor, **options: Any) -> Any:
        if z.shape[2:] == CELLS:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return decode(vae, z, **options)

    monkeypatch.setattr(AutoencoderKL, "decode", decode_within_memory)
    height, width = PIXELS
    empty = with_input(text_to_image(), "5", width=width, height=height)
    watched = submit(with_input(empty, "8", samples=["5", 0]))
    assert watched.images()[0].pixels.shape == (height, width, 3)
    assert watched.images()[0].notes == ("vae_tiled",)
    assert getattr(watched.events[-1], "notes", None) == ("vae_tiled",)


TEXT = (Condition(torch.zeros(1, 77, 8)), Condition(torch.ones(1, 77, 8)))


def test_an_inpainting_model_gets_the_picture_without_what_is_masked(vae: Vae) -> None:
    """The mask is rounded only to hide the picture. Odd sides lose the same at both ends."""
    pixels, mask = images(1, 35, 48), torch.zeros(1, 35, 48)
    mask[:, 9:17, 16:24], mask[:, 9:17, 24:28] = 0.6, 0.4
    inputs = {"vae": vae, "pixels": pixels, "mask": mask, "noise_mask": True}
    made = outputs_of("InpaintModelConditioning", positive=TEXT, negative=TEXT[:1], **inputs)
    hidden = pixels.clone()
    hidden[:, 9:17, 16:24] = 0.5
    for conditioning, texts in zip(made[:2], (TEXT, TEXT[:1]), strict=True):
        assert [id(each.tokens) for each in conditioning] == [id(each.tokens) for each in texts]
        for each in conditioning:
            assert torch.allclose(each.concat_image.samples, modes(vae, hidden[:, 1:33]), atol=1e-5)
            assert torch.equal(each.concat_image.mask, mask[:, 1:33])
    assert torch.allclose(made[2].samples, modes(vae, pixels[:, 1:33]), atol=1e-5)
    assert torch.equal(made[2].noise_mask, mask[:, 1:33])
    inputs["noise_mask"] = False
    *_, latent = outputs_of("InpaintModelConditioning", positive=TEXT, negative=TEXT, **inputs)
    assert latent.noise_mask is None


def test_an_instruction_model_gets_the_picture_and_an_empty_latent(vae: Vae) -> None:
    pixels = images(2, 32, 48)
    inputs = {"positive": TEXT, "negative": TEXT[:1], "vae": vae, "pixels": pixels}
    positive, negative, latent = outputs_of("InstructPixToPixConditioning", **inputs)
    for each in (*positive, *negative):
        assert torch.allclose(each.concat_image.samples, modes(vae, pixels), atol=1e-5)
        assert each.concat_image.mask is None
    assert torch.equal(latent.samples, torch.zeros(2, 4, 4, 6))
