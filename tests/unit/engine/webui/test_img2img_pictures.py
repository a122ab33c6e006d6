"""Pictures that start from pictures, and those of the same graph, with the tiny checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from engine.graph.catalogue import Catalogue
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from engine.webui.sampler_names import SAMPLER_OF
from tests.support.engine.workflows import TINY, Watched, node

Pixels = NDArray[np.uint8]
Made = Callable[..., Pixels]
START = {"init_images": ["start.png"], "steps": 4, "denoising_strength": 0.5}
WEBUI = START | {"compatibility": "webui"}


def png(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


PICTURE = np.random.default_rng(1).integers(0, 255, (48, 80, 3), dtype=np.uint8)
MASK = np.zeros((48, 80), dtype=np.uint8)
MASK[16:32, 24:40] = 255
FILES = {"start.png": png(PICTURE), "mask.png": png(MASK)}


@pytest.fixture(scope="module")
def picture(submit: Callable[..., Watched]) -> Callable[[dict[str, Any]], Pixels]:
    def picture(prompt: dict[str, Any]) -> Pixels:
        (image,) = submit(prompt, input_files=FILES).images()
        return image.pixels

    return picture


@pytest.fixture(scope="module")
def made(picture: Callable[[dict[str, Any]], Pixels], catalogue: Catalogue) -> Made:
    """The picture of a diffusion request."""

    def made(**body: Any) -> Pixels:
        from engine.graph.limits import Limits

        given = {"prompt": "a red circle", "seed": 1, "width": 64, "height": 64, **body}
        compiled = compile_parameters(
            parse_parameters(given), catalogue, Limits(), default_checkpoint=TINY
        )
        return picture(compiled.prompt)

    return made


def farthest(one: Pixels, other: Pixels) -> int:
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def workflow(**changed: dict[str, Any]) -> dict[str, Any]:
    """img2img as ComfyUI's users build it."""
    return {
        "4": node("CheckpointLoaderSimple", ckpt_name=TINY),
        "1": node("LoadImage", image="start.png"),
        "2": node(
            "ImageScale",
            image=["1", 0],
            upscale_method="lanczos",
            width=64,
            height=64,
            crop="disabled",
        ),
        "5": node("VAEEncode", pixels=["2", 0], vae=["4", 2]),
        "6": node("CLIPTextEncode", text="a red circle", clip=["4", 1]),
        "7": node("CLIPTextEncode", text="", clip=["4", 1]),
        "3": node("KSampler", **SAMPLING, denoise=0.5, seed=1),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": node("SaveImage", images=["8", 0], filename_prefix="x"),
        **changed,
    }


SAMPLING: dict[str, Any] = {
    "model": ["4", 0],
    "steps": 4,
    "cfg": 7.0,
    "sampler_name": "euler",
    "scheduler": "normal",
    "positive": ["6", 0],
    "negative": ["7", 0],
    "latent_image": ["5", 0],
}


def test_the_picture_is_that_of_the_same_graph(
    made: Made, picture: Callable[[dict[str, Any]], Pixels]
) -> None:
    assert farthest(made(**START, compatibility="comfyui"), picture(workflow())) == 0


def test_with_a_mask_too(made: Made, picture: Callable[[dict[str, Any]], Pixels]) -> None:
    mask = node("LoadImageMask", image="mask.png", channel="red")
    masked = node("SetLatentNoiseMask", samples=["5", 0], mask=["10", 0])
    sampler = node("KSampler", **SAMPLING | {"latent_image": ["11", 0]}, denoise=0.5, seed=1)
    graph = workflow(**{"10": mask, "11": masked, "3": sampler})
    assert farthest(made(**START, mask="mask.png", compatibility="comfyui"), picture(graph)) == 0


def test_in_the_webuis_sense_the_steps_are_the_last_of_the_schedule(
    made: Made, picture: Callable[[dict[str, Any]], Pixels]
) -> None:
    """Half of 4 steps are 2, and one more; before them the noise is as strong as theirs."""
    sampler = node(
        "KSamplerAdvanced",
        **SAMPLING,
        noise_seed=1,
        add_noise="enable",
        start_at_step=1,
        end_at_step=4,
        return_with_leftover_noise="disable",
    )
    body = WEBUI | {"scheduler": "normal", "override_settings": {"enable_quantization": True}}
    graph = workflow(**{"3": sampler})
    assert farthest(made(**body, sampler_name="euler"), picture(graph)) <= 2


@pytest.mark.parametrize("whole", [False, True])
def test_what_the_mask_keeps_is_the_start(made: Made, whole: bool) -> None:
    body = {"mask": "mask.png", "mask_blur": 0, "inpaint_full_res": not whole}
    found = made(**WEBUI | {"denoising_strength": 1.0}, **body, width=80, height=48)
    assert found.shape == PICTURE.shape
    assert farthest(found[MASK == 0], PICTURE[MASK == 0]) <= 1
    assert farthest(found[MASK > 0], PICTURE[MASK > 0]) > 20


def test_every_member_changes_the_picture(made: Made) -> None:
    masked = {"mask": "mask.png", "inpaint_full_res": False}
    bodies: list[dict[str, Any]] = [
        {},
        {"resize_mode": 1},
        {"resize_mode": 2},
        {"resize_mode": 3},
        {"initial_noise_multiplier": 0.5},
        {"override_settings": {"img2img_fix_steps": True}},
        masked,
        masked | {"mask_blur": 0},
        masked | {"inpainting_fill": 1},
        masked | {"inpainting_fill": 2},
        masked | {"inpainting_fill": 3},
        masked | {"inpainting_mask_invert": 1},
    ]
    pictures = [made(**WEBUI, **body) for body in bodies]
    for index, one in enumerate(pictures):
        assert all(farthest(one, other) > 1 for other in pictures[:index]), bodies[index]


@pytest.mark.parametrize("name", ["euler_ancestral", "webui_dpm_fast", "webui_ddim", "dpmpp_sde"])
def test_samplers_of_every_kind_keep_what_the_mask_keeps(made: Made, name: str) -> None:
    body = {"mask": "mask.png", "mask_blur": 0, "inpaint_full_res": False}
    sampler = SAMPLER_OF[name].label
    found = made(**WEBUI, **body, sampler_name=sampler, width=80, height=48)
    assert farthest(found[MASK == 0], PICTURE[MASK == 0]) <= 1
    assert found[MASK > 0].std() > 1
