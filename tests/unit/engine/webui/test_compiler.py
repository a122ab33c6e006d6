"""What the diffusion flavour asks for beyond one plain pass, as a graph that is valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ParametersInvalid
from engine.graph import names
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.webui.compiler import Compiled, compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.workflows import TINY

FILES = (
    f"checkpoints/{TINY}",
    "checkpoints/other.safetensors",
    "loras/styles/ink.safetensors",
    "loras/grain.safetensors",
    "vae/soft.safetensors",
    "upscale_models/4x.safetensors",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """A catalogue of files without content: compiling looks at names alone."""
    root = tmp_path_factory.mktemp("models")
    for name in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return Catalogue(ModelsFolder(root))


def compiled(catalogue: Catalogue, limits: Limits | None = None, **body: Any) -> Compiled:
    parameters = parse_parameters({"prompt": "x", "seed": 5, "width": 64, "height": 64, **body})
    return compile_parameters(parameters, catalogue, limits or Limits(), default_checkpoint=TINY)


def graph_of(catalogue: Catalogue, **body: Any) -> Graph:
    return validate(compiled(catalogue, **body).prompt, catalogue, Limits())


def refused(catalogue: Catalogue, limits: Limits | None = None, **body: Any) -> dict[str, str]:
    """The messages by field."""
    with pytest.raises(ParametersInvalid) as caught:
        compiled(catalogue, limits, **body)
    return {each.field: each.message for each in caught.value.fields}


def kinds(graph: Graph) -> list[str]:
    return [node.class_type for node in graph.nodes]


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
    assert "batch_size" in refused(models, Limits(max_batch=5), batch_size=2, n_iter=3)


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
        ("(x:1.2.3)", "1.2.3"),
    ],
)
def test_a_bad_prompt_is_a_bad_field(models: Catalogue, prompt: str, shown: str) -> None:
    assert shown in refused(models, prompt=prompt)["prompt"]
    assert shown in refused(models, enable_hr=True, hr_prompt=prompt)["hr_prompt"]


def test_a_bad_prompt_in_a_workflow_is_refused_too(models: Catalogue) -> None:
    prompt = compiled(models).prompt
    prompt["text"]["inputs"]["negative_text"] = "(x:1.2.3)"
    from engine.errors import GraphInvalid

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
    unknown = refused(models, override_settings={"sd_vae": "nope"})
    assert "soft.safetensors" in unknown["override_settings.sd_vae"]


def test_a_noise_seed_delta_is_for_samplers_that_draw_at_each_step(models: Catalogue) -> None:
    settings = {"eta_noise_seed_delta": 31337}
    for sampler, kind in (("Euler a", "WebUISampler"), ("Euler", "KSampler")):
        sample = graph_of(models, sampler_name=sampler, override_settings=settings).node("sample-0")
        assert sample.class_type == kind
        assert sample.literals.get("eta_noise_seed_delta", 31337) == 31337


# The hires fix.


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
    unknown = refused(models, enable_hr=True, hr_upscaler="nope")["hr_upscaler"]
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
    assert "steps" in refused(models, Limits(max_steps=10), **body)
    compiled(models, Limits(max_steps=11), **body)
    pixels = 64 * 64 + 128 * 128
    assert "width" in refused(models, Limits(max_pixels=pixels - 1), **body)
    compiled(models, Limits(max_pixels=pixels), **body)
    assert {"hr_resize_x", "hr_resize_y"} <= refused(models, Limits(max_side=127), **body).keys()


# What the WebUI's clients send along.

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
        ("styles", ["anime"]),
        ("subseed_strength", 0.5),
        ("restore_faces", True),
        ("tiling", True),
        ("s_noise", 1.1),
        ("override_settings_restore_afterwards", False),
        ("refiner_checkpoint", "x"),
        ("script_name", "x/y plot"),
        ("alwayson_scripts", {"controlnet": {}}),
        ("nonsense", None),
    ],
)
def test_a_wish_that_is_not_supported_is_named(models: Catalogue, name: str, value: Any) -> None:
    assert "supported" in refused(models, **{name: value})[name]


def test_eta_is_that_of_the_sampler_or_refused(models: Catalogue) -> None:
    for sampler, eta in (("Euler", 0), ("Euler", 1), ("Euler a", 1), ("DDIM", 0)):
        compiled(models, sampler_name=sampler, eta=eta)
    for sampler, eta in (("Euler", 0.5), ("Euler a", 0), ("DDIM", 1)):
        assert "supported" in refused(models, sampler_name=sampler, eta=eta)["eta"]


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


def test_usual_size_is_that_of_the_checkpoints_kind(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "xl"
    folder.mkdir(parents=True)
    for pipeline, side in (("StableDiffusionXLPipeline", 1024), ("StableDiffusionPipeline", 512)):
        (folder / "model_index.json").write_text(f'{{"_class_name": "{pipeline}"}}')
        catalogue = Catalogue(ModelsFolder(tmp_path))
        parameters = parse_parameters({"prompt": "x", "seed": 1, "height": 256})
        (made,) = compile_parameters(
            parameters, catalogue, Limits(), default_checkpoint="xl"
        ).passes
        assert (made.width, made.height) == (side, 256)
