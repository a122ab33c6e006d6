from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.validation import resolve_seeds
from tests.support.engine.graphs import error_body, graph_of, node_error
from tests.support.engine.workflows import text_to_image, with_input


def test_valid_graph_keeps_the_order_of_submission(catalogue: Catalogue) -> None:
    graph = graph_of(text_to_image(), catalogue)
    assert [node.id for node in graph.nodes] == ["4", "5", "6", "7", "3", "8", "9"]
    assert graph.total_steps == 4
    assert [node.id for node in graph.outputs] == ["9"]
    assert graph.seed_of("9") == 1
    assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize("prompt", [None, [], "x", 3, True])
def test_what_is_no_object_is_no_prompt(prompt: object, catalogue: Catalogue) -> None:
    assert error_body(prompt, catalogue)["error"]["type"] == "no_prompt"


@pytest.mark.parametrize("node", [None, [], "x", {}, {"class_type": 3}, {"class_type": "Nope"}])
def test_unknown_node_type_is_named(node: object, catalogue: Any) -> None:
    body = error_body({**text_to_image(), "77": node}, catalogue)
    assert body["error"]["type"] == "missing_node_type"
    assert "77" in body["error"]["details"]


def test_prompt_without_output_is_refused(catalogue: Catalogue) -> None:
    nodes = {i: node for i, node in text_to_image().items() if i != "9"}
    assert error_body(nodes, catalogue)["error"]["type"] == "prompt_no_outputs"
    assert error_body({}, catalogue)["error"]["type"] == "prompt_no_outputs"


def test_an_output_node_to_which_nothing_is_linked_is_no_output(catalogue: Catalogue) -> None:
    compare = {"class_type": "ImageCompare", "inputs": {}}
    body = error_body({"1": compare}, catalogue)["error"]
    assert (body["type"], "link an image" in body["details"]) == ("prompt_no_outputs", True)
    graph = graph_of({"1": compare, **text_to_image()}, catalogue)
    assert [each.id for each in graph.outputs] == ["9"]
    linked = {"class_type": "ImageCompare", "inputs": {"image_b": ["8", 0]}}
    graph = graph_of({"1": linked, **text_to_image()}, catalogue)
    assert sorted(each.id for each in graph.outputs) == ["1", "9"]


def test_one_bad_output_refuses_the_whole_graph(catalogue: Catalogue) -> None:
    bad = {"class_type": "SaveImage", "inputs": {"filename_prefix": "x", "images": ["nope", 0]}}
    errors = error_body({**text_to_image(), "9b": bad}, catalogue)["node_errors"]
    assert {name: each["dependent_outputs"] for name, each in errors.items()} == {"9b": ["9b"]}


def test_the_prompt_of_a_graph_is_what_a_run_needs_of_it(catalogue: Catalogue) -> None:
    sent = with_input(text_to_image(), "3", steps="4", seed=1.0, unknown={"a": ["9", 0]})
    sent = with_input(sent, "5", width=67)
    sent["3"] |= {"is_changed": [1], "_meta": {"title": "Sampler", "other": 1}}
    sent["idle"] = {"class_type": "KSampler", "inputs": None}
    graph = graph_of(sent, catalogue)
    written = graph.prompt
    assert list(written) == ["4", "5", "6", "7", "3", "8", "9"]
    assert written["5"]["inputs"]["width"] == 64
    assert written["3"].pop("_meta") == {"title": "Sampler"}
    assert written["3"] == text_to_image()["3"]
    assert type(written["3"]["inputs"]["steps"]) is int
    assert graph_of(graph.prompt, catalogue) == graph


@pytest.mark.parametrize("meta", [None, 1, {"title": 1}, {"title": "a" * 129}, {"title": "\ud800"}])
def test_a_title_that_cannot_be_shown_is_dropped(meta: object, catalogue: Catalogue) -> None:
    sent = text_to_image()
    sent["3"]["_meta"] = meta
    assert "_meta" not in graph_of(sent, catalogue).prompt["3"]


def test_cycle_is_named(catalogue: Catalogue) -> None:
    given = with_input(text_to_image(), "3", latent_image=["3", 0])
    assert node_error(given, catalogue)["type"] == "dependency_cycle"
    chained = {**given, "3b": given["3"]}
    chained = with_input(
        with_input(chained, "3", latent_image=["3b", 0]), "3b", latent_image=["3", 0]
    )
    body = error_body(chained, catalogue)
    ((entry,),) = [each["errors"] for each in body["node_errors"].values()]
    assert entry["type"] == "dependency_cycle"
    assert sorted(set(entry["details"].split(" → "))) == ["3", "3b"]


def test_deep_nesting_is_refused_cleanly(catalogue: Catalogue) -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    error_body({"1": deep}, catalogue)
    error_body(with_input(text_to_image(), "3", steps=deep), catalogue)
    error_body(with_input(text_to_image(), "3", steps={"a": deep}), catalogue)


def test_negative_seeds_are_drawn_and_others_kept() -> None:
    drawn = iter([11, 12])
    given = {
        "a": {"class_type": "KSampler", "inputs": {"seed": -1}},
        "b": {"class_type": "KSamplerAdvanced", "inputs": {"noise_seed": "-5"}},
        "c": {"class_type": "KSampler", "inputs": {"seed": 3}},
        "d": {"class_type": "KSampler", "inputs": {"seed": ["x", -1]}},
        "e": None,
        "f": {"inputs": [-1]},
    }
    before = json.dumps(given)
    resolved = resolve_seeds(given, lambda: next(drawn))
    assert resolved["a"]["inputs"]["seed"] == 11
    assert resolved["b"]["inputs"]["noise_seed"] == 12
    assert {key: resolved[key] for key in "cdef"} == {key: given[key] for key in "cdef"}
    assert json.dumps(given) == before
    assert resolve_seeds([1], lambda: 1) == [1]
