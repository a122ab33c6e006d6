"""The text that the WebUI writes into an image: written, and read back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from engine.graph.catalogue import Catalogue
from engine.webui.infotext import read_infotext
from engine.webui.parameters import parse_parameters
from tests.support.engine.diffusion_requests import compiled, text_of_image
from tests.support.patience import least_cpu_s


def text_of(catalogue: Catalogue, index: int = 0, **body: Any) -> str:
    asked = {"prompt": "a red circle", "seed": 7, "width": None, "height": None}
    return text_of_image(catalogue, index, version="1.2", **asked | body)


def test_a_plain_request_is_told_in_the_webuis_order(models: Catalogue) -> None:
    assert text_of(models) == (
        "a red circle\n"
        "Steps: 20, Sampler: Euler, Schedule type: Automatic, CFG scale: 7, Seed: 7, "
        "Size: 512x512, Model: darkroom-tiny, Version: Darkroom 1.2"
    )


def test_what_was_asked_for_is_told(models: Catalogue) -> None:
    first = {"sampler_name": "DPM++ 2M Karras", "cfg_scale": 5.5, "clip_skip": 2}
    second = {"hr_prompt": "a red, round circle", "hr_scale": 1.5, "hr_second_pass_steps": 5}
    second |= {"hr_sampler_name": "Euler a", "hr_scheduler": "karras", "denoising_strength": 0.4}
    text = text_of(models, negative_prompt="blurred", **first, enable_hr=True, **second)
    prompt, negative, settings = text.split("\n")
    assert (prompt, negative) == ("a red circle", "Negative prompt: blurred")
    for piece in (
        "Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 5.5",
        "Denoising strength: 0.4",
        f"Hires prompt: {json.dumps('a red, round circle')}",
        "Hires upscale: 1.5",
        "Hires steps: 5",
        "Hires upscaler: Latent",
        "Hires sampler: Euler a",
        "Hires schedule type: Karras",
        "Clip skip: 2",
    ):
        assert f", {piece}," in f", {settings},"
    resized = text_of(models, enable_hr=True, hr_resize_x=768)
    assert "Hires resize: 768x0" in resized
    assert "Hires upscale:" not in resized


def test_in_the_webuis_sense_it_tells_what_the_noise_depends_on(models: Catalogue) -> None:
    settings = {"sgm_noise_multiplier": True, "enable_quantization": True, "emphasis": "No norm"}
    settings |= {"randn_source": "NV"}
    body = {"compatibility": "webui", "sampler_name": "DPM++ 2M", "override_settings": settings}
    text = text_of(models, **body)
    assert "Sampler: DPM++ 2M, Schedule type: Karras," in text
    assert (
        "RNG: NV, SGM noise multiplier: True, Discard timestep fractions: True, Emphasis: No norm"
    ) in text


GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "infotexts.json").read_text())
TEXTS = GOLDEN["found"] + GOLDEN["made"]
"""Texts as they are found in public, without what names anybody; and forms that they lack."""


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_from_a_webui_is_taken_whole(text: str) -> None:
    read = read_infotext(text)
    parameters = parse_parameters(read.request)
    settings = text[text.rindex("\nSteps: ") :]
    assert f"Steps: {parameters.steps}, Sampler: {parameters.sampler_name}" in settings
    assert re.search(rf"Seed: {parameters.seed}\b", settings)
    if parameters.varies:
        assert f"Variation seed: {parameters.subseed}" in settings
    assert f"Size: {parameters.width}x{parameters.height}" in settings
    assert text.startswith(parameters.prompt)
    assert parameters.enable_hr == ("Hires up" in settings)


WITHOUT_A_PART = re.compile(
    r"(ADetailer|Batch|Civitai|ControlNet|Dynamic thresholding|Face restoration|Hires (CFG|Module)"
    r"|Init image|Inpaint area|Mask|Mimic scale|Module|TIPO|Tiled Diffusion|Token merging|X ).*"
    r"|(Model|VAE) hash|(Lora|TI) hashes|Hashes|Version|Created Date|Conditional mask weight"
    r"|Distilled CFG Scale|Script|Shift|Style|Sugar-crush|(Negative )?Template|Used embeddings"
    r"|Pad conds"
)


def test_what_has_no_part_in_a_request_is_named() -> None:
    for text in TEXTS:
        for name in read_infotext(text).left_out:
            assert WITHOUT_A_PART.fullmatch(name)


def test_settings_may_be_broken_into_lines_and_hold_json() -> None:
    settings = 'Steps: 2, Sampler: Euler, Extra: {"a": "b, Seed: 5"},\nSeed: 7\nTemplate: y'
    read = read_infotext(f"x\n{settings}")
    assert (read.request["prompt"], read.request["seed"]) == ("x", 7)
    assert read.left_out == {"Extra": '{"a": "b, Seed: 5"}', "Template": "y"}
    for broken in ('{"a": ', "[" * 100_000, '"\\m'):
        assert read_infotext(f"x\nSteps: 2, Sampler: Euler, Y: {broken}").request["steps"] == 2


def test_empty_lines_take_no_time() -> None:
    text = "x\nSteps: 2" + "\n" * 50_000 + "\n Seed: 7, Eta: 1"
    assert read_infotext(text).request["seed"] == 7
    assert least_cpu_s(lambda: read_infotext(text)) < 1.0


def test_texts_and_settings_are_told_apart() -> None:
    read = read_infotext("a dog\nNegative prompt: a cat,\nSteps: many")
    assert read.request["negative_prompt"] == "a cat,\nSteps: many"
    assert read_infotext("").request["prompt"] == ""
    assert read_infotext("x\nSteps: many, Sampler: Euler, Seed: 1").left_out == {"Steps": "many"}


@pytest.mark.parametrize(
    "body",
    [
        {"sampler_name": "DPM++ 2M", "clip_skip": 2, "eta": 0.5},
        {"enable_hr": True, "hr_prompt": 'a "red", circle', "hr_sampler_name": "DDIM"},
        {"enable_hr": True, "hr_sampler_name": "DPM++ 2M"},
        {"enable_hr": True, "hr_resize_x": 1024, "hr_resize_y": 768, "hr_upscaler": "Lanczos"},
        {
            "scheduler": "KL Optimal",
            "override_settings": {"sgm_noise_multiplier": True, "eta_noise_seed_delta": 5},
        },
        {"override_settings": {"randn_source": "NV"}},
        {"override_settings": {"randn_source": "CPU"}},
    ],
    ids=str,
)
def test_our_own_text_describes_the_same_pictures(models: Catalogue, body: dict[str, Any]) -> None:
    asked = {"prompt": "a dog", "negative_prompt": "b", "compatibility": "webui", **body}
    again = parse_parameters(read_infotext(text_of_image(models, **asked)).request)
    found = compiled(models, **again.recorded())
    assert found.prompt == compiled(models, **asked).prompt


def test_the_command_names_what_no_request_may_say() -> None:
    wrong = CliRunner().invoke(app, ["infotext"], input="x\nSteps: 1, Sampler: Nope, Seed: 1")
    assert wrong.exit_code == 0
    assert "left out: Sampler" in wrong.stderr
    assert json.loads(wrong.stdout)["seed"] == 1
