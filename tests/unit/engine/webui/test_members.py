"""Members that the WebUI's clients send along."""

from __future__ import annotations

from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from tests.support.engine.diffusion_requests import compiled, field_errors

SENT_ALONG: dict[str, Any] = {
    "styles": [],
    "subseed": -1,
    "subseed_strength": 0,
    "seed_resize_from_h": -1,
    "seed_resize_from_w": 0,
    "n_iter": 1,
    "restore_faces": False,
    "tiling": False,
    "do_not_save_samples": False,
    "do_not_save_grid": True,
    "eta": None,
    "s_min_uncond": 0.0,
    "s_churn": 0,
    "s_tmax": None,
    "s_tmin": 0.0,
    "s_noise": 1.0,
    "override_settings": {},
    "override_settings_restore_afterwards": True,
    "refiner_checkpoint": None,
    "refiner_switch_at": None,
    "disable_extra_networks": False,
    "firstpass_image": None,
    "comments": {},
    "enable_hr": False,
    "firstphase_width": 0,
    "firstphase_height": 0,
    "hr_scale": 2,
    "hr_upscaler": None,
    "hr_second_pass_steps": 0,
    "hr_resize_x": 0,
    "hr_resize_y": 0,
    "hr_checkpoint_name": None,
    "hr_sampler_name": None,
    "hr_scheduler": None,
    "hr_prompt": "",
    "hr_negative_prompt": "",
    "force_task_id": None,
    "sampler_index": "Euler",
    "script_name": "",
    "script_args": [],
    "send_images": True,
    "save_images": False,
    "alwayson_scripts": {},
    "infotext": None,
    "denoising_strength": 0.7,
    "sampler_name": None,
    "scheduler": None,
}


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
        ("nonsense", None),
    ],
)
def test_a_wish_that_is_not_supported_is_named(models: Catalogue, name: str, value: Any) -> None:
    assert "supported" in field_errors(models, **{name: value})[name]


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
        {"override_settings": {"randn_source": "CPU", "samples_format": "png"}},
        {"override_settings": {"save_images_add_number": True, "samples_save": False}},
        {"override_settings": {"live_previews_enable": False, "emphasis": "Original"}},
    ],
    ids=str,
)
def test_what_says_the_same_as_nothing_is_taken(models: Catalogue, sent: dict[str, Any]) -> None:
    for compatibility in ("webui", "comfyui"):
        body = {"compatibility": compatibility, "steps": 20}
        assert compiled(models, **body, **sent).prompt == compiled(models, **body).prompt


@pytest.mark.parametrize(
    "setting", [{"randn_source": "GPU"}, {"samples_format": "jpg"}, {"tiling": True}], ids=str
)
def test_a_setting_that_says_otherwise_is_named(models: Catalogue, setting: dict[str, Any]) -> None:
    ((name, _),) = setting.items()
    errors = field_errors(models, override_settings=setting)
    assert "supported" in errors.get(f"override_settings.{name}", errors.get(name, ""))
