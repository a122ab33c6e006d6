"""The cost of a graph, from what its nodes declare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.cost import MOST, Cost, Estimate, ImageShape, LatentShape
from engine.graph.declarations import NodeType
from engine.graph.graph import Graph, run_order
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from tests.support.engine.workflows import TINY, node, text_to_image

Prompt = dict[str, Any]
OFF = {
    "max_cost": 0,
    "max_live_bytes": 0,
    "max_conditioning_rows": 0,
    "max_tokens": 0,
    "max_merged_models": 0,
    "max_outputs": 0,
}


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    for folder in ("checkpoints", "loras"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / TINY).touch()
    return Catalogue(ModelsFolder(tmp_path))


def empty_image(side: int = 1000, batch_size: int = 1) -> Prompt:
    return node("EmptyImage", width=side, height=side, batch_size=batch_size, color=0)


def save(source: str) -> Prompt:
    return node("SaveImage", images=[source, 0], filename_prefix="")


def scale(source: str, side: int) -> Prompt:
    size = {"width": side, "height": side, "crop": "disabled"}
    return node("ImageScale", image=[source, 0], upscale_method="bicubic", **size)


def scale_by(source: str, factor: float = 8.0) -> Prompt:
    return node("ImageScaleBy", image=[source, 0], upscale_method="area", scale_by=factor)


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


def batched(depth: int) -> Prompt:
    chain = {
        f"n{at}": node("ImageBatch", image1=[f"n{at - 1}", 0], image2=[f"n{at - 1}", 0])
        for at in range(1, depth + 1)
    }
    return {"n0": empty_image(64), **chain, "save": save(f"n{depth}")}


def graph_of(prompt: Prompt, catalogue: Catalogue, **limits: Any) -> Graph:
    return validate(prompt, catalogue, Limits(**limits))


def refusal_of(prompt: Prompt, catalogue: Catalogue, **limits: Any) -> GraphInvalid:
    with pytest.raises(GraphInvalid) as refusal:
        graph_of(prompt, catalogue, **limits)
    return refusal.value


def test_an_image_is_made_held_and_written(catalogue: Catalogue) -> None:
    cost = graph_of({"1": empty_image(), "2": save("1")}, catalogue).cost
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
        return graph_of(prompt, catalogue).cost.work

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
    few, many = (graph_of(text_to_image(steps=n), catalogue).cost.work for n in (10, 110))
    assert many - few == pytest.approx(100 * 2 * 512 * 512 / 1e6, abs=0.01)


def test_an_area_is_a_row_of_both_conditionings(catalogue: Catalogue) -> None:
    area = {"width": 64, "height": 64, "x": 0, "y": 0, "strength": 1.0}
    prompt = text_to_image(positive=["both", 0]) | {
        "area": node("ConditioningSetArea", conditioning=["6", 0], **area),
        "both": node("ConditioningCombine", conditioning_1=["6", 0], conditioning_2=["area", 0]),
    }
    assert graph_of(prompt, catalogue).cost.rows == 4


def test_a_text_has_a_token_for_each_character(catalogue: Catalogue) -> None:
    prompt = text_to_image() | {"6": node("CLIPTextEncode", text="x" * 151, clip=["4", 1])}
    assert graph_of(prompt, catalogue).cost.tokens == 3 * 77


def test_alternating_texts_are_one_row_each_step(catalogue: Catalogue) -> None:
    schedule = {"steps": 20, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    texts = {"text": "[a|b] AND c", "negative_text": "", "steps_before": 0}
    prompt = text_to_image(positive=["6", 0], negative=["6", 1]) | {
        "6": node("WebUITextEncode", clip=["4", 1], model=["4", 0], **texts, **schedule)
    }
    # Both weigh 1, so the negative is taken off once more.
    assert graph_of(prompt, catalogue).cost.rows == 4


def test_an_upload_counts_with_its_size_once_that_is_known(catalogue: Catalogue) -> None:
    prompt = {"1": node("LoadImage", image="a.png"), "2": save("1")}
    unknown = graph_of(prompt, catalogue).cost
    known = validate(prompt, catalogue, Limits(), sizes={"a.png": (2000, 1000)}).cost
    assert unknown.work == pytest.approx(2 * 4 * 512 * 512 / 1e6, abs=0.001)
    assert known.work == 16.0


def many(count: int, side: int) -> Prompt:
    images = {f"i{n}": empty_image(side) for n in range(count)}
    return images | {f"s{n}": save(f"i{n}") for n in range(count)}


def scaled(count: int) -> Prompt:
    chain = {f"i{n}": scale(f"i{n - 1}", 4096 - n % 2) for n in range(1, count + 1)}
    return {"i0": empty_image(4096), **chain, "save": save(f"i{count}")}


def enlarged(count: int) -> Prompt:
    chain = {f"i{n}": scale_by(f"i{n - 1}") for n in range(1, count + 1)}
    return {"i0": empty_image(64), **chain, "save": save(f"i{count}")}


def large_latent() -> Prompt:
    latent = node("EmptyLatentImage", width=4096, height=4096, batch_size=1)
    return text_to_image(steps=10_000) | {"5": latent}


SWELLING = {
    "60 combinations": (combined(60), "max_conditioning_rows", "n6", "128 rows"),
    "12 concatenations": (concatenated(12), "max_tokens", "n9", "78,848 tokens"),
    "60 concatenations": (concatenated(60), "max_tokens", "n9", "78,848 tokens"),
    "60 batches": (batched(60), "max_live_bytes", "n15", "4,026,531,840 bytes"),
    "500 large images": (many(500, 4096), "max_cost", "s0", "2,064 megapixel-steps"),
    "300 small images": (many(300, 64), "max_outputs", "s256", "257 images"),
    "900 resized in a row": (scaled(900), "max_cost", "i1", "2,015 megapixel-steps"),
    "900 enlarged in a row": (enlarged(900), "max_live_bytes", "i3", "25,971,130,368 bytes"),
    "10,000 steps of a large latent": (
        large_latent(),
        "max_cost",
        "3",
        "3,151,141 megapixel-steps",
    ),
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
    assert f"at most {getattr(Limits(), limit):,.0f} are taken" in error["details"]


@pytest.mark.parametrize("limit", OFF)
def test_a_limit_of_0_is_off(limit: str, catalogue: Catalogue) -> None:
    prompt = combined(60) | {"other": save("image"), "image": empty_image(4096)}
    lora = {"lora_name": TINY, "strength_model": 1.0}
    prompt["l1"] = node("LoraLoaderModelOnly", model=["4", 0], **lora)
    prompt["l2"] = node("LoraLoaderModelOnly", model=["l1", 0], **lora)
    prompt["3"]["inputs"]["model"] = ["l2", 0]
    broken = refusal_of(prompt, catalogue, **OFF | {limit: 1}).extra_info["limit"]
    assert broken == limit
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
    assert "10,000,000,000 steps, at most 1,000,000 are taken" in told


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


def test_many_loras_are_work_too(catalogue: Catalogue) -> None:
    merge = {"lora_name": TINY, "strength_model": 1.0, "strength_clip": 1.0}
    chain = {
        f"l{n}": node("LoraLoader", model=[f"l{n - 1}", 0], clip=[f"l{n - 1}", 1], **merge)
        for n in range(1, 301)
    }
    chain["l0"] = node("CheckpointLoaderSimple", ckpt_name=TINY)
    refusal = refusal_of(text_to_image(model=["l300", 0]) | chain, catalogue)
    assert refusal.extra_info["limit"] == "max_cost"
