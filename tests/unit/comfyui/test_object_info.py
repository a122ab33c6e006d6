"""The node types of a ComfyUI server, and what they say about a graph."""

from __future__ import annotations

import json
from typing import Any

import pytest

from comfyui.errors import PromptRefused, RequestFailed
from comfyui.object_info import ObjectInfo

NODES: dict[str, Any] = {
    "LoadImage": {
        "input": {"required": {"image": [["example.png"], {"image_upload": True}]}},
        "output": ["IMAGE", "MASK"],
        "python_module": "nodes",
    },
    "Loader": {
        "input": {"required": {"name": [["a.safetensors", "b.safetensors"]]}},
        "python_module": "nodes",
    },
    "Sampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "steps": ["INT", {"default": 20, "min": 1, "max": 100}],
                "cfg": ["FLOAT", {"min": 0.0, "max": 30.0}],
                "sampler": ["COMBO", {"options": ["euler", "heun"]}],
                "mode": ["COMFY_DYNAMICCOMBO_V3", {}],
            },
            "optional": {"seed": ["INT", {"min": 0, "max": 2**64 - 1}]},
        },
        "python_module": "comfy_extras.nodes_samplers",
    },
    "Pack": {
        "input": {"required": {"choice": [["a"], {}], "number": ["INT", {"max": 3}]}},
        "output_node": True,
        "python_module": "custom_nodes.pack",
    },
    "Save": {
        "input": {"required": {"images": ["IMAGE"]}, "hidden": {"prompt": "PROMPT"}},
        "output_node": True,
        "python_module": "nodes",
    },
}
INFO = ObjectInfo(json.dumps(NODES).encode())


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def sampled(**changed: Any) -> dict[str, Any]:
    """Return a graph whose node 2 has these inputs."""
    values = {"model": ["1", 0], "steps": 20, "cfg": 7, "sampler": "euler", "mode": "x"}
    inputs = {name: value for name, value in (values | changed).items() if value is not None}
    return {
        "1": node("Loader", name="a.safetensors"),
        "2": node("Sampler", **inputs),
        "3": node("Save", images=["2", 0]),
    }


def refusal(graph: dict[str, Any], *files: str) -> PromptRefused:
    with pytest.raises(PromptRefused) as refused:
        INFO.check(graph, files)
    return refused.value


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"seed": 2**64 - 1},
        {"steps": "20"},
        {"cfg": ["1", 0]},
        {"mode": None},
        {"unknown": 1},
    ],
)
def test_a_graph_that_the_server_may_run_is_accepted(changed: dict[str, Any]) -> None:
    INFO.check(sampled(**changed))


@pytest.mark.parametrize(
    ("changed", "type"),
    [
        ({"model": None}, "required_input_missing"),
        ({"steps": 0}, "value_smaller_than_min"),
        ({"cfg": 31}, "value_bigger_than_max"),
        ({"steps": "many"}, "invalid_input_type"),
        ({"steps": None, "cfg": 7}, "required_input_missing"),
        ({"sampler": "magic"}, "value_not_in_list"),
        ({"seed": -1}, "value_smaller_than_min"),
    ],
)
def test_a_wrong_value_is_refused_in_comfyuis_form(changed: dict[str, Any], type: str) -> None:
    error = refusal(sampled(**changed))

    assert error.error["type"] == "prompt_outputs_failed_validation"
    [(node_id, found)] = error.node_errors.items()
    assert (node_id, found["class_type"], found["dependent_outputs"]) == ("2", "Sampler", ["3"])
    [wrong] = found["errors"]
    assert wrong["type"] == type
    assert wrong["extra_info"] == {"input_name": next(iter(changed))}


def test_the_names_of_models_are_known() -> None:
    graph = sampled() | {"1": node("Loader", name="c.safetensors")}

    details = refusal(graph).error["details"]

    assert "c.safetensors not in [a.safetensors, b.safetensors]" in details
    assert INFO.choices("Loader", "name") == ("a.safetensors", "b.safetensors")
    assert INFO.choices("Sampler", "sampler") == ("euler", "heun")
    assert INFO.choices("Sampler", "steps") is INFO.choices("None", "x") is None


def test_all_unknown_node_types_are_named() -> None:
    graph = {"1": node("X"), "2": node("Y"), "3": node("X"), "4": node("Pack")}

    error = refusal(graph).error

    assert (error["type"], error["details"]) == ("missing_node_type", "X, Y")
    assert error["extra_info"] == {"node_id": "1", "class_type": "X"}


def test_nodes_that_no_output_needs_are_not_checked() -> None:
    INFO.check(sampled() | {"9": node("Loader", name="missing")})
    assert refusal({"1": node("Loader", name="a.safetensors")}).error["type"] == "prompt_no_outputs"


def test_values_are_left_to_nodes_that_may_check_them_themselves() -> None:
    INFO.check({"1": node("Pack", choice="other", number=9)})
    INFO.check({"1": node("LoadImage", image="own.png"), "2": node("Save", images=["1", 0])})
    INFO.check(sampled() | {"1": node("Loader", name="mine [input]")}, ["mine"])
    assert "choice" in refusal({"1": node("Pack", number=1)}).error["details"]


def test_files_are_the_choices_of_inputs_that_choose_a_file() -> None:
    listed = INFO.with_files(["cat.png", "dog.png"])

    image = listed["LoadImage"]["input"]["required"]["image"]
    assert image == [["cat.png", "dog.png"], {"image_upload": True}]
    assert listed["Save"] == NODES["Save"]
    assert INFO.nodes["LoadImage"] == NODES["LoadImage"]


def test_latents_of_other_callers_are_not_listed() -> None:
    loader = {"input": {"required": {"latent": [["of-another.latent"]]}, "optional": None}}
    nodes = {"LoadLatent": {**loader, "python_module": "nodes"}, "Save": NODES["Save"]}
    info = ObjectInfo(json.dumps(nodes).encode())

    listed = info.with_files(["mine.latent"])

    assert listed["LoadLatent"]["input"]["required"] == {"latent": [["mine.latent"], {}]}
    info.check({"1": node("LoadLatent", latent="new.latent"), "2": node("Save", images=["1", 0])})


@pytest.mark.parametrize("content", [b"", b"[]", b'{"A": 1}', b"[" * 100_000])
def test_an_answer_of_another_form_is_an_error(content: bytes) -> None:
    with pytest.raises(RequestFailed):
        ObjectInfo(content)


@pytest.mark.parametrize(
    "declared",
    [{}, {"input": None}, {"input": {"required": []}}, {"input": {"required": {"a": []}}}],
)
def test_a_declaration_of_another_form_declares_no_inputs(declared: dict[str, Any]) -> None:
    info = ObjectInfo(json.dumps({"A": {**declared, "output_node": True}}).encode())

    info.check({"1": node("A", a=1)})


def test_many_errors_are_cut() -> None:
    graph = {str(index): node("Pack") for index in range(500)}

    assert len(refusal(graph).node_errors) == 50
