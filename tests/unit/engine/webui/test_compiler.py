"""Diffusion requests, compiled to valid graphs, with the hires fix."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from tests.support.engine.diffusion_requests import compiled, field_errors, graph_of, kinds
from tests.support.engine.workflows import TINY


def test_a_plain_request_is_the_usual_workflow(models: Catalogue) -> None:
    graph = graph_of(models)
    assert kinds(graph) == [
        "CheckpointLoaderSimple",
        "WebUITextEncode",
        "EmptyLatentImage",
        "KSampler",
        "VAEDecode",
        "SaveImage",
    ]


def test_more_batches_go_on_with_the_seeds(models: Catalogue) -> None:
    last = 2**64 - 1
    found = compiled(models, seed=last - 1, batch_size=2, n_iter=3)
    graph = validate(found.prompt, models, Limits())
    assert found.seeds == (last - 1, last, 0, 1, 2, 3)
    assert [graph.seed_of(name) for name in found.first_index] == list(found.seeds)
    assert list(found.first_index.values()) == [0, 1, 2, 3, 4, 5]
    assert "batch_size" in field_errors(models, Limits(max_batch=5), batch_size=2, n_iter=3)


def test_loras_come_out_of_the_prompt_into_the_graph(models: Catalogue) -> None:
    prompt = "a <lora:ink:0.5>dog<lora:grain:0.25:0.75> <lora:styles/ink:unet=2>"
    graph = graph_of(models, prompt=prompt)
    loaded = [node.literals for node in graph.nodes if node.class_type == "LoraLoader"]
    assert [tuple(each.values()) for each in loaded] == [
        ("styles/ink.safetensors", 0.5, 0.5),
        ("grain.safetensors", 0.75, 0.25),
        ("styles/ink.safetensors", 2.0, 1.0),
    ]
    assert graph.node("text").literals["text"] == "a dog "
    assert graph.node("text").links["clip"].node_id == "lora-2"
    assert graph.node("sample-0").links["model"].node_id == "lora-2"
    assert graph.node("lora-1").links["model"].node_id == "lora-0"


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("<lora:nope:1>", "styles/ink.safetensors"),
        ("<lora:ink:much>", "much"),
        ("<lora:ink:1e9>", "beyond"),
        ("<lora:ink:1:1:1>", "not a valid weight"),
        ("<lora:ink:dyn=1>", "not a valid weight"),
        ("<hypernet:x:1>", "<hypernet:x:1>"),
        ("<lora:ink:1>" * 17, "17"),
        ("<lora:ink:0." + "1" * 40 + ">", "at most 40"),
        ("<lora:nope>" * 17, "17 LoRAs"),
        ("(x:1.2.3)", "1.2.3"),
    ],
)
def test_a_bad_prompt_is_a_bad_field(models: Catalogue, prompt: str, shown: str) -> None:
    assert shown in field_errors(models, prompt=prompt)["prompt"]
    assert shown in field_errors(models, enable_hr=True, hr_prompt=prompt)["hr_prompt"]


def test_a_bad_prompt_in_a_workflow_is_refused_too(models: Catalogue) -> None:
    prompt = compiled(models).prompt
    prompt["text"]["inputs"]["negative_text"] = "(x:1.2.3)"
    with pytest.raises(GraphInvalid) as caught:
        validate(prompt, models, Limits())
    (error,) = caught.value.body()["node_errors"]["text"]["errors"]
    assert error["type"] == "custom_validation_failed"
    assert "negative_text: '1.2.3'" in error["details"]


def test_override_settings_reach_their_nodes(models: Catalogue) -> None:
    checkpoint = {"sd_model_checkpoint": "other", "sd_vae": "soft.safetensors"}
    settings = {**checkpoint, "CLIP_stop_at_last_layers": 3}
    graph = graph_of(models, clip_skip=2, sd_model_checkpoint=TINY, override_settings=settings)
    assert graph.node("checkpoint").literals["ckpt_name"] == "other.safetensors"
    assert graph.node("clip").literals["stop_at_clip_layer"] == -3
    assert graph.node("decode-0").links["vae"].node_id == "vae"
    for own in ("Automatic", "None", None):
        assert "vae" not in compiled(models, override_settings={"sd_vae": own}).prompt
    unknown = field_errors(models, override_settings={"sd_vae": "nope"})
    assert "soft.safetensors" in unknown["override_settings.sd_vae"]


def test_clip_skip_counts_layers_from_the_last(models: Catalogue) -> None:
    assert graph_of(models, clip_skip=12).node("clip").literals["stop_at_clip_layer"] == -12


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"sampler_name": "EULER A", "scheduler": "kl optimal"}, ("euler_ancestral", "kl_optimal")),
        ({"sampler_name": "dpm++ 2m", "scheduler": "Automatic"}, ("dpmpp_2m", "karras")),
        ({"sampler_name": "LMS  sgm uniform"}, ("lms", "sgm_uniform")),
    ],
    ids=str,
)
def test_names_of_any_spelling_reach_the_sampler(
    models: Catalogue, body: dict[str, str], expected: tuple[str, str]
) -> None:
    literals = graph_of(models, **body).node("sample-0").literals
    assert (literals["sampler_name"], literals["scheduler"]) == expected


def test_a_noise_seed_delta_is_for_samplers_that_draw_at_each_step(models: Catalogue) -> None:
    settings = {"eta_noise_seed_delta": 31337}
    for sampler, kind in (("Euler a", "WebUISampler"), ("Euler", "KSampler")):
        sample = graph_of(models, sampler_name=sampler, override_settings=settings).node("sample-0")
        assert sample.class_type == kind
        assert sample.literals.get("eta_noise_seed_delta", 31337) == 31337


@pytest.mark.parametrize(
    "name", ["other", "other.safetensors", "other.safetensors [6ce0161689]", "other [6ce]"]
)
def test_a_checkpoint_is_known_by_each_of_its_spellings(models: Catalogue, name: str) -> None:
    checkpoint = graph_of(models, sd_model_checkpoint=name).node("checkpoint")
    assert checkpoint.literals["ckpt_name"] == "other.safetensors"


@pytest.mark.parametrize("name", ["nope", "../x", None])
def test_an_unknown_checkpoint_is_a_bad_field(models: Catalogue, name: str | None) -> None:
    errors = field_errors(models, sd_model_checkpoint=name, default=None)
    assert errors.keys() == {"sd_model_checkpoint"}


def test_limits_of_the_endpoint_name_their_field(models: Catalogue) -> None:
    limits = Limits(max_side=256, max_steps=10, max_batch=2, max_pixels=1)
    with pytest.raises(ParametersInvalid) as caught:
        compiled(models, limits, width=512, height=512, batch_size=3)
    fields = [each.field for each in caught.value.fields]
    assert fields == ["width", "height", "steps", "batch_size", "width"]


def test_eta_is_that_of_the_sampler_or_refused(models: Catalogue) -> None:
    for sampler, eta in (("Euler", 0), ("Euler", 1), ("Euler a", 1), ("DDIM", 0)):
        compiled(models, sampler_name=sampler, eta=eta)
    for sampler, eta in (("Euler", 0.5), ("Euler a", 0), ("DDIM", 1)):
        assert "supported" in field_errors(models, sampler_name=sampler, eta=eta)["eta"]


def test_the_older_name_of_the_sampler_counts_where_the_newer_is_absent(models: Catalogue) -> None:
    def sampler(**body: Any) -> Any:
        return graph_of(models, **body).node("sample-0").literals["sampler_name"]

    assert sampler(sampler_index="Heun") == "heun"
    assert sampler(sampler_index="Heun", sampler_name="LMS") == "lms"


LATENT = {"WebUILatentUpscale": 2, "ImageScale": 0, "VAEEncode": 0, "VAEDecode": 2}
PIXELS = {"WebUILatentUpscale": 0, "ImageScale": 2, "VAEEncode": 2, "VAEDecode": 4}


@pytest.mark.parametrize(
    ("upscaler", "expected"),
    [
        ("", LATENT),
        ("Latent", LATENT),
        ("latent (bicubic antialiased)", LATENT),
        ("Lanczos", PIXELS),
        ("None", PIXELS),
    ],
)
def test_hires_fix_samples_again_at_the_larger_size(
    models: Catalogue, upscaler: str, expected: dict[str, int]
) -> None:
    body = {"hr_upscaler": upscaler, "hr_second_pass_steps": 7, "denoising_strength": 0.5}
    graph = graph_of(models, enable_hr=True, **body, batch_size=2)
    counted = expected | {"KSampler": 4, "CheckpointLoaderSimple": 1}
    assert {kind: kinds(graph).count(kind) for kind in counted} == counted
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
    texts = {"prompt": "a <lora:ink>", "hr_prompt": "b <lora:grain>", "hr_negative_prompt": "c"}
    names = {"hr_sampler_name": "Euler a", "hr_scheduler": "Karras", "hr_upscaler": "Nearest"}
    graph = graph_of(models, enable_hr=True, **texts, **names, hr_checkpoint_name="other")
    text = graph.node("hires-text").literals
    assert (text["text"], text["negative_text"]) == ("b ", "c")
    second = graph.node("hires-sample-0")
    found = (second.literals["sampler_name"], second.literals["scheduler"])
    assert found == ("euler_ancestral", "karras")
    assert second.links["model"].node_id == "hires-lora-0"
    assert graph.node("small-0").links["vae"].node_id == "checkpoint"
    assert graph.node("encode-0").links["vae"].node_id == "hires-checkpoint"
    assert graph.node("decode-0").links["vae"].node_id == "hires-checkpoint"


def test_words_for_the_same_again_are_understood(models: Catalogue) -> None:
    names = {"sampler_name": "sampler", "scheduler": "scheduler", "checkpoint_name": "checkpoint"}
    same = {f"hr_{member}": f"Use same {name}" for member, name in names.items()}
    assert compiled(models, enable_hr=True, **same) == compiled(models, enable_hr=True)


def test_what_hires_fix_says_counts_only_where_it_is_on(models: Catalogue) -> None:
    body = {"hr_scale": 3, "hr_upscaler": "nope", "denoising_strength": 0.1}
    assert compiled(models, **body) == compiled(models)


def test_limits_count_both_passes(models: Catalogue) -> None:
    body = {"enable_hr": True, "steps": 6, "hr_second_pass_steps": 5}
    assert "steps" in field_errors(models, Limits(max_steps=10), **body)
    compiled(models, Limits(max_steps=11), **body)
    pixels = 64 * 64 + 128 * 128
    assert "width" in field_errors(models, Limits(max_pixels=pixels - 1), **body)
    compiled(models, Limits(max_pixels=pixels), **body)
    too_large = field_errors(models, Limits(max_side=127), **body)
    assert {"hr_resize_x", "hr_resize_y"} <= too_large.keys()
