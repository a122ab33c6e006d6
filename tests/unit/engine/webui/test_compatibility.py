"""What a request means in the WebUI's sense, and that none of it leaks into ComfyUI's."""

from __future__ import annotations

import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.webui.parameters import parse_parameters
from engine.webui.plain_text import plain_text
from tests.support.engine.diffusion_requests import compiled, field_errors, graph_of
from tests.support.patience import least_cpu_s

WEBUI: dict[str, Any] = {"compatibility": "webui", "steps": 20}


def sampler_of(catalogue: Catalogue, name: str = "sample-0", **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(graph_of(catalogue, **WEBUI | body).node(name).literals)
    return found


@pytest.mark.parametrize(
    "body",
    [
        {"override_settings": {"x": [None]}},
        {"override_settings": {"sd_model_checkpoint": " "}},
        {"steps": {}},
    ],
)
def test_what_is_recorded_is_recorded_in_the_same_way_again(body: dict[str, Any]) -> None:
    recorded = parse_parameters(body | {"seed": 1}, "webui").recorded()
    assert parse_parameters(recorded, "webui").recorded() == recorded


def test_its_defaults_are_recorded() -> None:
    recorded = parse_parameters({}, "webui").recorded()
    assert recorded == {"compatibility": "webui", "prompt": "", "steps": 50}
    assert parse_parameters({"compatibility": "webui"}).steps == 50
    asked = parse_parameters({"prompt": "x", "compatibility": "comfyui"}, "webui")
    assert (asked.compatibility, asked.steps) == ("comfyui", 20)


def test_what_was_recorded_before_there_was_a_choice_means_what_it_meant() -> None:
    older = parse_parameters({"prompt": "x", "seed": 1})
    assert (older.compatibility, older.steps) == ("comfyui", 20)


def test_noise_goes_on_and_timesteps_are_fractions(models: Catalogue) -> None:
    for sampler in ("Euler a", "Euler", "DPM++ SDE"):
        literals = sampler_of(models, sampler_name=sampler)
        assert literals["continues_noise"] is True
        assert literals["noise_scale"] == "sigma"
        assert literals["rounds_timesteps"] is False
        assert "eta" not in literals
    assert graph_of(models, compatibility="comfyui").node("sample-0").class_type == "KSampler"


@pytest.mark.parametrize(
    ("settings", "source"),
    [({}, "GPU"), *(({"randn_source": source}, source) for source in ("GPU", "CPU", "NV"))],
)
def test_the_source_of_noise_is_the_device_unless_another_one_is_named(
    models: Catalogue, settings: dict[str, Any], source: str
) -> None:
    assert sampler_of(models, override_settings=settings)["randn_source"] == source


@pytest.mark.parametrize(
    ("sampler", "refused"),
    [
        ("Euler", {"NV"}),
        ("dpmpp_2m_sde", {"NV"}),
        ("dpmpp_2m_sde_gpu", {"CPU", "NV"}),
        ("Euler a", {"CPU", "NV"}),
    ],
)
def test_with_comfyui_a_source_may_be_that_which_comfyui_has(
    models: Catalogue, sampler: str, refused: set[str]
) -> None:
    """The noise of `Euler a` is drawn on the CPU only where there is no other device."""
    request: dict[str, Any] = {"compatibility": "comfyui", "sampler_name": sampler}
    plain = graph_of(models, **request)
    for source in (None, "", "GPU", "CPU", "NV"):
        asked = request | {"override_settings": {"randn_source": source}}
        if source in refused:
            error = field_errors(models, **asked)["override_settings.randn_source"]
            assert "`compatibility` is comfyui" in error
        else:
            assert graph_of(models, **asked) == plain
    hires = {"enable_hr": True, "hr_scale": 2, "denoising_strength": 0.5}
    hires |= {"hr_sampler_name": "Euler a", "override_settings": {"randn_source": "CPU"}}
    assert "override_settings.randn_source" in field_errors(models, **request, **hires)


def test_the_webui_has_one_sampler_for_all_sources(models: Catalogue) -> None:
    literals = sampler_of(models, sampler_name="dpmpp_3m_sde_gpu")
    assert literals["sampler_name"] == "webui_dpmpp_3m_sde"


def test_settings_reach_the_sampler(models: Catalogue) -> None:
    settings = {
        "eta_noise_seed_delta": 31337,
        "sgm_noise_multiplier": True,
        "enable_quantization": True,
    }
    literals = sampler_of(models, sampler_name="Euler a", eta=0.5, override_settings=settings)
    assert literals["eta_noise_seed_delta"] == 31337
    assert literals["noise_scale"] == "unit variance"
    assert literals["rounds_timesteps"] is True
    assert literals["eta"] == 0.5
    assert "eta" not in sampler_of(models, sampler_name="Euler", eta=0.5)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("DDIM", "Karras"), ("webui_ddim", "webui_timesteps")),
        (("PLMS", ""), ("plms", "webui_timesteps")),
        (("DDIM CFG++", "Automatic"), ("ddim_cfg_pp", "webui_timesteps")),
        (("UniPC", "Beta"), ("webui_uni_pc", "webui_time_uniform")),
        (("DPM++ 3M SDE", "Automatic"), ("webui_dpmpp_3m_sde", "exponential")),
        (("DPM++ 3M SDE Karras", "Automatic"), ("webui_dpmpp_3m_sde", "karras")),
        (("DPM fast", "Karras"), ("webui_dpm_fast", "webui_ends")),
        (("DPM adaptive", "Automatic"), ("webui_dpm_adaptive", "webui_ends")),
        (("Restart", "Automatic"), ("restart", "karras")),
        (("Euler", "Beta"), ("euler", "webui_beta")),
        (("Euler", "KL Optimal"), ("euler", "webui_kl_optimal")),
        (("Euler", "Polyexponential"), ("euler", "polyexponential")),
        (("Euler", "align your steps"), ("euler", "align_your_steps")),
        (("Euler", "SGMUniform"), ("euler", "sgm_uniform")),
        (("Euler", "Uniform"), ("euler", "normal")),
    ],
    ids=str,
)
def test_names_are_those_of_the_webui(
    models: Catalogue, asked: tuple[str, str], expected: tuple[str, str]
) -> None:
    names = dict(zip(("sampler_name", "scheduler"), asked, strict=True))
    literals = sampler_of(models, **names)
    assert (literals["sampler_name"], literals["scheduler"]) == expected


