"""Jobs of transformers with LoRAs, beside others and alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Finished
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.loras import (
    FLUX,
    PLAIN,
    Z_IMAGE,
    flat,
    pairs_for,
    product,
    state_of,
    with_alpha,
    written,
)
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import Watched, node


@pytest.fixture
def run(root: Path) -> Iterator[Callable[..., list[Watched]]]:
    """Runs graphs side by side, in an engine of its own."""
    engine = Engine(models=ModelsFolder(root, ttl_s=0))
    engine.start()

    def run(*graphs: dict[str, Any]) -> list[Watched]:
        catalogue = Catalogue(ModelsFolder(root, ttl_s=0))
        found = []
        for graph in graphs:
            watched = Watched()
            watched.run = engine.submit(validate(graph, catalogue, Limits()), on_event=watched.take)
            found.append(watched)
        return found

    yield run
    engine.stop()


def with_loader(graph: dict[str, Any], name: str | None) -> dict[str, Any]:
    if name is None:
        return graph
    loader = node("LoraLoaderModelOnly", model=["1", 0], lora_name=name, strength_model=0.5)
    sampling = graph["7"]
    changed = {**sampling, "inputs": {**sampling["inputs"], "model": ["20", 0]}}
    return {**graph, "20": loader, "7": changed}


def on_network(graph: dict[str, Any], name: str) -> dict[str, Any]:
    return {**graph, "1": node("UNETLoader", unet_name=name, weight_dtype="default")}


@pytest.mark.parametrize("network", [FLUX, Z_IMAGE])
def test_jobs_with_different_loras_and_none_share_calls_and_are_as_with_merged_weights(
    network: str, root: Path, run: Callable[..., list[Watched]]
) -> None:
    state = state_of(root, network)
    graph = flux_graph if network == FLUX else z_image_graph
    names: list[str | None] = [None]
    networks = [network]
    for seed, words in ((1, ("attn", "attention")), (2, ("",))):
        pairs = pairs_for(state, words, seed=seed)
        changed = {**state}
        for layer, pair in pairs.items():
            changed[f"{layer}.weight"] = state[f"{layer}.weight"] + 0.5 * product(pair)
        save_file(with_alpha(pairs, flat("lora_unet_")), root / "loras" / f"{seed}.safetensors")
        names.append(f"{seed}.safetensors")
        networks.append(written(root, network, changed, f"merged-{seed}-{network}"))
    texts = ["a cat", "a red square beside two green circles on a long blue line " * 2, "x"]
    graphs = [graph(text, seed=at, steps=2) for at, text in enumerate(texts * 2)]
    loaded = [with_loader(each, names[at % 3]) for at, each in enumerate(graphs)]
    together = run(*loaded)
    shared = [each.images()[0].pixels.astype(int) for each in together]
    rows = [end.rows_per_call for each in together if isinstance(end := each.events[-1], Finished)]
    assert sum(rows) / len(rows) >= (4 if network == FLUX else 8)
    for at, each in enumerate(graphs[:3]):
        (alone,) = run(on_network(each, networks[at]))
        assert np.abs(shared[at] - alone.images()[0].pixels).max() <= 1
    assert len({each.tobytes() for each in shared}) == len(shared)


def test_a_prompt_of_the_diffusion_flavour_names_a_lora(
    root: Path, run: Callable[..., list[Watched]]
) -> None:
    pairs = pairs_for(state_of(root, Z_IMAGE))
    save_file(with_alpha(pairs, flat("lora_unet_")), root / "loras" / "mine.safetensors")
    catalogue = Catalogue(ModelsFolder(root))
    graphs = []
    for prompt in ("a cat", "a cat<lora:mine:0.5>"):
        asked = parse_parameters(
            {"prompt": prompt, "seed": 5, "steps": 1, "cfg_scale": 1, "width": 64, "height": 64}
        )
        found = compile_parameters(asked, catalogue, Limits(), default_checkpoint="folder")
        graphs.append(found.prompt)
    loaders = [each for each in graphs[1].values() if each["class_type"] == "LoraLoader"]
    assert [each["inputs"]["lora_name"] for each in loaders] == ["mine.safetensors"]
    first, second = (each.images()[0].pixels for each in run(*graphs))
    assert not np.array_equal(first, second)


def test_a_damaged_lora_fails_its_job_alone(root: Path, run: Callable[..., list[Watched]]) -> None:
    key = f"{PLAIN}layers.0.attention.to_q"
    save_file({f"{key}.lora_A.weight": torch.ones(2, 64)}, root / "loras" / "half.safetensors")
    broken, well = run(
        with_loader(z_image_graph(steps=1), "half.safetensors"), z_image_graph(steps=1)
    )
    end = broken.wait()
    assert "half.safetensors is damaged" in str(getattr(end, "error", end))
    assert isinstance(well.wait(), Finished)
