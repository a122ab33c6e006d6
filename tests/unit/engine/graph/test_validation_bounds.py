"""How long validation takes, and how much it answers, whatever graph it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.graphs import error_body, graph_of, refusal_of
from tests.support.engine.workflows import Prompt, node, text_to_image, with_input
from tests.support.patience import FACTOR, least_cpu_s

NODES = 1000
LONG = 128


def seconds(prompt: Prompt, catalogue: Catalogue) -> float:
    def check() -> None:
        with suppress(GraphInvalid):
            graph_of(prompt, catalogue, max_cost=0)

    return least_cpu_s(check)


def chain(length: int, **inputs: Any) -> Prompt:
    """Samplers one behind the other."""
    nodes = text_to_image()
    last = "3"
    for number in range(length - len(nodes)):
        nodes[f"s{number}"] = with_input(nodes, "3", latent_image=[last, 0], **inputs)["3"]
        last = f"s{number}"
    return with_input(nodes, "8", samples=[last, 0])


def many_outputs(nodes: int) -> Prompt:
    """Bad samplers in a row, with an output behind each: many outputs need many bad nodes."""
    graph: Prompt = {}
    for number in range(nodes // 3):
        sampler, picture = f"{number}-".ljust(LONG, "s"), f"{number}-".ljust(LONG, "d")
        before = [f"{number - 1}-".ljust(LONG, "s"), 0] if number else ["no such node", 0]
        graph[sampler] = node("KSampler", latent_image=before)
        graph[picture] = node("VAEDecode", samples=[sampler, 0])
        graph[f"{number}-".ljust(LONG, "o")] = node("SaveImage", images=[picture, 0])
    return graph


def sigmas_in_a_row(nodes: int) -> Prompt:
    """Valid: every sampler takes its steps from the far end of one chain."""
    graph = text_to_image()
    graph["sampler"] = node("KSamplerSelect", sampler_name="euler")
    graph["0"] = node("BasicScheduler", model=["4", 0], scheduler="normal", steps=4, denoise=1)
    last = ["5", 0]
    for number in range(1, (nodes - len(graph)) // 2 + 1):
        before = f"n{number - 1}" if number > 1 else "0"
        graph[f"n{number}"] = node("FlipSigmas", sigmas=[before, 0])
        links = {"sampler": ["sampler", 0], "sigmas": [f"n{number}", 0], "latent_image": last}
        links |= {name: graph["3"]["inputs"][name] for name in ("model", "positive", "negative")}
        settings = {"add_noise": True, "noise_seed": 1, "cfg": 1}
        graph[f"s{number}"] = node("SamplerCustom", **links, **settings)
        last = [f"s{number}", 0]
    return with_input(graph, "8", samples=last)


def ring(nodes: int) -> Prompt:
    graph = chain(nodes)
    return with_input(graph, "3", latent_image=["8", 0], model=["3", 0])


def unknown_inputs(nodes: int) -> Prompt:
    graph = text_to_image()
    return with_input(graph, "3", **{f"unknown-{n}": [f"{n}", 0] for n in range(20 * nodes)})


SHAPES = [chain, many_outputs, sigmas_in_a_row, ring, unknown_inputs]


@pytest.mark.parametrize("shape", SHAPES)
def test_time_grows_with_the_size_of_the_graph_and_not_faster(
    shape: Callable[[int], Prompt], catalogue: Catalogue
) -> None:
    small, large = shape(NODES // 8), shape(NODES)
    assert seconds(large, catalogue) < 0.15 * FACTOR  # meant to be under 40 ms
    assert seconds(large, catalogue) < 8 * 3 * seconds(small, catalogue) + 0.005


def test_a_chain_of_as_many_nodes_as_are_taken_is_valid(catalogue: Catalogue) -> None:
    assert len(graph_of(chain(NODES), catalogue, max_cost=0).nodes) == NODES
    too_many = error_body({**chain(NODES), "x": {}}, catalogue)
    assert too_many["error"]["type"] == "too_many_nodes"


@pytest.mark.parametrize("letter", ["a", "ä", "\U0001f600", "\x00", '"'])
def test_an_answer_stays_small_whatever_is_sent(letter: str, catalogue: Catalogue) -> None:
    graph = {i.replace("s", letter): each for i, each in many_outputs(NODES).items()}
    for each in graph.values():
        each["inputs"] = {name: [20_000 * letter, 0] for name in each["inputs"]}
        each["inputs"] |= {"ckpt_name": 20_000 * letter, "cfg": 20_000 * letter, "scheduler": 1}
    body = error_body(graph, catalogue)
    size = len(json.dumps(body).encode())
    assert size < (200_000 if letter == "a" else 900_000)


@pytest.mark.parametrize("text", [100_000 * "a", "\ud800"])
def test_the_message_of_a_failed_job_is_short(text: str, catalogue: Catalogue) -> None:
    graph = with_input(text_to_image(), "3", scheduler=text)
    for error in (refusal_of(graph, catalogue), NodeFailed("3", "KSampler", text)):
        assert len(str(error).encode()) < 1000


def test_only_some_of_many_errors_are_shown(catalogue: Catalogue) -> None:
    body = error_body(chain(500, steps=0), catalogue)
    assert body["error"]["extra_info"] == {"errors": 493, "errors_shown": 50}
    assert sum(len(each["errors"]) for each in body["node_errors"].values()) == 50


def test_only_some_of_many_outputs_are_named(catalogue: Catalogue) -> None:
    save = {f"o{n}": node("SaveImage", images=["8", 0], filename_prefix="") for n in range(500)}
    graph = with_input(text_to_image(), "3", steps=0) | save
    [entry] = error_body(graph, catalogue)["node_errors"].values()
    assert len(entry["dependent_outputs"]) == 50
    assert entry["dependent_outputs"][:2] == ["9", "o0"]


def test_a_node_id_of_a_kilobyte_is_refused(catalogue: Catalogue) -> None:
    graph = text_to_image()
    graph["x" * LONG] = graph["9"]
    graph_of(graph, catalogue)
    graph["x" * 1000] = graph["9"]
    error = error_body(graph, catalogue)["error"]
    assert error["type"] == "invalid_prompt"
    assert "1000 characters, but at most 128" in error["details"]


class CountedFolder(ModelsFolder):
    """Counts how often it is asked for names. It remembers no listing, as that of a worker."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ttl_s=0)
        self.listings = 0

    def names(self, kind: str) -> tuple[str, ...]:
        self.listings += 1
        return super().names(kind)


def test_a_folder_is_listed_once_for_all_nodes(tmp_path: Path) -> None:
    models = CountedFolder(tmp_path)
    loaders = {f"{n}": node("CheckpointLoaderSimple", ckpt_name="x") for n in range(300)}
    decoded = {f"d{n}": node("VAEDecode", vae=[f"{n}", 2]) for n in range(300)}
    saved = {f"s{n}": node("SaveImage", images=[f"d{n}", 0]) for n in range(300)}
    error_body(loaders | decoded | saved, Catalogue(models))
    assert models.listings == 1
