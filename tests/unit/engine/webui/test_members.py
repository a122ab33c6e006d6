"""Members that the WebUI's clients send along, and those that only the WebUI has."""

from __future__ import annotations

from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.webui.diffusion_request import with_seed
from engine.webui.infotext import read_infotext
from engine.webui.parameters import parse_parameters
from tests.support.engine.diffusion_requests import (
    compiled,
    field_errors,
    graph_of,
    kinds,
    text_of_image,
)

SENT_ALONG: dict[str, Any] = {
    "styles": [],
    "script_args": [],
    "override_settings": {},
    "comments": {},
    "alwayson_scripts": {},
    **dict.fromkeys(("restore_faces", "tiling", "enable_hr", "disable_extra_networks"), False),
    **dict.fromkeys(("do_not_save_samples", "save_images"), False),
    **dict.fromkeys(("do_not_save_grid", "send_images"), True),
    "override_settings_restore_afterwards": True,
    **dict.fromkeys(("subseed", "seed_resize_from_h"), -1),
    **dict.fromkeys(("subseed_strength", "seed_resize_from_w", "s_churn", "s_tmin"), 0),
    **dict.fromkeys(("firstphase_width", "firstphase_height", "hr_second_pass_steps"), 0),
    **dict.fromkeys(("hr_resize_x", "hr_resize_y"), 0),
    **dict.fromkeys(("eta", "s_tmax", "refiner_checkpoint", "refiner_switch_at"), None),
    **dict.fromkeys(("firstpass_image", "hr_upscaler", "hr_checkpoint_name"), None),
    **dict.fromkeys(("hr_sampler_name", "hr_scheduler", "force_task_id", "infotext"), None),
    **dict.fromkeys(("sampler_name", "scheduler"), None),
    **dict.fromkeys(("hr_prompt", "hr_negative_prompt", "script_name"), ""),
    **dict.fromkeys(("n_iter", "s_noise"), 1),
    "s_min_uncond": 0.0,
    "hr_scale": 2,
    "sampler_index": "Euler",
    "denoising_strength": 0.7,
}


WEBUI: dict[str, Any] = {"compatibility": "webui", "steps": 20}


def test_what_the_webuis_clients_send_by_default_changes_nothing(models: Catalogue) -> None:
    assert compiled(models, **SENT_ALONG) == compiled(models)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subseed_strength", 0.5),
        ("restore_faces", True),
        ("tiling", True),
        ("s_noise", 1.1),
        ("s_churn", 1),
        ("s_min_uncond", 1),
        ("refiner_checkpoint", "x"),
        ("script_name", "x/y plot"),
        ("alwayson_scripts", {"controlnet": {"args": [{"enabled": True, "model": "x"}]}}),
        ("alwayson_scripts", {"controlnet": {"args": [{"model": "x"}]}}),
        ("alwayson_scripts", {"Seed": {"args": [6, False, -1, 0, 0, 0]}}),
        ("alwayson_scripts", {"Refiner": {"args": [True, "other", 0.5]}}),
        ("alwayson_scripts", {"Extra options": {"args": ["x"]}}),
        ("alwayson_scripts", {"ADetailer": {"args": [True, {"ad_model": "face.pt"}]}}),
        ("nonsense", 1),
        ("nonsense", 0),
        ("nonsense", "x"),
        ("nonsense", [False, {"a": "x"}]),
        ("hr_nonsense", 0.5),
        ("override_settings.nonsense", "x"),
        ("override_settings.uni_pc_lower_order_final", False),
        ("override_settings.samples_format", "jpg"),
        ("override_settings.tiling", True),
    ],
)
def test_a_wish_that_is_not_supported_is_named(models: Catalogue, name: str, value: Any) -> None:
    member, _, setting = name.partition(".")
    body = {member: {setting: value} if setting else value, "enable_hr": member[:3] == "hr_"}
    errors = field_errors(models, **body)
    assert "supported" in errors.get(name, errors.get(setting, ""))


