from __future__ import annotations

import json
from typing import Any

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.webui.compiler import compile_parameters
from engine.webui.infotext.writing import infotext
from engine.webui.parameters import parse_parameters
from tests.support.engine.workflows import TINY


def text_of(catalogue: Catalogue, index: int = 0, **body: Any) -> str:
    parameters = parse_parameters({"prompt": "a red circle", "seed": 7, **body})
    compiled = compile_parameters(parameters, catalogue, Limits(), default_checkpoint=TINY)
    return infotext(parameters, compiled, index, "1.2")


def test_a_plain_request_is_told_in_the_webuis_order(empty_catalogue: Catalogue) -> None:
    assert text_of(empty_catalogue) == (
        "a red circle\n"
        "Steps: 20, Sampler: Euler, Schedule type: Automatic, CFG scale: 7, Seed: 7, "
        "Size: 512x512, Model: darkroom-tiny, Version: Darkroom 1.2"
    )


def test_each_image_of_a_batch_has_its_seed(empty_catalogue: Catalogue) -> None:
    assert "Seed: 9," in text_of(empty_catalogue, index=2, batch_size=3)


def test_what_was_asked_for_is_told(empty_catalogue: Catalogue) -> None:
    text = text_of(
        empty_catalogue,
        negative_prompt="blurred",
        sampler_name="DPM++ 2M Karras",
        cfg_scale=5.5,
        clip_skip=2,
        enable_hr=True,
        hr_scale=1.5,
        hr_prompt="a red, round circle",
        hr_second_pass_steps=5,
        hr_sampler_name="Euler a",
        hr_scheduler="karras",
        denoising_strength=0.4,
    )
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
    resized = text_of(empty_catalogue, enable_hr=True, hr_resize_x=768)
    assert "Hires resize: 768x0" in resized
    assert "Hires upscale:" not in resized


def test_in_the_webuis_sense_it_tells_what_the_noise_depends_on(empty_catalogue: Catalogue) -> None:
    settings = {"sgm_noise_multiplier": True, "enable_quantization": True, "emphasis": "No norm"}
    body = {"compatibility": "webui", "sampler_name": "DPM++ 2M", "override_settings": settings}
    text = text_of(empty_catalogue, **body)
    assert "Sampler: DPM++ 2M, Schedule type: Karras," in text
    assert (
        "RNG: CPU, SGM noise multiplier: True, Discard timestep fractions: True, Emphasis: No norm"
    ) in text
