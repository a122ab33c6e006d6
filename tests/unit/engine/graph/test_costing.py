"""The cost of a graph, from what its nodes declare."""

from __future__ import annotations

from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.graph import Graph, run_order
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate

Prompt = dict[str, Any]


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue(ModelsFolder("models"))


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def empty_image(side: int = 1000, batch_size: int = 1) -> dict[str, Any]:
    return node("EmptyImage", width=side, height=side, batch_size=batch_size, color=0)


def save(source: str) -> dict[str, Any]:
    return node("SaveImage", images=[source, 0], filename_prefix="")


def graph_of(prompt: Prompt, catalogue: Catalogue, **limits: Any) -> Graph:
    return validate(prompt, catalogue, Limits(**limits))


def test_an_image_is_made_held_and_written(catalogue: Catalogue) -> None:
    cost = graph_of({"1": empty_image(), "2": save("1")}, catalogue).cost
    assert cost == Cost(work=4.1, live_bytes=36_000_000, outputs=1)


def test_a_branch_runs_to_its_end_before_the_next_begins(catalogue: Catalogue) -> None:
    prompt = {"1": empty_image(), "2": empty_image(), "a": save("1"), "b": save("2")}
    graph = graph_of(prompt, catalogue)
    assert [each.id for each in run_order(graph)] == ["1", "a", "2", "b"]
    assert graph.cost.live_bytes == 36_000_000
