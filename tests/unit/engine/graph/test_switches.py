"""Switches choose before a prompt is checked."""

from __future__ import annotations

from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph, Source
from engine.graph.validation import without_switches
from tests.support.engine.graphs import graph_of, refusal_of
from tests.support.engine.workflows import Prompt, node, text_to_image


def switch(by: Any, on_false: Any, on_true: Any) -> Prompt:
    return node("ComfySwitchNode", switch=by, on_false=on_false, on_true=on_true)


def with_model(by: Any, **more: Any) -> Prompt:
    """Samples with the model of the checkpoint, or with the same patched."""
    patched = node("RescaleCFG", model=["4", 0], multiplier=0.5)
    chosen = {"s": switch(by, ["4", 0], ["m", 0]), "m": patched}
    return text_to_image(model=["s", 0]) | chosen | more


def model_of(graph: Graph) -> Source:
    return graph.node("3").links["model"]


@pytest.mark.parametrize(("by", "source"), [(False, "4"), (True, "m"), (0, "4"), ("1", "m")])
def test_the_chosen_branch_alone_is_in_the_graph(
    by: Any, source: str, catalogue: Catalogue
) -> None:
    graph = graph_of(with_model(by), catalogue)
    assert model_of(graph).node_id == source
    ids = {each.id for each in graph.nodes}
    assert "s" not in ids
    assert ("m" in ids) is (source == "m")


def test_a_primitive_and_another_switch_may_choose(catalogue: Catalogue) -> None:
    primitive = node("PrimitiveBoolean", value=True)
    prompt = with_model(["b", 0], b=primitive)
    assert model_of(graph_of(prompt, catalogue)).node_id == "m"
    nested = with_model(True) | {"m": switch(False, ["4", 0], ["nowhere", 0])}
    assert model_of(graph_of(nested, catalogue)).node_id == "4"


def test_a_value_may_be_chosen(catalogue: Catalogue) -> None:
    prompt = text_to_image(steps=["s", 0]) | {"s": switch(True, 3, 7)}
    assert graph_of(prompt, catalogue).node("3").literals["steps"] == 7


def test_what_is_not_chosen_may_be_wrong(catalogue: Catalogue) -> None:
    prompt = with_model(False) | {"m": node("RescaleCFG", model=["nowhere", 0], multiplier="x")}
    assert model_of(graph_of(prompt, catalogue)).node_id == "4"


@pytest.mark.parametrize(
    "by", [["c", 0], None, [], {}, "yes", ["nowhere", 0], ["s", 0], float("nan")]
)
def test_a_switch_that_the_run_would_decide_is_an_error(by: Any, catalogue: Catalogue) -> None:
    compared = node("StringContains", string=["t", 0], substring="a", case_sensitive=True)
    prompt = with_model(by, c=compared, t=node("PrimitiveString", value="b"))
    assert refusal_of(prompt, catalogue)


CIRCLE = {"s": switch(True, ["4", 0], ["b", 0]), "b": switch(True, ["4", 0], ["s", 0])}
WRONG_TYPE = {"s": switch(True, ["4", 0], ["4", 1])}
NO_BRANCH = {"s": node("ComfySwitchNode", switch=True)}


@pytest.mark.parametrize("nodes", [CIRCLE, WRONG_TYPE, NO_BRANCH])
def test_a_switch_that_leads_to_no_value_is_an_error(nodes: Prompt, catalogue: Catalogue) -> None:
    assert refusal_of(text_to_image(model=["s", 0]) | nodes, catalogue)


def test_a_long_chain_of_switches_is_followed_once(catalogue: Catalogue) -> None:
    chain = {f"s{n}": switch(False, [f"s{n + 1}", 0], 1) for n in range(800)}
    chain["s800"] = switch(False, ["4", 0], 1)
    prompt = text_to_image(model=["s0", 0]) | chain
    assert model_of(graph_of(prompt, catalogue)).node_id == "4"


class Counted(dict[str, Any]):
    """A prompt that counts how often a node of it is looked up."""

    looked_up = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up += 1
        return super().get(key, default)


def test_a_circle_that_many_inputs_lead_to_is_followed_once() -> None:
    circle = {f"s{n}": switch(True, 1, [f"s{(n + 1) % 50}", 0]) for n in range(50)}
    many = node("SaveImage", **{f"unknown{n}": [f"s{n % 50}", 0] for n in range(500)})
    prompt = Counted(circle | {"x": many})
    found = without_switches(prompt)
    sources: Any = found["x"]["inputs"].values()
    assert all(prompt[each[0]]["class_type"] == "ComfySwitchNode" for each in sources)
    assert prompt.looked_up < 10 * 500
