from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.seeds import resolve_seeds
from engine.graph.validation import validate
from tests.support.engine.invalid_graphs import error_body, node_error
from tests.support.engine.workflows import text_to_image, with_input

Prompt = dict[str, Any]
MakePrompt = Callable[..., Prompt]
LIMITS = Limits()


def test_valid_graph_keeps_the_order_of_submission(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    graph = validate(prompt(), empty_catalogue, LIMITS)
    assert [node.id for node in graph.nodes] == ["4", "5", "6", "7", "3", "8", "9"]
    assert graph.total_steps == 4
    assert [node.id for node in graph.outputs] == ["9"]
    assert graph.seed_of("9") == 1
    assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize("prompt", [None, [], "x", 3, True])
def test_what_is_no_object_is_no_prompt(prompt: object, empty_catalogue: Catalogue) -> None:
    assert error_body(prompt, empty_catalogue)["error"]["type"] == "no_prompt"


@pytest.mark.parametrize("node", [None, [], "x", {}, {"class_type": 3}, {"class_type": "Nope"}])
def test_unknown_node_type_is_named(node: object, prompt: MakePrompt, empty_catalogue: Any) -> None:
    body = error_body({**prompt(), "77": node}, empty_catalogue)
    assert body["error"]["type"] == "missing_node_type"
    assert "77" in body["error"]["details"]


def test_prompt_without_output_is_refused(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    nodes = {i: node for i, node in prompt().items() if i != "9"}
    assert error_body(nodes, empty_catalogue)["error"]["type"] == "prompt_no_outputs"
    assert error_body({}, empty_catalogue)["error"]["type"] == "prompt_no_outputs"


def test_one_bad_output_refuses_the_whole_graph(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    bad = {"class_type": "SaveImage", "inputs": {"filename_prefix": "x", "images": ["nope", 0]}}
    body = error_body({**prompt(), "9b": bad}, empty_catalogue)
    assert list(body["node_errors"]) == ["9b"]
    assert body["node_errors"]["9b"]["dependent_outputs"] == ["9b"]


def test_nodes_that_no_output_needs_are_left_out_unchecked(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    idle = {"class_type": "VAEDecode", "inputs": {"samples": ["99", 0]}}
    graph = validate({**prompt(), "10": idle}, empty_catalogue, LIMITS)
    assert "10" not in {node.id for node in graph.nodes}


def test_the_prompt_of_a_graph_is_what_a_run_needs_of_it(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    sent = with_input(prompt(), "3", steps="4", seed=1.0, unknown={"a": ["9", 0]})
    sent = with_input(sent, "5", width=67)
    sent["3"] |= {"is_changed": [1], "_meta": {"title": "Sampler", "other": 1}}
    sent["idle"] = {"class_type": "KSampler", "inputs": None}
    graph = validate(sent, empty_catalogue, LIMITS)
    written = graph.prompt
    assert list(written) == ["4", "5", "6", "7", "3", "8", "9"]
    assert written["5"]["inputs"]["width"] == 64
    assert written["3"].pop("_meta") == {"title": "Sampler"}
    assert written["3"] == prompt()["3"]
    assert type(written["3"]["inputs"]["steps"]) is int
    assert validate(graph.prompt, empty_catalogue, LIMITS) == graph


@pytest.mark.parametrize("meta", [None, 1, {"title": 1}, {"title": "a" * 129}, {"title": "\ud800"}])
def test_a_title_that_cannot_be_shown_is_dropped(
    meta: object, prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    sent = prompt()
    sent["3"]["_meta"] = meta
    assert "_meta" not in validate(sent, empty_catalogue, LIMITS).prompt["3"]


def test_cycle_is_named(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    given = with_input(prompt(), "3", latent_image=["3", 0])
    assert node_error(given, empty_catalogue)["type"] == "dependency_cycle"
    chained = {**given, "3b": given["3"]}
    chained = with_input(
        with_input(chained, "3", latent_image=["3b", 0]), "3b", latent_image=["3", 0]
    )
    body = error_body(chained, empty_catalogue)
    ((entry,),) = [each["errors"] for each in body["node_errors"].values()]
    assert entry["type"] == "dependency_cycle"
    assert sorted(set(entry["details"].split(" → "))) == ["3", "3b"]


_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]), max_size=5)
    | st.sampled_from(["3", "4", "5", "KSampler", "SaveImage", "euler", 10**400])
)
_json = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=4) | st.sampled_from(["inputs", "class_type"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(prompt=_json)
def test_arbitrary_json_is_refused_cleanly(prompt: Any) -> None:
    _accept_or_refuse(prompt)


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_broken_workflow_is_refused_cleanly(data: st.DataObject) -> None:
    prompt = text_to_image()
    for _ in range(data.draw(st.integers(1, 3))):
        node_id = data.draw(st.sampled_from(sorted(prompt)))
        node = prompt[node_id]
        target = data.draw(st.sampled_from(["node", "inputs", "input", "link"]))
        if target == "node" or not isinstance(node, dict):
            prompt[node_id] = data.draw(_json)
        elif target == "inputs" or not isinstance(node.get("inputs"), dict):
            node["inputs"] = data.draw(_json)
        else:
            name = data.draw(st.sampled_from([*node["inputs"], "other"]))
            link = st.tuples(st.sampled_from(sorted(prompt)), st.integers(-2, 4)).map(list)
            node["inputs"][name] = data.draw(_json if target == "input" else link)
    _accept_or_refuse(prompt)


def _accept_or_refuse(prompt: Any) -> None:
    catalogue = Catalogue(ModelsFolder(Path(__file__).parent))  # which has no models
    try:
        validate(resolve_seeds(prompt, lambda: 1), catalogue, LIMITS)
    except GraphInvalid as refusal:
        body, again = refusal.body(), pickle.loads(pickle.dumps(refusal)).body()
    else:
        return
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    assert again == body


def test_deep_nesting_is_refused_cleanly(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    error_body({"1": deep}, empty_catalogue)
    error_body(with_input(prompt(), "3", steps=deep), empty_catalogue)
    error_body(with_input(prompt(), "3", steps={"a": deep}), empty_catalogue)
