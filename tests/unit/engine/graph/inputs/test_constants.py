"""Values that come by links are held to the same rules as those that stand in their place."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.inputs import arithmetic
from engine.graph.limits import Limits
from engine.graph.validation import validate
from tests.support.engine.workflows import node, text_to_image

Prompt = dict[str, Any]


def image(**inputs: Any) -> Prompt:
    sides = {"width": 64, "height": 64, "batch_size": 1, "color": 0}
    return {
        "1": node("EmptyImage", **(sides | inputs)),
        "2": node("SaveImage", images=["1", 0], filename_prefix="x"),
    }


def errors_of(prompt: Prompt, catalogue: Catalogue, **limits: Any) -> dict[str, list[str]]:
    with pytest.raises(GraphInvalid) as invalid:
        validate(prompt, catalogue, Limits(**limits))
    found = invalid.value.node_errors
    return {node_id: [each["type"] for each in one["errors"]] for node_id, one in found.items()}


def graph_of(prompt: Prompt, catalogue: Catalogue) -> Graph:
    return validate(prompt, catalogue, Limits())


def test_a_number_by_a_link_is_as_one_in_its_place(empty_catalogue: Catalogue) -> None:
    given = image(width=["3", 0]) | {"3": node("PrimitiveInt", value=128)}
    assert graph_of(given, empty_catalogue) == graph_of(image(width=128), empty_catalogue)


def test_the_checked_graph_checks_to_itself(empty_catalogue: Catalogue) -> None:
    given = image(width=["3", 0]) | {"3": node("PrimitiveInt", value=128)}
    graph = graph_of(given, empty_catalogue)
    assert graph_of(graph.prompt, empty_catalogue) == graph


def test_an_expression_takes_numbers_and_truth_values(empty_catalogue: Catalogue) -> None:
    values = {"values.a": ["w", 0], "values.b": ["half", 0], "values.c": ["on", 0]}
    given = image(width=["sum", 1]) | {
        "w": node("SeedNode", seed=127),
        "half": node("PrimitiveFloat", value=0.5),
        "on": node("PrimitiveBoolean", value=True),
        "sum": node("ComfyMathExpression", expression="a + 2 * b * c", **values),
    }
    assert graph_of(given, empty_catalogue) == graph_of(image(width=128), empty_catalogue)
    given["sum"]["inputs"]["expression"] = "a / 0"
    assert errors_of(given, empty_catalogue) == {"sum": ["custom_validation_failed"]}
    given["half"] = node("PrimitiveString", value="0.5")
    assert errors_of(given, empty_catalogue)["sum"] == ["return_type_mismatch"]


def test_it_costs_as_much(empty_catalogue: Catalogue) -> None:
    linked = text_to_image(steps=["p", 0]) | {"p": node("PrimitiveInt", value=50)}
    found = graph_of(linked, empty_catalogue)
    assert found.cost == graph_of(text_to_image(steps=50), empty_catalogue).cost
    assert found.total_steps == 50


@pytest.mark.parametrize(
    ("value", "error"),
    [(5000, "value_bigger_than_max"), (0, "value_smaller_than_min"), (-(2**62), None)],
)
def test_its_range_holds(value: int, error: str | None, empty_catalogue: Catalogue) -> None:
    given = image(width=["3", 0]) | {"3": node("PrimitiveInt", value=value)}
    assert errors_of(given, empty_catalogue) == {"1": [error or "value_smaller_than_min"]}


def test_the_product_of_linked_sides_is_limited(empty_catalogue: Catalogue) -> None:
    given = image(width=["3", 0], height=["3", 0], batch_size=16)
    given["3"] = node("PrimitiveInt", value=4096)
    assert errors_of(given, empty_catalogue) == {"1": ["value_bigger_than_max"]}


def test_a_mistake_in_the_node_of_a_value_is_told(empty_catalogue: Catalogue) -> None:
    given = image(width=["3", 0]) | {"3": node("PrimitiveInt", value="many")}
    assert errors_of(given, empty_catalogue) == {"3": ["invalid_input_type"]}


def test_types_must_fit(empty_catalogue: Catalogue) -> None:
    given = image(width=["3", 0]) | {"3": node("PrimitiveString", value="64")}
    assert errors_of(given, empty_catalogue) == {"1": ["return_type_mismatch"]}


def test_texts_are_joined(empty_catalogue: Catalogue) -> None:
    prompt = text_to_image()
    prompt["6"]["inputs"]["text"] = ["j", 0]
    prompt["j"] = node("StringConcatenate", string_a=["a", 0], string_b="b", delimiter=", ")
    prompt["a"] = node("PrimitiveStringMultiline", value="a")
    graph = graph_of(prompt, empty_catalogue)
    assert graph.node("6").literals["text"] == "a, b"
    assert {"j", "a"}.isdisjoint(each.id for each in graph.nodes)


def doubled(count: int) -> Prompt:
    """A text of 2**count characters, whose length is the width of an image."""
    joined = {
        f"s{n}": node(
            "StringConcatenate", string_a=[f"s{n - 1}", 0], string_b=[f"s{n - 1}", 0], delimiter=""
        )
        for n in range(1, count + 1)
    }
    length = {"n": node("StringLength", string=[f"s{count}", 0])}
    return image(width=["n", 0]) | joined | length | {"s0": node("PrimitiveString", value="a")}


def test_a_text_that_doubles_stays_bounded(empty_catalogue: Catalogue) -> None:
    assert graph_of(doubled(10), empty_catalogue).node("1").literals["width"] == 1024
    assert errors_of(doubled(900), empty_catalogue)["s16"] == ["value_bigger_than_max"]


def test_a_text_that_only_a_run_tells_stays_bounded_too(empty_catalogue: Catalogue) -> None:
    unknown = {
        "m": node("GetImageSize", image=["1", 0]),
        "s0": node("StringSubstring", string="a" * 64, start=0, end=["m", 0]),
        "3": node("SaveImage", images=["1", 0], filename_prefix=["s900", 0]),
    }
    with pytest.raises(GraphInvalid, match=r"s13 .* more than 524288 characters"):
        graph_of(doubled(900) | image(width=64) | unknown, empty_catalogue)


def test_all_texts_together_stay_bounded(empty_catalogue: Catalogue) -> None:
    text = "a" * 30_000
    copies = {
        f"s{n}": node("StringTrim", string=[f"s{n - 1}", 0], mode="Both") for n in range(1, 30)
    }
    given = image(width=["n", 0]) | copies | {"s0": node("PrimitiveString", value=text)}
    given["n"] = node("StringLength", string=["s29", 0])
    found = errors_of(given, empty_catalogue)
    assert found["s17"] == ["value_bigger_than_max"]


def test_a_replacement_that_would_be_huge_is_not_made(empty_catalogue: Catalogue) -> None:
    huge = {"string": "a" * 32_000, "find": "a", "replace": "b" * 32_000}
    given = image(width=["n", 0]) | {"r": node("StringReplace", **huge)}
    given["n"] = node("StringLength", string=["r", 0])
    assert errors_of(given, empty_catalogue)["r"] == ["custom_validation_failed"]


def test_values_that_need_each_other_are_a_cycle(empty_catalogue: Catalogue) -> None:
    given = image(width=["n", 0]) | {
        "n": node("StringLength", string=["a", 0]),
        "a": node("StringTrim", string=["b", 0], mode="Both"),
        "b": node("StringTrim", string=["a", 0], mode="Both"),
    }
    found = errors_of(given, empty_catalogue)
    assert ["dependency_cycle"] in found.values()


def test_a_long_chain_of_values_is_followed(empty_catalogue: Catalogue) -> None:
    chain = {
        f"s{n}": node("StringTrim", string=[f"s{n - 1}", 0], mode="Both") for n in range(1, 900)
    }
    given = image(width=["n", 0]) | chain | {"s0": node("PrimitiveString", value="abc")}
    given["n"] = node("StringLength", string=["s899", 0])
    assert graph_of(given, empty_catalogue).node("1").literals["width"] == 3


def chained(count: int, expression: str, start: Any = 1) -> Prompt:
    """Each node computes of the one before; the last is the width of an image."""
    sums = {
        f"e{n}": node(
            "ComfyMathExpression", expression=expression, **{"values.a": [f"e{n - 1}", 1]}
        )
        for n in range(1, count + 1)
    }
    sums["e0"] = node("ComfyMathExpression", expression="a", **{"values.a": start})
    return image(width=[f"e{count}", 1]) | sums


@pytest.fixture
def parsed() -> Any:
    """What `cache_info` says of the expressions of this test."""
    arithmetic._parsed.cache_clear()
    return arithmetic._parsed.cache_info


def test_an_expression_of_many_nodes_is_parsed_once(
    parsed: Any, empty_catalogue: Catalogue
) -> None:
    graph = graph_of(chained(900, "a + 0.5 - 0.5 # many"), empty_catalogue)
    assert graph.node("1").literals["width"] == 1
    assert parsed().misses == 2


@pytest.mark.parametrize("is_known", [True, False])
def test_no_graph_computes_more_than_so_many_characters(
    is_known: bool, parsed: Any, empty_catalogue: Catalogue
) -> None:
    """Whether literals alone make the numbers, or the run."""
    size = node("GetImageSize", image=["small", 0])
    small = {"small": image(width=64)["1"], "size": size}

    def graph(length: int) -> Prompt:
        uncached = [f"{'a'.ljust(length - 4)}#{n:03}" for n in range(41)]
        given = chained(40, "", start=64 if is_known else ["size", 0]) | small
        for n in range(1, 41):
            given[f"e{n}"]["inputs"]["expression"] = uncached[n]
        return given

    assert graph_of(graph(800), empty_catalogue)
    accepted = parsed()
    assert accepted.misses == 41
    with pytest.raises(GraphInvalid) as invalid:
        graph_of(graph(960), empty_catalogue)
    assert parsed().misses - accepted.misses < 36
    told = str(invalid.value.node_errors or invalid.value.details)
    assert "more than 32768 characters, which is the most that are taken" in told
