"""Diffusion requests, compiled to valid graphs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import GraphInvalid
from engine.graph import names
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from tests.support.engine.diffusion_requests import compiled, field_errors, graph_of, kinds


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
    found = compiled(models, batch_size=2, n_iter=3)
    assert found.seeds == (5, 6, 7, 8, 9, 10)
    assert list(found.first_index.values()) == [0, 1, 2, 3, 4, 5]
    assert "batch_size" in field_errors(models, Limits(max_batch=5), batch_size=2, n_iter=3)


def test_loras_come_out_of_the_prompt_into_the_graph(models: Catalogue) -> None:
    graph = graph_of(
        models, prompt="a <lora:ink:0.5>dog<lora:grain:0.25:0.75> <lora:styles/ink:unet=2>"
    )
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
        ("<lora:ink:1:1:1>", "not understood"),
        ("<lora:ink:dyn=1>", "not understood"),
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
    settings = {
        "sd_model_checkpoint": "other",
        "sd_vae": "soft.safetensors",
        "CLIP_stop_at_last_layers": 3,
    }
    graph = graph_of(models, clip_skip=2, override_settings=settings)
    assert graph.node("checkpoint").literals["ckpt_name"] == "other.safetensors"
    assert graph.node("clip").literals["stop_at_clip_layer"] == -3
    assert graph.node("decode-0").links["vae"].node_id == "vae"
    for own in ("Automatic", "None", None):
        assert "vae" not in compiled(models, override_settings={"sd_vae": own}).prompt
    unknown = field_errors(models, override_settings={"sd_vae": "nope"})
    assert "soft.safetensors" in unknown["override_settings.sd_vae"]


def test_a_noise_seed_delta_is_for_samplers_that_draw_at_each_step(models: Catalogue) -> None:
    settings = {"eta_noise_seed_delta": 31337}
    for sampler, kind in (("Euler a", "WebUISampler"), ("Euler", "KSampler")):
        sample = graph_of(models, sampler_name=sampler, override_settings=settings).node("sample-0")
        assert sample.class_type == kind
        assert sample.literals.get("eta_noise_seed_delta", 31337) == 31337


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


@given(st.data(), st.sampled_from(names.SAMPLERS), st.sampled_from(names.SCHEDULERS))
def test_every_spelling_reaches_the_sampler(
    models: Catalogue, data: st.DataObject, sampler: names.Sampler, scheduler: names.Scheduler
) -> None:
    recase = data.draw(st.sampled_from([str, str.upper, str.lower]))
    row = data.draw(st.sampled_from([sampler.name, sampler.label, *sampler.aliases]))
    column = data.draw(st.sampled_from([scheduler.name, scheduler.label, *scheduler.aliases]))
    joined = f"{sampler.label} {scheduler.label}"
    for body, expected in (
        ({"sampler_name": recase(row), "scheduler": recase(column)}, scheduler.name),
        ({"sampler_name": recase(row), "scheduler": "Automatic"}, sampler.automatic),
        ({"sampler_name": recase(joined)}, scheduler.name),
    ):
        literals = graph_of(models, **body).node("sample-0").literals
        assert (literals["sampler_name"], literals["scheduler"]) == (sampler.name, expected)


@given(st.integers(0, 2**64 - 1), st.integers(1, 4), st.integers(1, 4), st.integers(1, 12))
def test_images_count_seeds_up_and_clip_skip_counts_layers_down(
    models: Catalogue, seed: int, batch_size: int, n_iter: int, clip_skip: int
) -> None:
    body = {"seed": seed, "batch_size": batch_size, "n_iter": n_iter, "clip_skip": clip_skip}
    found = compiled(models, **body)
    graph = validate(found.prompt, models, Limits())
    for name, index in found.first_index.items():
        assert graph.seed_of(name) == found.seeds[index] == (seed + index) % 2**64
    layers = [n.literals["stop_at_clip_layer"] for n in graph.nodes if n.id == "clip"]
    assert layers == ([-clip_skip] if clip_skip > 1 else [])
