"""Texts as results, and conversions of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.reports import Finished, ImageReady, TextReady
from tests.support.engine.engines import running
from tests.support.engine.graphs import graph_of, refusal_of
from tests.support.engine.workflows import Prompt, node


def converted(value: Any) -> Prompt:
    """A graph that shows both outputs of ComfyNumberConvert, first the whole number."""
    return {
        "n": node("ComfyNumberConvert", value=value),
        "whole": node("PreviewAny", source=["n", 1]),
        "number": node("PreviewAny", source=["n", 0]),
    }


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(ModelsFolder(tmp_path))


def test_texts_are_results_in_the_order_of_the_graph(tmp_path: Path, catalogue: Catalogue) -> None:
    prompt = {
        "text": node("PrimitiveString", value="größe"),
        "a": node("PreviewAny", source=["text", 0]),
        "image": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "save": node("SaveImage", images=["image", 0], filename_prefix=""),
        "b": node("PreviewAny", source=["image", 0]),
        "joined": node("StringConcatenate", string_a=["a", 0], string_b="!", delimiter=""),
        "c": node("PreviewAny", source=["joined", 0]),
    }
    cost = graph_of(prompt, catalogue).cost
    assert (cost.outputs, cost.result_bytes > 8 * 8 * 3) == (4, True)
    with running(tmp_path) as engine:
        watched = engine.submit(prompt)
        end = watched.wait()
    assert isinstance(end, Finished)
    results = [each for each in watched.events if isinstance(each, ImageReady | TextReady)]
    assert [(each.index, each.node_id) for each in results] == [*enumerate(["a", "save", "b", "c"])]
    texts = [each.text for each in results if isinstance(each, TextReady)]
    assert texts == ["größe", "a value of the type Tensor", "größe!"]
    assert end.images == 4


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, ("7", "7.0")),
        (-2.75, ("-2", "-2.75")),
        (True, ("1", "1.0")),
        (" 12345678901234567 ", ("12345678901234567", "1.2345678901234568e+16")),
        ("1e3", ("1000", "1000.0")),
    ],
)
def test_a_value_becomes_a_number(
    value: Any, expected: tuple[str, str], tmp_path: Path, catalogue: Catalogue
) -> None:
    assert graph_of(converted(value), catalogue).cost.outputs == 2
    with running(tmp_path) as engine:
        watched = engine.submit(converted(value))
        watched.wait()
    found = tuple(each.text for each in watched.events if isinstance(each, TextReady))
    assert found == expected


@pytest.mark.parametrize("value", ["", "x", "nan", "1e999", None, {}])
def test_what_is_no_number_is_refused_with_the_node(value: Any, catalogue: Catalogue) -> None:
    errors = refusal_of(converted(value), catalogue).node_errors
    assert [*errors] == ["n"]


def test_a_number_is_a_literal_of_the_nodes_that_get_it(catalogue: Catalogue) -> None:
    prompt = {
        "text": node("PrimitiveString", value="100000"),
        "n": node("ComfyNumberConvert", value=["text", 0]),
        "image": node("EmptyImage", width=["n", 1], height=8, batch_size=1, color=0),
        "save": node("SaveImage", images=["image", 0], filename_prefix=""),
    }
    (error,) = refusal_of(prompt, catalogue).node_errors["image"]["errors"]
    assert error["type"] == "value_bigger_than_max"


def test_a_switch_that_only_the_run_could_resolve_has_no_text(catalogue: Catalogue) -> None:
    prompt = {
        "a": node("StringContains", string="ab", substring="a", case_sensitive=True),
        "switch": node("ComfySwitchNode", switch=["a", 0], on_false=["x", 0], on_true=["x", 0]),
        "x": node("PrimitiveInt", value=1),
        "text": node("PreviewAny", source=["switch", 0]),
    }
    (error,) = refusal_of(prompt, catalogue).node_errors["text"]["errors"]
    assert error["type"] == "return_type_mismatch"


def test_a_number_that_only_the_run_knows_is_converted(tmp_path: Path) -> None:
    prompt = converted(["size", 0]) | {
        "image": node("EmptyImage", width=8, height=16, batch_size=1, color=0),
        "size": node("GetImageSize", image=["image", 0]),
    }
    with running(tmp_path) as engine:
        watched = engine.submit(prompt)
        watched.wait()
        assert [e.text for e in watched.events if isinstance(e, TextReady)] == ["8", "8.0"]