def test_its_own_names_are_not_known_in_comfyuis_sense(models: Catalogue) -> None:
    for member, name in (("sampler_name", "Restart"), ("scheduler", "Polyexponential")):
        assert "unknown" in field_errors(models, **{member: name})[member]
        assert name in field_errors(models, **WEBUI | {member: "nope"})[member]


def test_samplers_along_timesteps_start_with_unit_variance(models: Catalogue) -> None:
    body = {"sampler_name": "DDIM", "enable_hr": True}
    assert sampler_of(models, **body)["noise_scale"] == "unit variance"
    assert sampler_of(models, "hires-sample-0", **body)["noise_scale"] == "sigma"


def test_lcm_is_sampled_on_its_fifty_levels(models: Catalogue) -> None:
    graph = graph_of(models, **WEBUI, sampler_name="LCM", enable_hr=True, hr_sampler_name="Euler")
    assert graph.node("lcm").literals["sampling"] == "lcm"
    assert graph.node("sample-0").links["model"].node_id == "lcm"
    assert graph.node("text").links["model"].node_id == "lcm"
    assert graph.node("sample-0").literals["rounds_timesteps"] is True
    assert graph.node("hires-sample-0").links["model"].node_id == "checkpoint"


def test_the_second_pass_inherits_the_scheduler(models: Catalogue) -> None:
    body = {"sampler_name": "DPM++ 2M Karras", "enable_hr": True, "hr_sampler_name": "Euler"}
    assert sampler_of(models, "hires-sample-0", **body)["scheduler"] == "karras"
    body["scheduler"] = "Beta"
    assert sampler_of(models, "hires-sample-0", **body)["scheduler"] == "webui_beta"
    plain = {"enable_hr": True, "hr_sampler_name": "DPM++ 2M"}
    assert sampler_of(models, "hires-sample-0", **plain)["scheduler"] == "karras"


def test_what_does_not_fit_is_cut_off_the_scaled_latent(models: Catalogue) -> None:
    body = {"width": 96, "height": 64, "enable_hr": True, "hr_resize_x": 128, "hr_resize_y": 128}
    for upscaler, scaled in (("Latent", "WebUILatentUpscale"), ("Lanczos", "ImageScale")):
        graph = graph_of(models, **WEBUI | body, hr_upscaler=upscaler)
        larger = graph.node("larger-0")
        assert larger.class_type == scaled
        size = (larger.literals["width"], larger.literals["height"], larger.literals["crop"])
        assert size == (192, 128, "disabled")
        cropped = graph.node("cropped-0").literals
        assert (cropped["width"], cropped["height"]) == (128, 128)