@pytest.mark.parametrize(
    "sent",
    [
        {"override_settings_restore_afterwards": False},
        {"subseed": 12345, "subseed_strength": 0},
        {"refiner_checkpoint": "None", "refiner_switch_at": 0.8},
        {"scheduler": "", "sampler_name": ""},
        {"sampler_index": ""},
        {"alwayson_scripts": {"controlnet": {"args": []}, "refiner": {}}},
        {"alwayson_scripts": {"ControlNet": {"args": [{"enabled": False, "model": "None"}, None]}}},
        {"alwayson_scripts": {"ADetailer": {"args": [False, {"ad_model": "face.pt"}]}}},
        {"override_settings": {f"save_{place}": True for place in range(50)}},
        {"force_task_id": "task(abc)"},
        {"eta": 0},
        {"styles": ["", None, "None"]},
        {"styles": ""},
        {"enable_hr": False, "hr_upscaler": "?", "hr_sampler_name": "?", "hr_scheduler": "?"},
        {"enable_hr": "false", "hr_checkpoint_name": "?", "hr_scale": 0, "hr_resize_x": -1},
        {"hr_cfg": 2.5, "hr_prompt": ["?"], "hr_additional_modules": ["t5.safetensors"]},
        {"denoising_strength": -1, "init_images": []},
        {"resize_mode": -1, "mask": "", "mask_blur": -4, "inpainting_fill": 9, "mask_round": False},
        {"refiner_checkpoint": "none", "refiner_switch_at": 80},
        {"s_churn": 0, "s_tmin": -1, "s_tmax": 1e12},
        {"script_name": "None", "script_args": [1, "x"]},
        {"script_name": "", "script_args": [0], "alwayson_scripts": {"any": None}},
        {"alwayson_scripts": {"Extra options": {"args": []}, "Refiner": {"args": [False, "x", 1]}}},
        {"alwayson_scripts": {"Refiner": {"args": [True, "None", 0.8]}}},
        {"alwayson_scripts": {"seed": {"args": [5, True, -1, 0, 0, 0]}}},
        {"alwayson_scripts": {"Seed": {"args": [-1, False, 7, 0.5, 64, 64]}}},
        {"alwayson_scripts": {"Sampler": {"args": [20, "Euler", "Automatic"]}}},
        {"alwayson_scripts": {"ADetailer": {"args": [True, False, {"ad_model": "None"}]}}},
        {"alwayson_scripts": {"AnimateDiff": {"args": [{"enable": False, "model": "x"}]}}},
        {"alwayson_scripts": {"ControlNet": {"args": [{"enabled": "false", "model": "x"}]}}},
        {"alwayson_scripts": {"ControlNet": {"args": [{"model": "None", "module": "none"}]}}},
        {"sd_model_checkpoint": "None", "override_settings": {"sd_vae": "automatic"}},
        {"sampler_index": "None", "scheduler": "none"},
        {"alwayson_scripts": {"other": {"args": [-1, None, "", "None", [], {}]}}},
        {"seed_enable_extras": True, "prompt_for_display": None, "do_not_reload_embeddings": True},
        {"outpath_samples": "out", "outpath_grids": "out"},
        {"firstphase_width": -1, "tiling": "", "override_settings": [], "comments": ""},
        {**dict.fromkeys(("x1", "x2"), False), "x3": None, "x4": "", "x5": -1, "x6": [], "x7": {}},
        {"x": [None, "", {"y": False}], "z": "none"},
        {"override_settings": {"x": "", "sd_hypernetwork": "None", "y": False, "randn_source": ""}},
        {"override_settings": {f"x{number}": None for number in range(50)}},
        {"override_settings": {"randn_source": "GPU", "samples_format": "png"}},
        {"override_settings": {"save_images_add_number": True, "samples_save": False}},
        {"override_settings": {"live_previews_enable": False, "emphasis": "Original"}},
    ],
    ids=str,
)
def test_what_says_the_same_as_nothing_is_taken(models: Catalogue, sent: dict[str, Any]) -> None:
    for compatibility in ("webui", "comfyui"):
        body = {"compatibility": compatibility, "steps": 20, "sampler_name": "Euler"}
        assert compiled(models, **body | sent).prompt == compiled(models, **body).prompt


