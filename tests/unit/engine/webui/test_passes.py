"""The hires fix."""

from __future__ import annotations

from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from tests.support.engine.diffusion_requests import compiled, field_errors, graph_of, kinds


@pytest.mark.parametrize(
    ("upscaler", "expected"),
    [
        ("", ["WebUILatentUpscale"]),
        ("Latent", ["WebUILatentUpscale"]),
        ("latent (bicubic antialiased)", ["WebUILatentUpscale"]),
        ("Lanczos", ["VAEDecode", "ImageScale", "VAEEncode"]),
        ("None", ["VAEDecode", "ImageScale", "VAEEncode"]),
    ],
)
def test_hires_fix_samples_again_at_the_larger_size(
    models: Catalogue, upscaler: str, expected: list[str]
) -> None:
    graph = graph_of(
        models,
        enable_hr=True,
        hr_upscaler=upscaler,
        hr_second_pass_steps=7,
        denoising_strength=0.5,
        batch_size=2,
    )
    every = kinds(graph)
    assert every.count("KSampler") == 4
    assert every.count("CheckpointLoaderSimple") == 1
    for kind in set(expected):
        assert every.count(kind) == 2 * expected.count(kind) + (2 if kind == "VAEDecode" else 0)
    second = graph.node("hires-sample-1")
    assert (second.literals["steps"], second.literals["denoise"]) == (7, 0.5)
    assert graph.node("larger-1").literals["width"] == 128
    assert graph.seed_of("save-1") == second.literals["seed"] == 6
    assert graph.total_steps == 2 * (20 + 7)
    assert graph.node("hires-text").literals["steps_before"] == 20


def test_hires_fix_takes_an_upscale_model(models: Catalogue) -> None:
    prompt = compiled(models, enable_hr=True, hr_upscaler="4x").prompt
    validate(prompt, models, Limits())
    assert prompt["upscaler"]["inputs"]["model_name"] == "4x.safetensors"
    assert prompt["upscaled-0"]["inputs"]["image"] == ["small-0", 0]
    assert prompt["larger-0"]["inputs"]["image"] == ["upscaled-0", 0]
    unknown = field_errors(models, enable_hr=True, hr_upscaler="nope")["hr_upscaler"]
    assert "Latent (bicubic)" in unknown
    assert "4x.safetensors" in unknown


@pytest.mark.parametrize(
    ("size", "expected", "crop"),
    [
        ({}, (192, 128), "disabled"),
        ({"hr_scale": 1.3}, (120, 80), "disabled"),
        ({"hr_resize_x": 240}, (240, 160), "disabled"),
        ({"hr_resize_y": 200}, (296, 200), "disabled"),
        ({"hr_resize_x": 128, "hr_resize_y": 128}, (128, 128), "center"),
    ],
)
def test_hires_size(
    models: Catalogue, size: dict[str, Any], expected: tuple[int, int], crop: str
) -> None:
    larger = graph_of(models, width=96, enable_hr=True, **size).node("larger-0").literals
    assert (larger["width"], larger["height"], larger["crop"]) == (*expected, crop)


def test_hires_fix_may_have_texts_sampler_and_models_of_its_own(models: Catalogue) -> None:
    graph = graph_of(
        models,
        prompt="a <lora:ink>",
        enable_hr=True,
        hr_prompt="b <lora:grain>",
        hr_negative_prompt="c",
        hr_sampler_name="Euler a",
        hr_scheduler="Karras",
        hr_checkpoint_name="other",
        hr_upscaler="Nearest",
    )
    text = graph.node("hires-text").literals
    assert (text["text"], text["negative_text"]) == ("b ", "c")
    second = graph.node("hires-sample-0")
    assert (second.literals["sampler_name"], second.literals["scheduler"]) == (
        "euler_ancestral",
        "karras",
    )
    assert second.links["model"].node_id == "hires-lora-0"
    assert graph.node("small-0").links["vae"].node_id == "checkpoint"
    assert graph.node("encode-0").links["vae"].node_id == "hires-checkpoint"
    assert graph.node("decode-0").links["vae"].node_id == "hires-checkpoint"


def test_words_for_the_same_again_are_understood(models: Catalogue) -> None:
    same = {
        "hr_sampler_name": "Use same sampler",
        "hr_scheduler": "Use same scheduler",
        "hr_checkpoint_name": "Use same checkpoint",
    }
    assert compiled(models, enable_hr=True, **same) == compiled(models, enable_hr=True)


def test_what_hires_fix_says_counts_only_where_it_is_on(models: Catalogue) -> None:
    assert compiled(models, hr_scale=3, hr_upscaler="nope", denoising_strength=0.1) == compiled(
        models
    )


def test_limits_count_both_passes(models: Catalogue) -> None:
    body = {"enable_hr": True, "steps": 6, "hr_second_pass_steps": 5}
    assert "steps" in field_errors(models, Limits(max_steps=10), **body)
    compiled(models, Limits(max_steps=11), **body)
    pixels = 64 * 64 + 128 * 128
    assert "width" in field_errors(models, Limits(max_pixels=pixels - 1), **body)
    compiled(models, Limits(max_pixels=pixels), **body)
    assert {"hr_resize_x", "hr_resize_y"} <= field_errors(
        models, Limits(max_side=127), **body
    ).keys()
