from __future__ import annotations

import json
import pickle
import time
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
from tests.support.engine.workflows import node, text_to_image

Prompt = dict[str, Any]
MakePrompt = Callable[..., Prompt]
LIMITS = Limits()


def refused(prompt: object, catalogue: Catalogue, limits: Limits = LIMITS) -> dict[str, Any]:
    """The error body, which must be strict JSON whatever was sent."""
    with pytest.raises(GraphInvalid) as caught:
        validate(prompt, catalogue, limits)
    body = caught.value.body()
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    return body


def node_error(prompt: object, catalogue: Catalogue, node_id: str = "3") -> dict[str, Any]:
    body = refused(prompt, catalogue)
    assert body["error"]["type"] == "prompt_outputs_failed_validation"
    (error,) = body["node_errors"][node_id]["errors"]
    found: dict[str, Any] = error
    return found


def with_input(prompt: Prompt, node_id: str, **inputs: Any) -> Prompt:
    node = prompt[node_id]
    return {**prompt, node_id: {**node, "inputs": {**node["inputs"], **inputs}}}


def without_input(prompt: Prompt, node_id: str, name: str) -> Prompt:
    inputs = {key: value for key, value in prompt[node_id]["inputs"].items() if key != name}
    return {**prompt, node_id: {**prompt[node_id], "inputs": inputs}}


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
    assert refused(prompt, empty_catalogue)["error"]["type"] == "no_prompt"


@pytest.mark.parametrize("node", [None, [], "x", {}, {"class_type": 3}, {"class_type": "Nope"}])
def test_unknown_node_type_is_named(node: object, prompt: MakePrompt, empty_catalogue: Any) -> None:
    body = refused({**prompt(), "77": node}, empty_catalogue)
    assert body["error"]["type"] == "missing_node_type"
    assert "77" in body["error"]["details"]


def test_prompt_without_output_is_refused(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    nodes = {i: node for i, node in prompt().items() if i != "9"}
    assert refused(nodes, empty_catalogue)["error"]["type"] == "prompt_no_outputs"
    assert refused({}, empty_catalogue)["error"]["type"] == "prompt_no_outputs"


def test_missing_input_is_named_in_comfyuis_shape(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    body = refused(without_input(prompt(), "3", "cfg"), empty_catalogue)
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


def test_numeric_strings_and_foreign_spellings_are_taken(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    given = prompt(steps="7", cfg="3.5", seed=4.0, sampler_name="DPM++ 2M", scheduler="Karras")
    literals = validate(with_input(given, "3", extra=[[]]), empty_catalogue, LIMITS)
    sampler = literals.node("3").literals
    assert (sampler["steps"], sampler["cfg"], sampler["seed"]) == (7, 3.5, 4)
    assert (sampler["sampler_name"], sampler["scheduler"]) == ("dpmpp_2m", "karras")
    assert "extra" not in sampler


def test_sizes_are_rounded_down_to_a_multiple_of_8(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    given = with_input(prompt(), "5", width=71, height="64")
    literals = validate(given, empty_catalogue, LIMITS).node("5").literals
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


def test_one_bad_output_refuses_the_whole_graph(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    bad = {"class_type": "SaveImage", "inputs": {"filename_prefix": "x", "images": ["nope", 0]}}
    body = refused({**prompt(), "9b": bad}, empty_catalogue)
    assert list(body["node_errors"]) == ["9b"]
    assert body["node_errors"]["9b"]["dependent_outputs"] == ["9b"]


def test_nodes_that_no_output_needs_are_left_out_unchecked(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    idle = {"class_type": "VAEDecode", "inputs": {"samples": ["99", 0]}}
    graph = validate({**prompt(), "10": idle}, empty_catalogue, LIMITS)
    assert "10" not in {node.id for node in graph.nodes}


def test_cycle_is_named(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    given = with_input(prompt(), "3", latent_image=["3", 0])
    assert node_error(given, empty_catalogue)["type"] == "dependency_cycle"
    chained = {**given, "3b": given["3"]}
    chained = with_input(
        with_input(chained, "3", latent_image=["3b", 0]), "3b", latent_image=["3", 0]
    )
    body = refused(chained, empty_catalogue)
    ((entry,),) = [each["errors"] for each in body["node_errors"].values()]
    assert entry["type"] == "dependency_cycle"
    assert sorted(set(entry["details"].split(" → "))) == ["3", "3b"]


def chain(prompt: Prompt, length: int) -> Prompt:
    """Samplers one behind the other."""
    nodes = dict(prompt)
    last = "3"
    for number in range(length - len(prompt)):
        nodes[f"s{number}"] = with_input(prompt, "3", latent_image=[last, 0])["3"]
        last = f"s{number}"
    return with_input(nodes, "8", samples=[last, 0])


def test_a_thousand_nodes_in_a_chain_are_taken_fast(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    nodes = chain(prompt(), 1000)
    times = []
    for _ in range(5):
        began = time.process_time()  # a busy machine is slow, not wrong
        assert len(validate(nodes, empty_catalogue, LIMITS).nodes) == 1000
        times.append(time.process_time() - began)
    # Meant to be under 20 ms; the rest is room for a busy machine.
    assert min(times) < 0.1
    too_many = refused({**nodes, "x": {}}, empty_catalogue)
    assert too_many["error"]["type"] == "too_many_nodes"


def test_a_thousand_bad_nodes_are_refused_without_delay(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    save = {"class_type": "SaveImage", "inputs": {"images": ["8", 0]}}
    nodes = chain(prompt(), 500)
    for i in list(nodes):
        if i.startswith("s"):
            nodes = with_input(nodes, i, steps=0)
    nodes |= {f"o{number}": save for number in range(500)}
    began = time.process_time()
    body = refused(nodes, empty_catalogue)
    assert time.process_time() - began < 2
    assert len(body["node_errors"]["s0"]["dependent_outputs"]) == 501


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
    catalogue = Catalogue(ModelsFolder(Path("/nonexistent")))
    try:
        validate(resolve_seeds(prompt, lambda: 1), catalogue, LIMITS)
    except GraphInvalid as refusal:
        body, again = refusal.body(), pickle.loads(pickle.dumps(refusal)).body()
    else:
        return
    json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
    assert again == body


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
        assert "2" in refused(graph, empty_catalogue, limits)["node_errors"]


def test_deep_nesting_is_refused_cleanly(prompt: MakePrompt, empty_catalogue: Catalogue) -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    refused({"1": deep}, empty_catalogue)
    refused(with_input(prompt(), "3", steps=deep), empty_catalogue)
    refused(with_input(prompt(), "3", steps={"a": deep}), empty_catalogue)


def test_negative_seeds_are_drawn_and_others_kept(prompt: MakePrompt) -> None:
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


def test_a_text_that_is_too_long_is_refused_without_repeating_it(
    prompt: MakePrompt, empty_catalogue: Catalogue
) -> None:
    limits = Limits(max_text_chars=1000)
    validate(with_input(prompt(), "6", text="x" * 1000), empty_catalogue, limits)
    body = refused(with_input(prompt(), "6", text="x" * 1001), empty_catalogue, limits)
    (error,) = body["node_errors"]["6"]["errors"]
    assert error["type"] == "value_bigger_than_max"
    assert error["details"] == "text: 1001 characters, at most 1000"
    assert len(json.dumps(body)) < 1500