def test_members_of_a_mask_have_no_effect_without_a_mask(models: Catalogue) -> None:
    body = {**WEBUI, "init_images": ["cat.png"]}
    sent = {"mask": None, "mask_blur": -1, "inpainting_fill": 9, "inpaint_full_res_padding": -1}
    assert compiled(models, **body, **sent).prompt == compiled(models, **body).prompt
    errors = field_errors(models, **body | sent | {"mask": "mask.png"})
    assert set(errors) == sent.keys() - {"mask"}


def samplers_of(catalogue: Catalogue, **body: Any) -> list[dict[str, Any]]:
    graph = graph_of(catalogue, **WEBUI | body)
    return [dict(each.literals) for each in graph.nodes if each.class_type == "WebUISampler"]


def test_variations_share_the_seed(models: Catalogue) -> None:
    body = {"subseed": 100, "subseed_strength": 0.2, "batch_size": 3, "enable_hr": True}
    found = samplers_of(models, **body)
    assert [each["seed"] for each in found] == [5] * 6
    assert sorted(each["subseed"] for each in found) == [100, 100, 101, 101, 102, 102]
    assert {each["subseed_strength"] for each in found} == {0.2}
    assert compiled(models, **WEBUI | body).seeds == (5, 5, 5)
    without = samplers_of(models, subseed=100, subseed_strength=0, batch_size=2)
    assert [each["seed"] for each in without] == [5, 6]
    assert not any("subseed" in each for each in without)


def test_a_negative_variation_seed_is_drawn_where_it_counts() -> None:
    seeds = iter((11, 22))
    varied = parse_parameters({**WEBUI, "subseed_strength": 0.1})
    drawn = with_seed(varied, lambda: next(seeds))
    assert (drawn.seed, drawn.subseed) == (11, 22)
    assert drawn.recorded()["subseed"] == 22
    plain = with_seed(parse_parameters({**WEBUI, "seed": 1}), lambda: 33)
    assert (plain.seed, plain.subseed) == (1, -1)


def test_noise_of_another_size_needs_both_sides(models: Catalogue) -> None:
    (found,) = samplers_of(models, seed_resize_from_w=512, seed_resize_from_h=256)
    assert (found["seed_resize_from_w"], found["seed_resize_from_h"]) == (512, 256)
    for sides in ((512, -1), (0, 512), (-1, -1)):
        one = dict(zip(("seed_resize_from_w", "seed_resize_from_h"), sides, strict=True))
        assert samplers_of(models, **one) == samplers_of(models)


def test_tiling_is_for_every_model_of_the_request(models: Catalogue) -> None:
    body = {"tiling": True, "enable_hr": True, "hr_checkpoint_name": "other"}
    graph = graph_of(models, **WEBUI | body)
    assert kinds(graph).count("WebUITiling") == 2
    assert graph.node("sample-0").links["model"].node_id == "tiling"
    assert graph.node("hires-sample-0").links["model"].node_id == "hires-tiling"
    assert graph.node("decode-0").links["vae"].node_id == "hires-tiling"
    as_setting = graph_of(models, **WEBUI, override_settings={"tiling": True})
    assert "WebUITiling" in kinds(as_setting)


def test_a_refiner_is_for_the_last_pass(models: Catalogue) -> None:
    body = {"refiner_checkpoint": "other", "refiner_switch_at": 0.7, "prompt": "a <lora:grain:1>"}
    (found,) = samplers_of(models, **body)
    assert found["refiner_switch_at"] == 0.7
    graph = graph_of(models, **WEBUI | body)
    sampler, text = graph.node("sample-0"), graph.node("refiner-text")
    assert sampler.links["refiner_model"].node_id == "refiner-lora-0"
    assert graph.node("refiner-checkpoint").literals["ckpt_name"] == "other.safetensors"
    assert sampler.links["refiner_positive"].node_id == "refiner-text"
    assert text.links["clip"].node_id == "refiner-lora-0"
    assert text.links["model"].node_id == "lora-0"  # whose schedule it follows
    assert graph.node("decode-0").links["vae"].node_id == "refiner-checkpoint"
    second = graph_of(models, **WEBUI | body, enable_hr=True)
    assert "refiner_model" not in second.node("sample-0").links
    assert "refiner_model" in second.node("hires-sample-0").links


