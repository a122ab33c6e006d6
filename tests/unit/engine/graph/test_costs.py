"""The cost of a graph, from what its nodes declare, and the limits that it is held to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from engine.graph import work
from engine.graph.catalogue import Catalogue
from engine.graph.cost import MOST, Cost, Estimate, ImageShape, LatentShape
from engine.graph.declarations import NodeType
from engine.graph.graph import run_order
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from tests.support.engine.graphs import catalogue_of, cost_of, graph_of, refusal_of
from tests.support.engine.workflows import TINY, Prompt, node, text_to_image

LIMITS = ("cost", "live_bytes", "conditioning_rows", "tokens", "merged_models", "outputs")
OFF = {f"max_{name}": 0 for name in LIMITS}


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    folders = ("checkpoints", "loras", "controlnet")
    return catalogue_of(tmp_path, *(f"{folder}/{TINY}" for folder in folders))


def empty_image(side: int = 1000, batch_size: int = 1) -> Prompt:
    return node("EmptyImage", width=side, height=side, batch_size=batch_size, color=0)


def save(source: str) -> Prompt:
    return node("SaveImage", images=[source, 0], filename_prefix="")


def doubled(class_type: str, first: str, second: str, *, depth: int) -> Prompt:
    """A conditioning that is combined with itself, `depth` times, for a sampler."""
    links = [["6", 0], *([f"n{at}", 0] for at in range(depth - 1))]
    chain = {
        f"n{at}": node(class_type, **{first: link, second: link}) for at, link in enumerate(links)
    }
    return text_to_image(positive=[f"n{depth - 1}", 0]) | chain


def combined(depth: int) -> Prompt:
    return doubled("ConditioningCombine", "conditioning_1", "conditioning_2", depth=depth)


def concatenated(depth: int) -> Prompt:
    return doubled("ConditioningConcat", "conditioning_to", "conditioning_from", depth=depth)


def chained(depth: int, class_type: str, *links: str, side: int = 64, **inputs: Any) -> Prompt:
    """An image that goes through so many nodes of a type, by these links of each."""
    prompt = {"n0": empty_image(side), "save": save(f"n{depth}")}
    for at in range(1, depth + 1):
        prompt[f"n{at}"] = node(class_type, **{link: [f"n{at - 1}", 0] for link in links}, **inputs)
    return prompt


def batched(depth: int) -> Prompt:
    return chained(depth, "ImageBatch", "image1", "image2")


def lora(model: str, strength: float = 1.0) -> Prompt:
    return node("LoraLoaderModelOnly", model=[model, 0], lora_name=TINY, strength_model=strength)


def test_an_image_is_made_held_and_written(catalogue: Catalogue) -> None:
    cost = cost_of({"1": empty_image(), "2": save("1")}, catalogue)
    assert cost == Cost(work=4.1, live_bytes=36_000_000, outputs=1, result_bytes=3_000_000)


def test_a_branch_runs_to_its_end_before_the_next_begins(catalogue: Catalogue) -> None:
    prompt = {"1": empty_image(), "2": empty_image(), "a": save("1"), "b": save("2")}
    graph = graph_of(prompt, catalogue)
    assert [each.id for each in run_order(graph)] == ["1", "a", "2", "b"]
    assert graph.cost.live_bytes == 36_000_000


def test_every_node_runs_once_and_after_its_sources(catalogue: Catalogue) -> None:
    prompt = batched(6) | {"again": save("n3")}
    order = [each.id for each in run_order(graph_of(prompt, catalogue, **OFF))]
    assert order == ["n0", "n1", "n2", "n3", "n4", "n5", "n6", "save", "again"]


def test_sampling_is_pixels_times_steps_times_rows(catalogue: Catalogue) -> None:
    def sampling(**sampler: Any) -> float:
        prompt = text_to_image(**sampler)
        prompt["5"]["inputs"] |= {"width": 1000, "height": 1000}
        return cost_of(prompt, catalogue).work

    most = sampling(steps=30)
    call = 1 + (1 + 77 * 64 / 1e6) / 2  # a megapixel, with attention to itself and to a text
    assert most - sampling(steps=10) == pytest.approx(20 * 2 * call, abs=0.01)
    assert most - sampling(steps=30, cfg=1.0) == pytest.approx(30 * call, abs=0.01)
    assert sampling(steps=30, sampler_name="heun") - most == pytest.approx(60 * call, abs=0.01)


def test_attention_grows_with_the_square_of_an_image_and_not_of_a_batch() -> None:
    assert LatentShape(1, 2000, 1000).attended_megapixels() == pytest.approx(2 * (1 + 2 / 2))
    assert LatentShape(8, 500, 500).attended_megapixels() == pytest.approx(2 * (1 + 0.25 / 2))
    assert LatentShape(1, 1000, 1000).attended_megapixels(31_250) == pytest.approx(1 + 3 / 2)


def test_a_small_image_counts_as_one_of_512_pixels(catalogue: Catalogue) -> None:
    few, many = (cost_of(text_to_image(steps=n), catalogue).work for n in (10, 110))
    assert many - few == pytest.approx(100 * 2 * 512 * 512 / 1e6, abs=0.01)


def test_a_sampler_that_chooses_its_steps_costs_all_it_may_take(catalogue: Catalogue) -> None:
    one, many = (
        cost_of(text_to_image(steps=steps, sampler_name="dpm_adaptive"), catalogue).work
        for steps in (1, 64)
    )
    assert one == pytest.approx(many, abs=0.01)
    assert one > 64 * 3 * 2 * work.LEAST_MEGAPIXELS


def test_a_latent_costs_what_it_has_between_the_resizing_of_its_sides(catalogue: Catalogue) -> None:
    size = {"width": 4096, "height": 64, "crop": "disabled", "upscale_method": "bislerp"}
    cost = cost_of(
        text_to_image(latent_image=["flipped", 0], steps=1)
        | {
            "5": node("EmptyLatentImage", width=64, height=4096, batch_size=16),
            "flipped": node("LatentUpscale", samples=["5", 0], **size),
        },
        catalogue,
    )
    pixels = 16 * 4096 * 4096
    assert cost.work > pixels / 1e6
    assert cost.live_bytes > 12 * pixels / 4


def test_the_path_of_a_cuda_device_is_work_on_other_devices(catalogue: Catalogue) -> None:
    def sampling(sampler: str, **sources: str) -> float:
        prompt = text_to_image(sampler_name=sampler, steps=20)
        prompt["3"]["class_type"] = "WebUISampler"
        prompt["3"]["inputs"] |= {"eta_noise_seed_delta": 0, **sources}
        prompt["5"]["inputs"] |= {"width": 1000, "height": 1000}
        return cost_of(prompt, catalogue).work

    for sampler, calls in (("dpmpp_2m_sde", 1), ("dpmpp_sde", 2), ("euler_ancestral", 0)):
        plain = sampling(sampler)
        assert sampling(sampler, randn_source="CPU") == plain
        found = sampling(sampler, randn_source="NV") - plain
        assert found == pytest.approx(calls * 20 * 0.5, abs=0.01)


def test_an_opacity_is_a_fourth_value_of_each_pixel(catalogue: Catalogue) -> None:
    alpha = node("SolidMask", value=0.5, width=1000, height=1000)
    joined = node("JoinImageWithAlpha", image=["1", 0], alpha=["2", 0])
    turned = node("ImageRotate", image=["3", 0], rotation="90 degrees")
    prompt = {"1": empty_image(), "2": alpha, "3": joined, "4": turned}
    cost = cost_of({**prompt, "5": save("4")}, catalogue)
    assert cost.result_bytes == 4_000_000


def test_an_area_is_a_row_of_both_conditionings(catalogue: Catalogue) -> None:
    area = {"width": 64, "height": 64, "x": 0, "y": 0, "strength": 1.0}
    prompt = text_to_image(positive=["both", 0]) | {
        "area": node("ConditioningSetArea", conditioning=["6", 0], **area),
        "both": node("ConditioningCombine", conditioning_1=["6", 0], conditioning_2=["area", 0]),
    }
    assert cost_of(prompt, catalogue).rows == 4


def test_a_text_has_a_token_for_each_character(catalogue: Catalogue) -> None:
    prompt = text_to_image() | {"6": node("CLIPTextEncode", text="x" * 151, clip=["4", 1])}
    assert cost_of(prompt, catalogue).tokens == 3 * 77


def test_alternating_texts_are_one_row_each_step(catalogue: Catalogue) -> None:
    schedule = {"steps": 20, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    texts = {"text": "[a|b] AND c", "negative_text": "", "steps_before": 0}
    prompt = text_to_image(positive=["6", 0], negative=["6", 1]) | {
        "6": node("WebUITextEncode", clip=["4", 1], model=["4", 0], **texts, **schedule)
    }
    # Both weigh 1, so the negative is taken off once more.
    assert cost_of(prompt, catalogue).rows == 4


CONCAT = {"conditioning_to": ["6", 0], "conditioning_from": ["7", 0]}
MASKED = {"conditioning": ["7", 0], "mask": ["mask", 0], "set_cond_area": "default"}


@pytest.mark.parametrize(
    "changed",
    [
        node("ConditioningZeroOut", conditioning=["6", 0]),
        node("ConditioningConcat", **CONCAT),
        node("ConditioningAverage", **CONCAT, conditioning_to_strength=0.5),
        node("ConditioningSetMask", **MASKED, strength=1.0),
    ],
    ids=lambda each: each["class_type"],
)
def test_a_copy_of_a_long_text_or_large_mask_is_work(changed: Prompt, catalogue: Catalogue) -> None:
    nodes = {
        "6": node("CLIPTextEncode", text="x" * 30_000, clip=["4", 1]),
        "image": empty_image(4096),
        "mask": node("ImageToMask", image=["image", 0], channel="red"),
        "changed": changed,
    }
    sampler = {"steps": 1, "negative": ["6", 0]}
    plain = cost_of(text_to_image(**sampler) | nodes, catalogue)
    found = cost_of(text_to_image(**sampler, positive=["changed", 0]) | nodes, catalogue)
    assert found.work - plain.work > 2.0


def test_an_upload_counts_with_its_size_once_that_is_known(catalogue: Catalogue) -> None:
    prompt = {"1": node("LoadImage", image="a.png"), "2": save("1")}
    known = validate(prompt, catalogue, Limits(), sizes={"a.png": (2000, 1000)}).cost
    assert cost_of(prompt, catalogue).work == pytest.approx(2 * 4 * 512 * 512 / 1e6, abs=0.001)
    assert known.work == 16.0


def many(count: int, side: int) -> Prompt:
    images = {f"i{n}": empty_image(side) for n in range(count)}
    return images | {f"s{n}": save(f"i{n}") for n in range(count)}


def scaled(count: int) -> Prompt:
    size = {"width": 4095, "height": 4095, "crop": "disabled", "upscale_method": "bicubic"}
    return chained(count, "ImageScale", "image", side=4096, **size)


def enlarged(count: int) -> Prompt:
    return chained(count, "ImageScaleBy", "image", upscale_method="area", scale_by=8.0)


def large_latent() -> Prompt:
    latent = node("EmptyLatentImage", width=4096, height=4096, batch_size=1)
    return text_to_image(steps=10_000) | {"5": latent}


def with_loras(count: int) -> Prompt:
    merge = {"lora_name": TINY, "strength_model": 1.0, "strength_clip": 1.0}
    prompt = text_to_image(model=[f"n{count}", 0]) | {"n0": text_to_image()["4"]}
    for n in range(1, count + 1):
        links = {"model": [f"n{n - 1}", 0], "clip": [f"n{n - 1}", 1]}
        prompt[f"n{n}"] = node("LoraLoader", **links, **merge)
    return prompt


SWELLING = {
    "60 combinations": (combined(60), "max_conditioning_rows", "n6", "128 rows"),
    "12 concatenations": (concatenated(12), "max_tokens", "n9", "78,848 tokens"),
    "60 concatenations": (concatenated(60), "max_tokens", "n9", "78,848 tokens"),
    "60 batches": (batched(60), "max_live_bytes", "n15", "4,026,531,840 bytes"),
    "500 large images": (many(500, 4096), "max_cost", "s0", "2,064 megapixel-steps"),
    "300 small images": (many(300, 64), "max_outputs", "s256", "257 images"),
    "900 resized in a row": (scaled(900), "max_cost", "n1", "2,014 megapixel-steps"),
    "900 enlarged in a row": (enlarged(900), "max_live_bytes", "n3", "25,971,130,368 bytes"),
    "300 LoRAs in a row": (with_loras(300), "max_cost", "n0", "2,020 megapixel-steps"),
    "steps of a large latent": (large_latent(), "max_cost", "3", "3,151,141 megapixel-steps"),
}


@pytest.mark.parametrize(
    ("prompt", "limit", "node_id", "number"), SWELLING.values(), ids=SWELLING.keys()
)
def test_a_swelling_graph_is_refused_with_node_number_and_limit(
    prompt: Prompt, limit: str, node_id: str, number: str, *, catalogue: Catalogue
) -> None:
    body = refusal_of(prompt, catalogue).body()
    error = body["error"]
    assert (error["type"], error["extra_info"]["limit"]) == ("cost_too_high", limit)
    assert error["extra_info"]["node_id"] == node_id
    assert list(body["node_errors"]) == [node_id]
    assert body["node_errors"][node_id]["errors"][0]["type"] == "cost_too_high"
    assert error["details"].startswith(f"node {node_id} (")
    assert number in error["details"]
    assert f"at most {getattr(Limits(), limit):,.0f} are allowed" in error["details"]


@pytest.mark.parametrize("limit", OFF)
def test_a_limit_of_0_is_off(limit: str, catalogue: Catalogue) -> None:
    prompt = combined(60) | {"other": save("image"), "image": empty_image(4096)}
    prompt |= {"l1": lora("4"), "l2": lora("l1")}
    prompt["3"]["inputs"]["model"] = ["l2", 0]
    assert refusal_of(prompt, catalogue, **OFF | {limit: 1}).extra_info["limit"] == limit
    assert graph_of(prompt, catalogue, **OFF).cost.outputs == 2


@pytest.mark.parametrize("prompt", [combined(900), concatenated(900), batched(900), enlarged(900)])
def test_no_graph_makes_a_number_huge(prompt: Prompt, catalogue: Catalogue) -> None:
    cost = graph_of(prompt, catalogue, **OFF).cost
    assert max(cost.work, cost.live_bytes, cost.rows, cost.tokens, cost.outputs) <= MOST
    assert json.loads(json.dumps(asdict(cost), allow_nan=False)) == asdict(cost)


def test_each_node_is_estimated_once(catalogue: Catalogue) -> None:
    calls = Counter[str]()

    def counted(declared: NodeType) -> NodeType:
        def estimate(inputs: Mapping[str, Any]) -> Estimate:
            calls[declared.class_type] += 1
            return declared.estimated(inputs)

        return replace(declared, estimate=estimate)

    graph_of(batched(900), Catalogue(catalogue.models, tuple(map(counted, NODE_TYPES))), **OFF)
    assert calls == {"EmptyImage": 1, "ImageBatch": 900, "SaveImage": 1}


def test_a_schedule_that_is_too_long_is_refused(catalogue: Catalogue) -> None:
    told = refusal_of(text_to_image(steps=10_000, denoise=1e-6), catalogue).details
    assert told.startswith("node 3 (KSampler): ")
    assert "10,000,000,000 steps, but at most 1,000,000 are allowed" in told


def test_only_what_patches_a_model_once_costs_nothing() -> None:
    free = {each.class_type for each in NODE_TYPES if not (each.estimate or each.is_pure)}
    assert free == {
        "CLIPSetLastLayer",
        "ComfySwitchNode",
        "DifferentialDiffusion",
        "HyperTile",
        "ModelSamplingAuraFlow",
        "ModelSamplingContinuousEDM",
        "ModelSamplingContinuousV",
        "ModelSamplingDiscrete",
        "ModelSamplingFlux",
        "ModelSamplingSD3",
        "PatchModelAddDownscale",
        "RescaleCFG",
        "WebUITiling",
    }


def test_sizes_in_proportion_are_those_of_the_longer_side() -> None:
    image = ImageShape(2, 400, 200)
    assert image.sized(100, 0) == ImageShape(2, 100, 50)
    assert image.sized(0, 100) == ImageShape(2, 200, 100)
    assert image.sized(0, 0) == image
    assert LatentShape(1, 64, 64).size_bytes == 4 * 4 * 8 * 8


PERP_NEG = node("PerpNeg", model=["4", 0], empty_conditioning=["7", 0], neg_scale=1.0)
PAG = node("PerturbedAttentionGuidance", model=["4", 0], scale=3.0)
SAG = node("SelfAttentionGuidance", model=["4", 0], scale=0.5, blur_sigma=2.0)
FREE_U = node("FreeU", model=["m", 0], b1=1.1, b2=1.2, s1=0.9, s2=0.2)
CFG = node("CFGGuider", model=["m", 0], positive=["6", 0], negative=["7", 0], cfg=7.0)
DUAL_TEXTS = {"cond1": ["6", 0], "cond2": ["6", 0], "negative": ["7", 0]}
DUAL_SCALES = {"cfg_conds": 1.0, "cfg_cond2_negative": 1.0, "style": "regular"}
DUAL = node("DualCFGGuider", model=["4", 0], **DUAL_TEXTS, **DUAL_SCALES)


@pytest.mark.parametrize(("patch", "guided", "alone"), [(PERP_NEG, 3, 3), (PAG, 3, 2), (SAG, 4, 3)])
def test_calls_of_guidance_are_rows(
    patch: Prompt, guided: int, alone: int, catalogue: Catalogue
) -> None:
    """Each with a scale of guidance, and with one that guides nothing."""
    for cfg, rows in ((7.0, guided), (1.0, alone)):
        prompt = text_to_image(model=["m", 0], cfg=cfg) | {"m": patch}
        assert cost_of(prompt, catalogue).rows == rows, cfg


@pytest.mark.parametrize("name", ["model", "refiner_model"])
def test_both_models_of_the_webui_sampler_count(name: str, catalogue: Catalogue) -> None:
    models = {"model": ["4", 0], "refiner_model": ["4", 0]} | {name: ["m", 0]}
    prompt = text_to_image(scheduler="karras", **models) | {"m": PAG}
    prompt["3"]["class_type"] = "WebUISampler"
    prompt["3"]["inputs"] |= {"sampler_name": "Euler", "eta_noise_seed_delta": 0}
    assert cost_of(prompt, catalogue).rows == 3


def test_other_patches_keep_what_a_model_costs(catalogue: Catalogue) -> None:
    prompt = text_to_image(model=["f", 0]) | {"m": PAG, "f": FREE_U}
    assert cost_of(prompt, catalogue).rows == 3
    twice = node("PerturbedAttentionGuidance", model=["m", 0], scale=3.0)
    assert cost_of(prompt | {"f": twice}, catalogue).rows == 4


@pytest.mark.parametrize("guider", [CFG, DUAL])
def test_a_guider_costs_its_model_and_a_third_text(guider: Prompt, catalogue: Catalogue) -> None:
    links = {"noise": "n", "guider": "g", "sampler": "k", "sigmas": "t", "latent_image": "5"}
    prompt = text_to_image() | {
        "3": node("SamplerCustomAdvanced", **{name: [at, 0] for name, at in links.items()}),
        "g": guider,
        "n": node("RandomNoise", noise_seed=1),
        "k": node("KSamplerSelect", sampler_name="euler"),
        "t": node("BasicScheduler", model=["4", 0], scheduler="karras", steps=3, denoise=1.0),
        "m": PAG,
    }
    assert cost_of(prompt, catalogue).rows == 3


def test_comparing_places_costs_a_share_of_attending_to_them(catalogue: Catalogue) -> None:
    def merged(ratio: float | None, side: int) -> float:
        prompt = text_to_image(model=["4" if ratio is None else "m", 0], steps=30)
        prompt["5"]["inputs"] |= {"width": side, "height": side}
        prompt["m"] = node("TomePatchModel", model=["4", 0], ratio=ratio or 0.0)
        return cost_of(prompt, catalogue).work

    def more(ratio: float, side: int) -> float:
        return merged(ratio, side) - merged(None, side)

    assert more(0.01, 2000) == pytest.approx(30 * 2 * 4 * (4 / 2) * 0.12, rel=0.01)
    assert more(0.01, 2000) == pytest.approx(16 * more(0.01, 1000), rel=0.01)
    assert more(0.3, 2000) == more(0.0, 2000) == 0.0


def freed(count: int) -> Prompt:
    """FreeU so many times, one behind the other, for one small picture."""
    prompt = text_to_image(model=[f"f{count}", 0]) | {"f0": PAG}
    for n in range(1, count + 1):
        prompt[f"f{n}"] = node("FreeU", **FREE_U["inputs"] | {"model": [f"f{n - 1}", 0]})
    return prompt


def test_each_filter_adds_to_all_calls(catalogue: Catalogue) -> None:
    costs = [cost_of(freed(count), catalogue).work for count in (0, 1, 2)]
    sampled = costs[1] - costs[0] - work.LOAD_PART
    assert sampled > 0
    assert costs[2] - costs[1] == pytest.approx(sampled + work.LOAD_PART, abs=0.01)
    assert "costs too much" in str(refusal_of(freed(900), catalogue))


def fan(count: int, *, patched: bool = False) -> Prompt:
    """A latent that is sampled with a model of its own so many times."""
    prompt = text_to_image()
    for n in range(count):
        model, latent = f"m{n}", f"s{n - 1}" if n else "5"
        prompt[model] = lora("4", n + 1.0)
        if patched:
            prompt[f"p{n}"] = node("FreeU", **FREE_U["inputs"] | {"model": [model, 0]})
            model = f"p{n}"
        inputs = prompt["3"]["inputs"] | {"model": [model, 0], "latent_image": [latent, 0]}
        prompt[f"s{n}"] = node("KSampler", **inputs)
    prompt["8"]["inputs"]["samples"] = [f"s{count - 1}", 0]
    return prompt


def chained_loras(count: int) -> Prompt:
    prompt = text_to_image(model=[f"m{count - 1}", 0]) | {"m0": lora("4")}
    return prompt | {f"m{n}": lora(f"m{n - 1}") for n in range(1, count)}


def guided() -> Prompt:
    """Guiders that hold their models; the sampler of each waits for the latent before it."""
    prompt = text_to_image() | {
        "n": node("RandomNoise", noise_seed=1),
        "k": node("KSamplerSelect", sampler_name="euler"),
        "t": node("KarrasScheduler", steps=2, sigma_max=14.6, sigma_min=0.03, rho=7),
    }
    shared = {"noise": ["n", 0], "sampler": ["k", 0], "sigmas": ["t", 0]}
    for n in range(5):
        prompt[f"m{n}"] = lora("4", n + 1.0)
        prompt[f"g{n}"] = node("BasicGuider", model=[f"m{n}", 0], conditioning=["6", 0])
        inputs = {**shared, "guider": [f"g{n}", 0], "latent_image": [f"s{n - 1}" if n else "5", 0]}
        prompt[f"s{n}"] = node("SamplerCustomAdvanced", **inputs)
    prompt["8"]["inputs"]["samples"] = ["s4", 0]
    return prompt


def differences() -> Prompt:
    """ControlNets made for models, which conditionings hold once the models are gone."""
    prompt = text_to_image(positive=["a5", 0]) | {"i": empty_image(64)}
    for n in range(6):
        prompt[f"m{n}"] = lora("4", n + 1.0)
        loader = {"model": [f"m{n}", 0], "control_net_name": TINY}
        prompt[f"d{n}"] = node("DiffControlNetLoader", **loader)
        given = {"control_net": [f"d{n}", 0], "image": ["i", 0], "strength": 1.0}
        prompt[f"a{n}"] = node(
            "ControlNetApply", conditioning=[f"a{n - 1}" if n else "6", 0], **given
        )
    return prompt


MERGED = {
    "a chain": (chained_loras(20), 2, 1),
    "a fan": (fan(5), 5, 4),
    "patched": (fan(5, patched=True), 6, 5),
    "guiders": (guided(), 6, 4),
    "control nets": (differences(), 12, 6),
}
"""Prompts with the models that they need at once, and a limit that is too low."""


@pytest.mark.parametrize(("prompt", "most", "too_few"), MERGED.values(), ids=MERGED)
def test_merged_models_that_are_alive_at_once_count_together(
    prompt: Prompt, most: int, too_few: int, catalogue: Catalogue
) -> None:
    assert graph_of(prompt, catalogue, max_merged_models=most, max_cost=0)
    refusal = refusal_of(prompt, catalogue, max_merged_models=too_few, max_cost=0)
    assert refusal.extra_info["limit"] == "max_merged_models"
    assert "models at once that have LoRAs" in refusal.details


def test_a_checkpoint_alone_is_no_merged_model(catalogue: Catalogue) -> None:
    assert refusal_of(fan(2), catalogue, max_merged_models=1)
    assert graph_of(text_to_image(), catalogue, max_merged_models=1)


def test_no_model_is_merged_before_its_turn(catalogue: Catalogue) -> None:
    """Nodes run ahead of the order while they are small."""
    graph = graph_of(fan(3), catalogue, max_merged_models=0)
    assert all(graph.node_bytes[f"m{n}"] > graph.overlap_bytes for n in range(3))
