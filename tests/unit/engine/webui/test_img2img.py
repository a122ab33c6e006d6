"""img2img and inpainting: what a request may say, the graph that it becomes, and its pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.graph.catalogue import Catalogue
from engine.webui.parameters import parse_parameters, steps_taken
from engine.webui.sampler_names import SAMPLER_OF
from tests.support.engine.diffusion_requests import (
    compiled,
    field_errors,
    graph_of,
    kinds,
    text_of_image,
)
from tests.support.engine.latents import farthest
from tests.support.engine.workflows import Prompt, Submit, node, text_to_image
from tests.support.uploads import png_of

START = {"init_images": ["cat.png"], "compatibility": "webui", "steps": 20}
AS_WEBUI = {"compatibility": "webui"}
MASKED = START | {"mask": "mask.png"}


def test_an_upload_is_encoded_in_the_place_of_an_empty_latent(models: Catalogue) -> None:
    graph = graph_of(models, **START, denoising_strength=0.5)
    assert graph.input_files == ("cat.png",)
    assert graph.node("sample-0").links["latent_image"].node_id == "encode-0"
    start = graph.node("start-0").literals
    assert (start["width"], start["height"], start["resize_mode"]) == (64, 64, "just resize")
    assert "EmptyLatentImage" not in kinds(graph)


@pytest.mark.parametrize(
    ("denoise", "taken"), [(0.0, 1), (0.4, 9), (0.5, 11), (0.75, 16), (0.999, 20), (1.0, 20)]
)
def test_so_many_steps_are_taken(models: Catalogue, denoise: float, taken: int) -> None:
    assert steps_taken(20, denoise) == taken
    graph = graph_of(models, **START, denoising_strength=denoise)
    for name in ("sample-0", "text"):
        literals = graph.node(name).literals
        assert literals["steps"] == 20
        assert (literals["taken_steps"], literals["denoise"]) == (taken, 1.0)


def test_a_setting_has_all_steps_taken(models: Catalogue) -> None:
    settings = {"img2img_fix_steps": True}
    graph = graph_of(models, **START, denoising_strength=0.5, override_settings=settings)
    literals = graph.node("sample-0").literals
    assert (literals["steps"], literals["denoise"]) == (20, 0.5)
    assert "taken_steps" not in literals


def test_several_images_are_one_for_each_of_a_batch(models: Catalogue) -> None:
    body = START | {"init_images": ["a.png", "b.png"], "batch_size": 4, "n_iter": 2}
    found = compiled(models, **body)
    assert len(found.seeds) == 4
    sources = [found.prompt[f"sample-{i}"]["inputs"]["latent_image"][0] for i in range(4)]
    assert sources == ["encode-0", "encode-1", "encode-0", "encode-1"]
    assert [found.prompt[f"image-{i}"]["inputs"]["image"] for i in (0, 1)] == ["a.png", "b.png"]
    assert "batch_size is 1" in field_errors(models, **(body | {"batch_size": 1}))["init_images"]


def test_one_image_is_encoded_once_for_all(models: Catalogue) -> None:
    graph = graph_of(models, **START, batch_size=2, n_iter=2)
    assert kinds(graph).count("VAEEncode") == 1
    assert kinds(graph).count("SaveImage") == 4


def test_a_mask_has_its_surroundings_made_and_pasted(models: Catalogue) -> None:
    graph = graph_of(models, **MASKED, inpaint_full_res_padding=32, mask_blur=6)
    assert graph.input_files == ("cat.png", "mask.png")
    mask = graph.node("mask").literals
    assert (mask["invert"], mask["blur_x"], mask["blur_y"]) == (False, 6, 6)
    assert graph.node("start-0").literals["width"] == 0
    area = graph.node("area-0").literals
    assert (area["width"], area["only_masked"], area["padding"]) == (64, True, 32)
    assert graph.node("filled-0").links["mask"].output == 1
    assert graph.node("masked-0").literals["content"] == "fill"
    assert graph.node("sample-0").literals["renews_kept"] is False
    assert graph.node("save-0").links["images"].node_id == "pasted-0"
    assert graph.node("pasted-0").links["original"].node_id == "start-0"
    assert graph.seed_of("save-0") == 5


def test_the_seed_of_a_picture_is_its_samplers(models: Catalogue) -> None:
    graph = graph_of(models, **MASKED, inpainting_fill=2, batch_size=2, n_iter=2)
    assert [graph.seed_of(f"save-{index}") for index in range(4)] == [5, 6, 7, 8]
    assert [graph.node(f"masked-{index}").literals["seed"] for index in (0, 1)] == [5, 6]


def test_noise_under_the_mask_has_the_source_of_all_noise(models: Catalogue) -> None:
    settings = {"randn_source": "NV"}
    graph = graph_of(models, **MASKED, inpainting_fill=2, override_settings=settings)
    found = [graph.node(name).literals["randn_source"] for name in ("masked-0", "sample-0")]
    assert found == ["NV", "NV"]


def test_what_is_under_the_mask(models: Catalogue) -> None:
    graphs = [graph_of(models, **MASKED, inpainting_fill=fill) for fill in range(4)]
    contents = [graph.node("masked-0").literals["content"] for graph in graphs]
    assert contents == ["fill", "original", "latent noise", "latent nothing"]
    assert ["WebUIFill" in kinds(graph) for graph in graphs] == [True, False, True, True]


def test_the_latent_may_be_stretched(models: Catalogue) -> None:
    graph = graph_of(models, **START, resize_mode=3)
    assert graph.node("start-0").literals["width"] == 0
    assert graph.node("stretched-0").literals["width"] == 64
    wrong = field_errors(models, **MASKED, resize_mode=3, inpaint_full_res=False)
    assert "inpaint_full_res" in wrong["resize_mode"]
    graph_of(models, **MASKED, resize_mode=3)


def test_as_in_comfyui_nodes_of_comfyui_are_taken(models: Catalogue) -> None:
    body = START | {"compatibility": "comfyui", "mask": "m.png", "inpainting_mask_invert": 1}
    graph = graph_of(models, **body, denoising_strength=0.5, resize_mode=1)
    assert not any(kind.startswith("WebUI") for kind in kinds(graph) if kind != "WebUITextEncode")
    assert graph.node("start-0").literals["crop"] == "center"
    assert graph.node("sample-0").literals["denoise"] == 0.5
    assert graph.node("masked-0").links["mask"].node_id == "mask-inverted"
    for name, value in (
        ("resize_mode", 2),
        ("mask_blur", 3),
        ("inpainting_fill", 0),
        ("inpaint_full_res", True),
        ("initial_noise_multiplier", 0.5),
    ):
        assert "compatibility" in field_errors(models, **(body | {name: value}))[name]


def test_members_that_do_not_go_together_are_named(models: Catalogue) -> None:
    assert "mask" in field_errors(models, mask="m.png")
    assert "enable_hr" in field_errors(models, **START, enable_hr=True)


def test_a_job_records_what_has_an_effect() -> None:
    recorded = parse_parameters(MASKED | {"denoising_strength": 0.3, "hr_scale": 3}).recorded()
    assert recorded == {**MASKED, "denoising_strength": 0.3, "prompt": ""}
    parse_parameters(recorded)
    plain = {"prompt": "x", "steps": 2, "compatibility": "webui"}
    assert parse_parameters(plain | {"resize_mode": 2, "mask_blur": 3}).recorded() == plain


def test_the_text_in_a_picture_tells_of_it(models: Catalogue) -> None:
    body = MASKED | {"denoising_strength": 0.6, "mask_blur": 4, "initial_noise_multiplier": 0.9}
    text = text_of_image(models, **body)
    for part in (
        "Steps: 20",
        "Denoising strength: 0.6",
        "Mask blur: 4",
        "Inpaint area: Only masked",
        "Masked area padding: 0",
        "Masked content: fill",
        "Noise multiplier: 0.9",
    ):
        assert f"{part}," in text


Pixels = NDArray[np.uint8]
Made = Callable[..., Pixels]


PICTURE = np.random.default_rng(1).integers(0, 255, (48, 80, 3), dtype=np.uint8)
COVER = np.zeros((48, 80), dtype=np.uint8)
COVER[16:32, 24:40] = 255
FILES = {"start.png": png_of(PICTURE), "mask.png": png_of(COVER)}


@pytest.fixture(scope="module")
def picture(submit: Submit) -> Callable[[Prompt], Pixels]:
    return lambda prompt: submit(prompt, input_files=FILES).images()[0].pixels


@pytest.fixture(scope="module")
def made(picture: Callable[[Prompt], Pixels], catalogue: Catalogue) -> Made:
    """The picture of a diffusion request."""

    def made(**body: Any) -> Pixels:
        body = {"prompt": "a red circle", "seed": 1, "steps": 4, "denoising_strength": 0.5} | body
        return picture(compiled(catalogue, **body, init_images=["start.png"]).prompt)

    return made


SCALE = {"upscale_method": "lanczos", "width": 64, "height": 64, "crop": "disabled"}
SAMPLING = text_to_image(denoise=0.5)["3"]["inputs"]


def workflow(**changed: Prompt) -> Prompt:
    """img2img as ComfyUI's users build it."""
    image = {
        "1": node("LoadImage", image="start.png"),
        "2": node("ImageScale", image=["1", 0], **SCALE),
        "5": node("VAEEncode", pixels=["2", 0], vae=["4", 2]),
    }
    return text_to_image(denoise=0.5) | image | changed


