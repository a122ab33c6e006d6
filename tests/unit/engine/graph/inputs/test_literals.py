from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from tests.support.engine.invalid_graphs import error_body, node_error
from tests.support.engine.workflows import node, with_input

Prompt = dict[str, Any]
MakePrompt = Callable[..., Prompt]


def test_numeric_strings_and_foreign_spellings_are_taken(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    given = prompt(steps="7", cfg="3.5", seed=4.0, sampler_name="DPM++ 2M", scheduler="Karras")
    literals = validate(with_input(given, "3", extra=[[]]), empty_catalogue, Limits())
    sampler = literals.node("3").literals
    assert (sampler["steps"], sampler["cfg"], sampler["seed"]) == (7, 3.5, 4)
    assert (sampler["sampler_name"], sampler["scheduler"]) == ("dpmpp_2m", "karras")
    assert "extra" not in sampler


def test_sizes_are_rounded_down_to_a_multiple_of_8(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    given = with_input(prompt(), "5", width=71, height="64")
    literals = validate(given, empty_catalogue, Limits()).node("5").literals
    assert (literals["width"], literals["height"]) == (64, 64)


@pytest.mark.parametrize(
    "inputs",
    [
        {"width": 4097},
        {"width": 15},
        {"batch_size": 17},
        {"width": 4096, "height": 4096, "batch_size": 2},
    ],
    ids=str,
)
def test_sizes_beyond_the_limits_are_refused(
    inputs: Prompt, prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    error = node_error(with_input(prompt(), "5", **inputs), empty_catalogue, "5")
    assert error["type"] in {"value_bigger_than_max", "value_smaller_than_min"}


def test_unknown_checkpoint_is_not_in_list(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    given = with_input(prompt(), "4", ckpt_name="../../etc/passwd")
    assert node_error(given, empty_catalogue, "4")["type"] == "value_not_in_list"


def test_text_must_be_unicode(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    error = node_error(with_input(prompt(), "6", text="\ud800"), empty_catalogue, "6")
    assert error["type"] == "invalid_input_type"


@pytest.mark.parametrize(("width", "taken"), [(0, True), (256, True), (257, False), (-1, False)])
def test_a_length_of_0_is_let_be_and_a_long_one_is_not(
    width: int, taken: bool, empty_catalogue: Catalogue
) -> None:
    inputs = {"upscale_method": "area", "width": width, "height": 8, "crop": "disabled"}
    graph = {
        "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "2": node("ImageScale", image=["1", 0], **inputs),
        "3": node("PreviewImage", images=["2", 0]),
    }
    limits = Limits(max_side=256)
    if taken:
        assert validate(graph, empty_catalogue, limits).node("2").literals["width"] == width
    else:
        assert "2" in error_body(graph, empty_catalogue, limits)["node_errors"]


def test_a_text_that_is_too_long_is_refused_without_repeating_it(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    limits = Limits(max_text_chars=1000)
    validate(with_input(prompt(), "6", text="x" * 1000), empty_catalogue, limits)
    body = error_body(with_input(prompt(), "6", text="x" * 1001), empty_catalogue, limits)
    (error,) = body["node_errors"]["6"]["errors"]
    assert error["type"] == "value_bigger_than_max"
    assert error["details"] == "text: 1001 characters, at most 1000"
    assert len(json.dumps(body)) < 1500