def test_an_upscale_model_is_applied_until_the_size_is_reached(models: Catalogue) -> None:
    upscaled = graph_of(models, **WEBUI, enable_hr=True, hr_upscaler="4x").node("upscaled-0")
    assert upscaled.class_type == "WebUIImageUpscale"
    assert (upscaled.literals["width"], upscaled.literals["height"]) == (128, 128)


def test_texts_are_padded_made_plain_and_empty_negatives_are_zeros(models: Catalogue) -> None:
    literals = graph_of(models, **WEBUI).node("text").literals
    for option in ("pads_texts", "makes_plain", "zeroes_empty_negative"):
        assert literals[option] is True
    assert "pads_texts" not in graph_of(models).node("text").literals


def test_unknown_networks_are_left_out(models: Catalogue) -> None:
    prompt = "a <lora:nope:1><hypernet:x:1><lora:grain:0.5> dog"
    graph = graph_of(models, **WEBUI, prompt=prompt)
    assert [n.literals["lora_name"] for n in graph.nodes if n.class_type == "LoraLoader"] == [
        "grain.safetensors"
    ]
    assert graph.node("text").literals["text"] == "a  dog"
    assert compiled(models, **WEBUI, prompt=prompt, enable_hr=True, hr_prompt=prompt).notes == (
        "lora_left_out: nope",
        "network_left_out: hypernet:x",
    )
    assert compiled(models, **WEBUI, prompt="a dog").notes == ()
    assert "much" in field_errors(models, **WEBUI, prompt="<lora:grain:much>")["prompt"]


@pytest.fixture
def own_models(tmp_path: Path, models: Catalogue) -> Catalogue:
    for name in ("checkpoints/darkroom-tiny.safetensors", "embeddings/easynegative.pt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "loras").mkdir()
    lora = {"lora_x.lora_down.weight": np.zeros((1, 1), np.float32)}
    save_file(lora, tmp_path / "loras" / "v2_final.safetensors", {"ss_output_name": "Ink Style"})
    return Catalogue(ModelsFolder(tmp_path))


def test_a_lora_has_the_name_that_its_training_gave_it(own_models: Catalogue) -> None:
    prompt = "<lora:Ink Style:0.5>"
    graph = graph_of(own_models, **WEBUI, prompt=prompt)
    assert graph.node("lora-0").literals["lora_name"] == "v2_final.safetensors"
    assert "not known" in field_errors(own_models, prompt=prompt)["prompt"]


def test_a_pickled_embedding_is_no_word(own_models: Catalogue) -> None:
    named = {"negative_prompt": "(EasyNegative:1.2), ugly"}
    assert "pickled" in field_errors(own_models, **WEBUI, **named)["negative_prompt"]
    compiled(own_models, **WEBUI, prompt="an easynegatively drawn dog")


PLAIN = json.loads(
    r"""{"\u201ca\u201d \u2019s": "\"a\" 's", "\uff08\uff11\uff0e\uff12\uff09": "(1.2)",
    "\ufb01ne\u3000art": "fine art", "caf\u0065\u0301": "caf\u00e9", "a &amp; b": "a & b",
    "<b> &amp;": "<b> &amp;", "a\ufeffb": "ab", "\u732b": "\u732b", "plain, (text:1.2)": ""}"""
)
"""What ftfy 6.3.1 makes of texts; empty: the same."""


@pytest.mark.parametrize("text", PLAIN)
def test_characters_become_plain_as_by_ftfy(text: str) -> None:
    assert plain_text(text) == (PLAIN[text] or text)


@pytest.mark.parametrize("run", ["\u0301" * 30_000 + "\u0316" * 30_000, "\u0f73" * 30_000])
def test_many_combining_characters_in_a_row_take_no_time(run: str) -> None:
    assert len(plain_text(f"a{run}b")) <= 32
    assert least_cpu_s(lambda: plain_text(f"a{run}b")) < 1.0


def test_those_that_are_kept_are_composed() -> None:
    assert plain_text("a" + "\u0301" * 30_000)[0] == "\u00e1"
    assert plain_text("\u0f40\u0f73") == unicodedata.normalize("NFC", "\u0f40\u0f73")


def test_every_run_of_combining_characters_is_cut() -> None:
    """Of each character, also of those that a later Unicode may have."""
    for code in range(sys.maxunicode + 1):
        composed = unicodedata.normalize("NFD", chr(code))
        if unicodedata.combining(composed[0]):
            assert len(plain_text(chr(code) * 90)) <= 62, hex(code)