def test_it_is_the_picture_of_the_same_graph(
    made: Made, picture: Callable[[Prompt], Pixels]
) -> None:
    assert farthest(made(compatibility="comfyui"), picture(workflow())) == 0


def test_with_a_mask_too(made: Made, picture: Callable[[Prompt], Pixels]) -> None:
    mask = node("LoadImageMask", image="mask.png", channel="red")
    masked = node("SetLatentNoiseMask", samples=["5", 0], mask=["10", 0])
    sampler = node("KSampler", **SAMPLING | {"latent_image": ["11", 0]})
    graph = workflow(**{"10": mask, "11": masked, "3": sampler})
    assert farthest(made(mask="mask.png", compatibility="comfyui"), picture(graph)) == 0


def test_in_the_webuis_sense_the_steps_are_the_last_of_the_schedule(
    made: Made, picture: Callable[[Prompt], Pixels]
) -> None:
    """Half of 4 steps are 2, and one more; before them the noise is as strong as theirs."""
    inputs = {key: value for key, value in SAMPLING.items() if key not in {"seed", "denoise"}}
    inputs |= {"noise_seed": 1, "add_noise": "enable", "return_with_leftover_noise": "disable"}
    sampler = node("KSamplerAdvanced", **inputs, start_at_step=1, end_at_step=4)
    names = {"sampler_name": "euler", "scheduler": "normal"}
    found = made(**AS_WEBUI, **names, override_settings={"enable_quantization": True})
    assert farthest(found, picture(workflow(**{"3": sampler}))) <= 2


