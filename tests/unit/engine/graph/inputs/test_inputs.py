from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from tests.support.engine.invalid_graphs import error_body, node_error
from tests.support.engine.workflows import with_input, without_input

Prompt = dict[str, Any]
MakePrompt = Callable[..., Prompt]


def test_missing_input_is_named_in_comfyuis_shape(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    body = error_body(without_input(prompt(), "3", "cfg"), empty_catalogue)
    entry = body["node_errors"]["3"]
    assert entry["class_type"] == "KSampler"
    assert entry["dependent_outputs"] == ["9"]
    assert entry["errors"][0]["type"] == "required_input_missing"
    assert entry["errors"][0]["details"] == "cfg"
    assert entry["errors"][0]["extra_info"] == {"input_name": "cfg"}


@pytest.mark.parametrize(
    ("inputs", "type"),
    [
        ({"steps": 10_001}, "value_bigger_than_max"),
        ({"steps": 0}, "value_smaller_than_min"),
        ({"seed": 2**64}, "value_bigger_than_max"),
        ({"seed": -1}, "value_smaller_than_min"),
        ({"cfg": 100.5}, "value_bigger_than_max"),
        ({"denoise": -0.1}, "value_smaller_than_min"),
        ({"steps": True}, "invalid_input_type"),
        ({"steps": None}, "invalid_input_type"),
        ({"steps": {"a": 1}}, "invalid_input_type"),
        ({"steps": "many"}, "invalid_input_type"),
        ({"steps": float("nan")}, "invalid_input_type"),
        ({"steps": float("inf")}, "invalid_input_type"),
        ({"cfg": float("nan")}, "invalid_input_type"),
        ({"cfg": float("-inf")}, "invalid_input_type"),
        ({"cfg": 10**400}, "invalid_input_type"),
        ({"seed": 10**5000}, "value_bigger_than_max"),
        ({"seed": "9" * 5000}, "invalid_input_type"),
        ({"sampler_name": "nope"}, "value_not_in_list"),
        ({"sampler_name": 3}, "value_not_in_list"),
        ({"sampler_name": "DPM++ 2M Karras"}, "value_not_in_list"),
        ({"model": "4"}, "bad_linked_input"),
        ({"model": None}, "bad_linked_input"),
        ({"model": ["4"]}, "bad_linked_input"),
        ({"model": ["4", 0, 0]}, "bad_linked_input"),
        ({"model": [4, 0]}, "bad_linked_input"),
        ({"model": ["4", "0"]}, "bad_linked_input"),
        ({"model": ["4", False]}, "bad_linked_input"),
        ({"model": ["4", -1]}, "bad_linked_input"),
        ({"model": ["4", 3]}, "bad_linked_input"),
        ({"model": ["nope", 0]}, "bad_linked_input"),
        ({"steps": []}, "bad_linked_input"),
        ({"model": ["4", 1]}, "return_type_mismatch"),
        ({"steps": ["4", 0]}, "return_type_mismatch"),
        ({"latent_image": ["9", 0]}, "bad_linked_input"),
    ],
)
def test_bad_input_gets_comfyuis_type(
    inputs: Prompt, type: str, prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    error = node_error(with_input(prompt(), "3", **inputs), empty_catalogue)
    assert error["type"] == type
    assert error["extra_info"]["input_name"] == next(iter(inputs))