def test_a_refiner_that_is_the_model_changes_nothing(models: Catalogue) -> None:
    for name in ("", "None", "darkroom-tiny"):
        assert samplers_of(models, refiner_checkpoint=name) == samplers_of(models)
    errors = field_errors(models, **WEBUI, refiner_checkpoint="nope")
    assert "not known" in errors["refiner_checkpoint"]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        ("Euler", {"s_churn", "s_tmin", "s_tmax", "s_noise", "s_min_uncond"}),
        ("DPM2", {"s_churn", "s_tmin", "s_tmax", "s_noise", "s_min_uncond"}),
        ("Euler a", {"s_min_uncond"}),
        ("LCM", {"s_min_uncond"}),
        ("Restart", {"s_min_uncond"}),
        ("DPM adaptive", {"s_min_uncond"}),
        ("DPM fast", {"s_noise", "s_min_uncond"}),
        ("DPM2 a", {"s_noise", "s_min_uncond"}),
        ("DPM++ 3M SDE", {"s_noise", "s_min_uncond"}),
        ("DPM++ SDE", {"s_noise", "s_min_uncond"}),
        ("DPM++ 2M", {"s_min_uncond"}),
        ("DDIM", {"s_min_uncond"}),
    ],
)
def test_a_sampler_gets_its_own_members(
    models: Catalogue, sampler: str, expected: set[str]
) -> None:
    asked = {"s_churn": 5, "s_tmin": 0.1, "s_tmax": 9, "s_noise": 1.1, "s_min_uncond": 2}
    (found,) = samplers_of(models, sampler_name=sampler, **asked)
    assert {name for name in found if name in asked} == expected
    assert all(found[name] == asked[name] for name in expected)
    by_setting = samplers_of(models, sampler_name=sampler, override_settings=asked)
    assert by_setting == [found]
    others = dict.fromkeys(asked, 3)
    assert samplers_of(models, sampler_name=sampler, **asked, override_settings=others) == [found]


def test_a_member_without_effect_is_not_in_the_text(models: Catalogue) -> None:
    body = {**WEBUI, "s_noise": 1.5, "s_churn": 3}
    assert "Sigma" not in text_of_image(models, 0, sampler_name="Euler a", **body)
    assert "Sigma noise: 1.5" in text_of_image(models, 0, sampler_name="DPM++ SDE", **body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"subseed": 9, "subseed_strength": 0.25}, "Variation seed: 10, Variation seed strength:"),
        ({"seed_resize_from_w": 512, "seed_resize_from_h": 256}, "Seed resize from: 512x256"),
        ({"tiling": True}, "Tiling: True"),
        ({"refiner_checkpoint": "other"}, "Refiner: other, Refiner switch at: 0.8"),
        ({"sampler_name": "Euler", "s_churn": 3, "s_tmax": 5}, "Sigma churn: 3, Sigma tmax: 5"),
        ({"s_noise": 1.5, "s_min_uncond": 2}, "Sigma noise: 1.5, NGMS: 2"),
    ],
)
def test_the_text_in_a_png_is_read_back(models: Catalogue, body: dict[str, Any], told: str) -> None:
    asked = {**WEBUI, "batch_size": 2, **body}
    text = text_of_image(models, 1, **asked)
    assert told in text
    again = parse_parameters({**read_infotext(text).request, "sd_model_checkpoint": None})
    alone = compiled(models, **again.recorded()).prompt
    assert alone["sample-0"] == compiled(models, **asked).prompt["sample-1"]