def test_around_an_area_all_is_as_in_the_start(made: Made) -> None:
    body = {"mask": "mask.png", "mask_blur": 0, "inpaint_full_res": True}
    found = made(**AS_WEBUI, **body, denoising_strength=1.0, width=80, height=48)
    assert found.shape == PICTURE.shape
    assert farthest(found[COVER == 0], PICTURE[COVER == 0]) <= 1
    assert farthest(found[COVER > 0], PICTURE[COVER > 0]) > 20


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
    pictures = [made(**AS_WEBUI, **body) for body in bodies]
    for index, one in enumerate(pictures):
        assert all(farthest(one, other) > 1 for other in pictures[:index]), bodies[index]


@pytest.mark.parametrize("name", ["euler_ancestral", "webui_dpm_fast", "webui_ddim", "dpmpp_sde"])
def test_samplers_of_every_kind_keep_what_the_mask_keeps(made: Made, name: str) -> None:
    body = {"mask": "mask.png", "mask_blur": 0, "inpaint_full_res": False}
    sampler = SAMPLER_OF[name].label
    found = made(**AS_WEBUI, **body, sampler_name=sampler, width=80, height=48)
    assert found.shape == PICTURE.shape
    assert farthest(found[COVER == 0], PICTURE[COVER == 0]) <= 1
    assert found[COVER > 0].std() > 1
    assert farthest(found[COVER > 0], PICTURE[COVER > 0]) > 20
