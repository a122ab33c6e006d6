"""Diffusion requests as graphs of ComfyUI's core nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.webui.diffusion_request import CompiledDiffusion, compile_with_core_nodes
from engine.webui.model_names import ServerModels
from tests.support.comfyui.core_requests import CORE_INPUTS, CORE_REQUESTS, SMALL, core_request

MODELS = {
    "sd_model_checkpoint": "sd15",
    "prompt": "a fox <lora:style:0.5:0.25>",
    "override_settings": {"sd_vae": "soft"},
    "hr_upscaler": "R-ESRGAN 4x+",
    "enable_hr": True,
}


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(ModelsFolder(tmp_path / "missing"))


def compiled(
    catalogue: Catalogue,
    body: dict[str, Any],
    models: dict[str, tuple[str, ...]] | None = None,
    *,
    default: str | None = "sd15.safetensors",
) -> CompiledDiffusion:
    return compile_with_core_nodes(
        body,
        catalogue,
        Limits(),
        models=ServerModels(models or {}),
        default_checkpoint=default,
        draw_seed=lambda: 7,
    )


def inputs_of(found: CompiledDiffusion, class_type: str) -> list[dict[str, Any]]:
    nodes = found.prompt.values()
    return [node["inputs"] for node in nodes if node["class_type"] == class_type]


def texts(catalogue: Catalogue, prompt: str) -> list[str]:
    found = compiled(catalogue, {**SMALL, "prompt": prompt})
    return [each["text"] for each in inputs_of(found, "CLIPTextEncode")][:-1]


def refused(catalogue: Catalogue, **members: Any) -> list[tuple[str, str]]:
    with pytest.raises(ParametersInvalid) as caught:
        compiled(catalogue, {**SMALL, **members})
    return [(each.field, each.type) for each in caught.value.fields]


@pytest.mark.parametrize("body", [*map(core_request, CORE_REQUESTS), {**SMALL, **MODELS}])
def test_graphs_have_core_nodes_with_their_inputs_only(
    catalogue: Catalogue, body: dict[str, Any]
) -> None:
    found = compiled(catalogue, body)

    for node in found.prompt.values():
        assert node["inputs"].keys() == CORE_INPUTS[node["class_type"]]
        for value in node["inputs"].values():
            if isinstance(value, list):
                assert found.prompt[value[0]]


def test_each_image_has_its_own_sampler_and_seed(catalogue: Catalogue) -> None:
    found = compiled(catalogue, core_request("images"))

    assert [each["seed"] for each in inputs_of(found, "KSampler")] == [5, 6, 7, 8]
    assert found.first_index == {f"save-{index}": index for index in range(4)}
    assert (found.images, found.settings.seeds) == (4, (5, 6, 7, 8))


def test_the_two_texts_go_to_the_two_inputs_of_the_sampler(catalogue: Catalogue) -> None:
    found = compiled(catalogue, core_request("txt2img"))

    [sampler] = inputs_of(found, "KSampler")
    linked = [found.prompt[sampler[name][0]]["inputs"] for name in ("positive", "negative")]
    assert [each["text"] for each in linked] == ["a red fox", "blurry"]


@pytest.mark.parametrize(
    ("prompt", "written"),
    [
        ("a fox", ["a fox"]),
        ("", [""]),
        ("a (red:1.5) fox", ["a (red:1.5) fox"]),
        ("((red)) [fox]", ["(red:1.21) (fox:0.909091)"]),
        (r"fox \(animal\), (a \[b\]:1.5)", [r"fox \(animal\), (a [b]:1.5)"]),
        (r"\\(red:1.5)", [r"\ (red:1.5)"]),
        ("a fox BREAK in (snow:2)", ["a fox ", " in (snow:2)"]),
        ("a fox BREAK", ["a fox "]),
        ("BREAK a fox", ["", " a fox"]),
        ("[a:b:9] fox", ["a fox"]),
    ],
)
def test_a_prompt_is_written_in_the_syntax_of_comfyui(
    catalogue: Catalogue, prompt: str, written: list[str]
) -> None:
    assert texts(catalogue, prompt) == written


def test_the_text_after_a_break_is_concatenated(catalogue: Catalogue) -> None:
    found = compiled(catalogue, core_request("break"))

    [joined] = inputs_of(found, "ConditioningConcat")
    first, second = (
        found.prompt[joined[f"conditioning_{side}"][0]]["inputs"]["text"] for side in ("to", "from")
    )
    assert (first, second) == ("a fox ", " in the (snow:0.8)")
    [sampler] = inputs_of(found, "KSampler")
    assert found.prompt[sampler["positive"][0]]["inputs"] == joined


def test_names_of_models_that_are_not_known_get_the_usual_suffix(catalogue: Catalogue) -> None:
    found = compiled(catalogue, {**SMALL, **MODELS})

    assert inputs_of(found, "CheckpointLoaderSimple") == [{"ckpt_name": "sd15.safetensors"}]
    assert inputs_of(found, "VAELoader") == [{"vae_name": "soft.safetensors"}]
    assert inputs_of(found, "UpscaleModelLoader") == [{"model_name": "RealESRGAN_x4plus.pth"}]
    [lora] = inputs_of(found, "LoraLoader")
    strengths = (lora["strength_clip"], lora["strength_model"])
    assert (lora["lora_name"], *strengths) == ("style.safetensors", 0.5, 0.25)


def test_known_models_are_found_by_their_short_names(catalogue: Catalogue) -> None:
    models = {"checkpoints": (r"xl\sd15.ckpt",), "loras": ("style.sft",), "vae": ("soft.pt",)}
    models |= {"upscale_models": ("x4/RealESRGAN_x4plus.pth",)}

    found = compiled(catalogue, {**SMALL, **MODELS}, models)

    assert inputs_of(found, "CheckpointLoaderSimple") == [{"ckpt_name": r"xl\sd15.ckpt"}]
    assert inputs_of(found, "LoraLoader")[0]["lora_name"] == "style.sft"
    assert inputs_of(found, "VAELoader") == [{"vae_name": "soft.pt"}]
    assert inputs_of(found, "UpscaleModelLoader") == [{"model_name": "x4/RealESRGAN_x4plus.pth"}]
    with pytest.raises(ParametersInvalid, match=r"sd_model_checkpoint.*there are: other"):
        compiled(catalogue, {**SMALL, **MODELS}, {"checkpoints": ("other",)})


def test_a_request_without_a_checkpoint_gets_the_default_and_records_it(
    catalogue: Catalogue,
) -> None:
    assert compiled(catalogue, SMALL).request["sd_model_checkpoint"] == "sd15.safetensors"
    with pytest.raises(ParametersInvalid, match=r"sd_model_checkpoint.*endpoint has no checkpoint"):
        compiled(catalogue, SMALL, default=None)


def test_defaults_do_not_depend_on_the_family(catalogue: Catalogue) -> None:
    found = compiled(catalogue, {"prompt": "a fox", "sd_model_checkpoint": "flux"})

    assert inputs_of(found, "EmptyLatentImage") == [{"width": 512, "height": 512, "batch_size": 1}]
    [sampler] = inputs_of(found, "KSampler")
    assert (sampler["steps"], sampler["cfg"], sampler["seed"]) == (20, 7.0, 7)


IMAGES = {"init_images": ["a.png"]}


@pytest.mark.parametrize(
    ("members", "fields"),
    [
        ({"compatibility": "webui"}, ["compatibility"]),
        ({"compatibility": "webui", "tiling": True}, ["compatibility", "tiling"]),
        ({"override_settings": {"emphasis": "Ignore"}}, ["override_settings.emphasis"]),
        ({"subseed_strength": 0.5}, ["subseed_strength"]),
        ({"refiner_checkpoint": "b"}, ["refiner_checkpoint"]),
        ({"prompt": "a AND b"}, ["prompt"]),
        ({"prompt": "a fox :1.2"}, ["prompt"]),
        ({"prompt": "[a:b:1] fox", "negative_prompt": "[c|d]"}, ["prompt", "negative_prompt"]),
        ({"enable_hr": True, "hr_prompt": "a AND b"}, ["hr_prompt"]),
        ({"enable_hr": True, "prompt": "a AND b"}, ["prompt"]),
        ({"enable_hr": True, "hr_upscaler": "Latent (antialiased)"}, ["hr_upscaler"]),
        (
            {"override_settings": {"eta_noise_seed_delta": 1}, "sampler_name": "Euler a"},
            ["override_settings.eta_noise_seed_delta"],
        ),
        ({**IMAGES, "resize_mode": 2}, ["resize_mode"]),
        ({**IMAGES, "mask": "m.png", "mask_blur": 4}, ["mask_blur"]),
        ({**IMAGES, "mask": "m.png", "inpaint_full_res": True}, ["inpaint_full_res"]),
    ],
)
def test_what_core_nodes_do_not_express_is_refused_by_name(
    catalogue: Catalogue, members: dict[str, Any], fields: list[str]
) -> None:
    assert refused(catalogue, **members) == [(name, "not_supported") for name in fields]


def test_members_of_a_mask_have_no_effect_without_a_mask(catalogue: Catalogue) -> None:
    usual = {"mask_blur": 4, "inpainting_fill": 0, "inpaint_full_res": True}

    assert compiled(catalogue, {**SMALL, **IMAGES, **usual}).images == 1
