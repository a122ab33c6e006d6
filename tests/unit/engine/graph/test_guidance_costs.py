"""What it costs to be guided by more than two conditionings."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph import work
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.limits import Limits
from engine.graph.validation import validate
from tests.support.engine.workflows import node, text_to_image

PERP_NEG = node("PerpNeg", model=["4", 0], empty_conditioning=["7", 0], neg_scale=1.0)
PAG = node("PerturbedAttentionGuidance", model=["4", 0], scale=3.0)
SAG = node("SelfAttentionGuidance", model=["4", 0], scale=0.5, blur_sigma=2.0)
FREE_U = node("FreeU", model=["m", 0], b1=1.1, b2=1.2, s1=0.9, s2=0.2)
CFG = node("CFGGuider", model=["m", 0], positive=["6", 0], negative=["7", 0], cfg=7.0)
DUAL = node(
    "DualCFGGuider",
    model=["4", 0],
    cond1=["6", 0],
    cond2=["6", 0],
    negative=["7", 0],
    cfg_conds=1.0,
    cfg_cond2_negative=1.0,
    style="regular",
)


def cost_of(prompt: dict[str, Any], catalogue: Catalogue) -> Cost:
    return validate(prompt, catalogue, Limits()).cost


def patched(patch: dict[str, Any], cfg: float = 7.0) -> dict[str, Any]:
    return text_to_image(model=["m", 0], cfg=cfg) | {"m": patch}


def advanced(guider: dict[str, Any]) -> dict[str, Any]:
    sampler = {
        "noise": ["n", 0],
        "guider": ["g", 0],
        "sampler": ["k", 0],
        "sigmas": ["t", 0],
        "latent_image": ["5", 0],
    }
    return text_to_image() | {
        "3": node("SamplerCustomAdvanced", **sampler),
        "g": guider,
        "n": node("RandomNoise", noise_seed=1),
        "k": node("KSamplerSelect", sampler_name="euler"),
        "t": node("BasicScheduler", model=["4", 0], scheduler="karras", steps=3, denoise=1.0),
        "m": PAG,
    }


@pytest.mark.parametrize(
    ("patch", "cfg", "rows"),
    [
        (PERP_NEG, 7.0, 3),
        (PERP_NEG, 1.0, 3),
        (PAG, 7.0, 3),
        (PAG, 1.0, 2),
        (SAG, 7.0, 4),
        (SAG, 1.0, 3),
    ],
)
def test_each_call_is_a_row(
    patch: dict[str, Any], cfg: float, rows: int, empty_catalogue: Catalogue
) -> None:
    assert cost_of(patched(patch, cfg), empty_catalogue).rows == rows


@pytest.mark.parametrize("name", ["model", "refiner_model"])
def test_both_models_of_the_webui_sampler_count(name: str, empty_catalogue: Catalogue) -> None:
    models = {"model": ["4", 0], "refiner_model": ["4", 0]} | {name: ["m", 0]}
    prompt = text_to_image(scheduler="karras", **models) | {"m": PAG}
    prompt["3"]["class_type"] = "WebUISampler"
    prompt["3"]["inputs"] |= {"sampler_name": "Euler", "eta_noise_seed_delta": 0}
    assert cost_of(prompt, empty_catalogue).rows == 3


def test_other_patches_keep_what_a_model_costs(empty_catalogue: Catalogue) -> None:
    prompt = text_to_image(model=["f", 0]) | {"m": PAG, "f": FREE_U}
    assert cost_of(prompt, empty_catalogue).rows == 3
    twice = node("PerturbedAttentionGuidance", model=["m", 0], scale=3.0)
    prompt = text_to_image(model=["f", 0]) | {"m": PAG, "f": twice}
    assert cost_of(prompt, empty_catalogue).rows == 4


def test_a_guider_has_what_its_model_costs_and_a_third_text(empty_catalogue: Catalogue) -> None:
    assert cost_of(advanced(CFG), empty_catalogue).rows == 3
    assert cost_of(advanced(DUAL), empty_catalogue).rows == 3


def merged(ratio: float | None, side: int) -> dict[str, Any]:
    """A picture of 30 steps, by a model that merges so many of its places; None: by a plain one."""
    prompt = text_to_image(model=["4" if ratio is None else "m", 0], steps=30)
    prompt["5"]["inputs"] |= {"width": side, "height": side}
    return prompt | {"m": node("TomePatchModel", model=["4", 0], ratio=ratio or 0.0)}


def test_comparing_places_costs_a_share_of_attending_to_them(empty_catalogue: Catalogue) -> None:
    def more(ratio: float, side: int) -> float:
        plain, merging = (
            cost_of(merged(each, side), empty_catalogue).work for each in (None, ratio)
        )
        return merging - plain

    assert more(0.01, 2000) == pytest.approx(30 * 2 * 4 * (4 / 2) * 0.12, rel=0.01)
    assert more(0.01, 2000) == pytest.approx(16 * more(0.01, 1000), rel=0.01)
    assert more(0.3, 2000) == more(0.0, 2000) == 0.0


def freed(count: int) -> dict[str, Any]:
    """FreeU so many times, one behind the other, for one small picture."""
    patches = {
        f"f{n}": FREE_U | {"inputs": FREE_U["inputs"] | {"model": [f"f{n - 1}", 0]}}
        for n in range(1, count + 1)
    }
    return text_to_image(model=[f"f{count}", 0]) | patches | {"f0": PAG}


def test_each_filter_adds_to_all_calls(empty_catalogue: Catalogue) -> None:
    costs = [cost_of(freed(count), empty_catalogue).work for count in (0, 1, 2)]
    sampled = costs[1] - costs[0] - work.LOAD_PART
    assert sampled > 0
    assert costs[2] - costs[1] == pytest.approx(sampled + work.LOAD_PART, abs=0.01)


def test_as_many_filters_as_there_may_be_nodes_are_refused(empty_catalogue: Catalogue) -> None:
    with pytest.raises(GraphInvalid, match="The graph costs too much"):
        cost_of(freed(900), empty_catalogue)
