"""How many models with LoRAs merged into them a graph holds at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.engine.workflows import TINY, node, text_to_image

Prompt = dict[str, Any]


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    for folder in ("checkpoints", "loras", "controlnet"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / TINY).touch()
    return Catalogue(ModelsFolder(tmp_path))


def lora(model: str, strength: float) -> Prompt:
    return node("LoraLoaderModelOnly", model=[model, 0], lora_name=TINY, strength_model=strength)


def chain(count: int) -> Prompt:
    """A model that so many LoRAs are merged into, one after the other."""
    prompt = text_to_image() | {"m0": lora("4", 1.0)}
    prompt |= {f"m{n}": lora(f"m{n - 1}", 1.0) for n in range(1, count)}
    prompt["3"]["inputs"]["model"] = [f"m{count - 1}", 0]
    return prompt


def fan(count: int, *, patched: bool = False) -> Prompt:
    """A latent that is sampled with a model of its own so many times."""
    prompt = text_to_image()
    for n in range(count):
        model, latent = f"m{n}", f"s{n - 1}" if n else "5"
        prompt[model] = lora("4", n + 1.0)
        if patched:
            scales = {"b1": 1.1, "b2": 1.2, "s1": 0.9, "s2": 0.2}
            prompt[f"p{n}"] = node("FreeU", model=[model, 0], **scales)
            model = f"p{n}"
        inputs = prompt["3"]["inputs"] | {"model": [model, 0], "latent_image": [latent, 0]}
        prompt[f"s{n}"] = node("KSampler", **inputs)
    prompt["8"]["inputs"]["samples"] = [f"s{count - 1}", 0]
    return prompt


def graph_of(prompt: Prompt, catalogue: Catalogue, most: int) -> Graph:
    return validate(prompt, catalogue, Limits(max_merged_models=most, max_cost=0))


def test_of_a_chain_two_are_alive_at_once(catalogue: Catalogue) -> None:
    assert graph_of(chain(20), catalogue, 2)
    with pytest.raises(GraphInvalid):
        graph_of(chain(2), catalogue, 1)


@pytest.mark.parametrize(("patched", "most"), [(False, 5), (True, 6)])
def test_models_that_wait_for_each_other_count_together(
    catalogue: Catalogue, patched: bool, most: int
) -> None:
    prompt = fan(5, patched=patched)
    assert graph_of(prompt, catalogue, most)
    with pytest.raises(GraphInvalid) as refusal:
        graph_of(prompt, catalogue, most - 1)
    assert refusal.value.extra_info["limit"] == "max_merged_models"
    assert f"the job holds {most} models with LoRAs" in refusal.value.details


def test_a_checkpoint_alone_is_no_merged_model(catalogue: Catalogue) -> None:
    with pytest.raises(GraphInvalid):
        graph_of(fan(2), catalogue, 1)
    assert graph_of(text_to_image(), catalogue, 1)


def test_none_is_merged_before_its_turn(catalogue: Catalogue) -> None:
    """Nodes run ahead of the order while they are small."""
    graph = graph_of(fan(3), catalogue, 0)
    assert all(graph.node_bytes[f"m{n}"] > graph.overlap_bytes for n in range(3))


def test_a_guider_holds_its_model(catalogue: Catalogue) -> None:
    """The sampler of each waits for the latent of the one before it."""
    prompt = text_to_image() | {
        "n": node("RandomNoise", noise_seed=1),
        "k": node("KSamplerSelect", sampler_name="euler"),
        "t": node("KarrasScheduler", steps=2, sigma_max=14.6, sigma_min=0.03, rho=7),
    }
    shared = {"noise": ["n", 0], "sampler": ["k", 0], "sigmas": ["t", 0]}
    for n in range(5):
        prompt[f"m{n}"] = lora("4", n + 1.0)
        prompt[f"g{n}"] = node("BasicGuider", model=[f"m{n}", 0], conditioning=["6", 0])
        latent = [f"s{n - 1}" if n else "5", 0]
        inputs = {**shared, "guider": [f"g{n}", 0], "latent_image": latent}
        prompt[f"s{n}"] = node("SamplerCustomAdvanced", **inputs)
    prompt["8"]["inputs"]["samples"] = ["s4", 0]
    assert graph_of(prompt, catalogue, 6)
    with pytest.raises(GraphInvalid) as refusal:
        graph_of(prompt, catalogue, 4)
    assert refusal.value.extra_info["limit"] == "max_merged_models"


def test_conditionings_hold_control_nets_that_are_differences(catalogue: Catalogue) -> None:
    """Each is made for a model, and the conditioning has it once the model is gone."""
    prompt = text_to_image() | {"i": node("EmptyImage", width=64, height=64, batch_size=1, color=0)}
    for n in range(6):
        prompt[f"m{n}"] = lora("4", n + 1.0)
        loader = {"model": [f"m{n}", 0], "control_net_name": TINY}
        prompt[f"d{n}"] = node("DiffControlNetLoader", **loader)
        given = {"control_net": [f"d{n}", 0], "image": ["i", 0], "strength": 1.0}
        before = [f"a{n - 1}" if n else "6", 0]
        prompt[f"a{n}"] = node("ControlNetApply", conditioning=before, **given)
    prompt["3"]["inputs"]["positive"] = ["a5", 0]
    assert graph_of(prompt, catalogue, 12)
    with pytest.raises(GraphInvalid) as refusal:
        graph_of(prompt, catalogue, 6)
    assert refusal.value.extra_info["limit"] == "max_merged_models"
