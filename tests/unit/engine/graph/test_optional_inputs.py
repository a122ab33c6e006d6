"""Inputs that a graph may leave out, with a node of our own that has some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Int, Link, node
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.engine.workflows import node as used


@node(
    "Save",
    inputs={"first": Int(1, min=0, max=9)},
    optional={"second": Int(2, min=0, max=9), "images": Link("IMAGE")},
    is_output=True,
)
def save(context: Any, first: int, second: int = 2, images: Any = None) -> list[Any]:
    return []


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(ModelsFolder(tmp_path), (save,))


def test_object_info_tells_optional_inputs_from_required_ones(catalogue: Catalogue) -> None:
    info = catalogue.object_info()["Save"]
    assert set(info["input"]["required"]) == {"first"}
    assert info["input"]["optional"]["images"] == ["IMAGE", {}]
    assert info["input_order"] == {"required": ["first"], "optional": ["second", "images"]}


@pytest.mark.parametrize("given", [{"first": 3}, {"first": 3, "second": 4}])
def test_an_optional_input_is_taken_or_left_to_the_body(
    given: dict[str, int], catalogue: Catalogue
) -> None:
    graph = validate({"s": used("Save", **given)}, catalogue, Limits())
    assert graph.node("s").literals == given


@pytest.mark.parametrize(
    ("given", "type"),
    [
        ({}, "required_input_missing"),
        ({"first": 3, "second": 10}, "value_bigger_than_max"),
        ({"first": 3, "images": ["x", 0]}, "bad_linked_input"),
    ],
)
def test_an_optional_input_that_is_given_is_checked(
    given: dict[str, Any], type: str, catalogue: Catalogue
) -> None:
    with pytest.raises(GraphInvalid) as caught:
        validate({"s": used("Save", **given)}, catalogue, Limits())
    (error,) = caught.value.body()["node_errors"]["s"]["errors"]
    assert error["type"] == type
