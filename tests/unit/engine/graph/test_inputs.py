"""The check of the inputs of a node: links, literals and known values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import GraphInvalid, InputFileUnavailable
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import InputFile, Int, Link
from engine.graph.declarations import node as declared
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import maths
from tests.support.engine.engines import running
from tests.support.engine.graphs import error_body, graph_of, node_error, refusal_of
from tests.support.engine.workflows import Prompt, node, text_to_image, with_input, without_input


def test_missing_input_is_named_in_comfyuis_shape(catalogue: Catalogue) -> None:
    body = error_body(without_input(text_to_image(), "3", "cfg"), catalogue)
    entry = body["node_errors"]["3"]
    assert (entry["class_type"], entry["dependent_outputs"]) == ("KSampler", ["9"])
    told = {"type": "required_input_missing", "details": "cfg"}
    assert entry["errors"][0].items() >= {**told, "extra_info": {"input_name": "cfg"}}.items()


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("node_id", "name", "values", "type"),
    [
        ("3", "steps", [10_001], "value_bigger_than_max"),
        ("3", "steps", [0], "value_smaller_than_min"),
        ("3", "steps", [True, None, {"a": 1}, "many", NAN, INF], "invalid_input_type"),
        ("3", "steps", [[]], "bad_linked_input"),
        ("3", "steps", [["4", 0]], "return_type_mismatch"),
        ("3", "seed", [2**64, 10**5000], "value_bigger_than_max"),
        ("3", "seed", [-1], "value_smaller_than_min"),
        ("3", "seed", ["9" * 5000], "invalid_input_type"),
        ("3", "cfg", [100.5], "value_bigger_than_max"),
        ("3", "cfg", [NAN, -INF, 10**400], "invalid_input_type"),
        ("3", "denoise", [-0.1], "value_smaller_than_min"),
        ("3", "sampler_name", ["nope", 3, "DPM++ 2M Karras"], "value_not_in_list"),
        ("3", "model", ["4", None, ["4"], ["4", 0, 0], [4, 0]], "bad_linked_input"),
        ("3", "model", [["4", "0"], ["4", False], ["4", -1], ["4", 3]], "bad_linked_input"),
        ("3", "model", [["nope", 0]], "bad_linked_input"),
        ("3", "model", [["4", 1]], "return_type_mismatch"),
        ("3", "latent_image", [["9", 1]], "bad_linked_input"),
        ("4", "ckpt_name", ["../../etc/passwd"], "value_not_in_list"),
        ("5", "width", [4097], "value_bigger_than_max"),
        ("5", "width", [15], "value_smaller_than_min"),
        ("5", "batch_size", [17], "value_bigger_than_max"),
        ("6", "text", ["\ud800"], "invalid_input_type"),
    ],
)
def test_bad_input_gets_comfyuis_type(
    node_id: str, name: str, values: list[Any], type: str, *, catalogue: Catalogue
) -> None:
    for value in values:
        given = with_input(text_to_image(), node_id, **{name: value})
        error = node_error(given, catalogue, node_id)
        assert (error["type"], error["extra_info"]["input_name"]) == (type, name), value


def test_numeric_strings_and_foreign_spellings_are_taken(catalogue: Catalogue) -> None:
    names = {"sampler_name": "DPM++ 2M", "scheduler": "Karras"}
    given = text_to_image(steps="7", cfg="3.5", seed=4.0, **names, extra=[[]])
    sampler = graph_of(given, catalogue).node("3").literals
    assert (sampler["steps"], sampler["cfg"], sampler["seed"]) == (7, 3.5, 4)
    assert (sampler["sampler_name"], sampler["scheduler"]) == ("dpmpp_2m", "karras")
    assert "extra" not in sampler


def test_sizes_are_rounded_down_to_a_multiple_of_8(catalogue: Catalogue) -> None:
    given = with_input(text_to_image(), "5", width=71, height="64")
    literals = graph_of(given, catalogue).node("5").literals
    assert (literals["width"], literals["height"]) == (64, 64)


def test_sizes_whose_pixels_are_too_many_together_are_refused(catalogue: Catalogue) -> None:
    given = with_input(text_to_image(), "5", width=4096, height=4096, batch_size=2)
    assert node_error(given, catalogue, "5")["type"] == "value_bigger_than_max"


@pytest.mark.parametrize(("width", "taken"), [(0, True), (256, True), (257, False), (-1, False)])
def test_a_length_of_0_is_let_be_and_a_long_one_is_not(
    width: int, taken: bool, catalogue: Catalogue
) -> None:
    inputs = {"upscale_method": "area", "width": width, "height": 8, "crop": "disabled"}
    graph = {
        "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        "2": node("ImageScale", image=["1", 0], **inputs),
        "3": node("PreviewImage", images=["2", 0]),
    }
    if taken:
        found = graph_of(graph, catalogue, max_side=256)
        assert found.node("2").literals["width"] == width
    else:
        assert "2" in errors_of(graph, catalogue, max_side=256)


def test_a_text_that_is_too_long_is_refused_without_repeating_it(catalogue: Catalogue) -> None:
    fits, long = (with_input(text_to_image(), "6", text="x" * length) for length in (1000, 1001))
    graph_of(fits, catalogue, max_text_chars=1000)
    body = error_body(long, catalogue, max_text_chars=1000)
    (error,) = body["node_errors"]["6"]["errors"]
    assert error["type"] == "value_bigger_than_max"
    assert error["details"] == "text: 1001 characters, at most 1000"
    assert len(json.dumps(body)) < 1500


def image(**inputs: Any) -> Prompt:
    sides = {"width": 64, "height": 64, "batch_size": 1, "color": 0}
    return {
        "1": node("EmptyImage", **(sides | inputs)),
        "2": node("SaveImage", images=["1", 0], filename_prefix="x"),
    }


def errors_of(prompt: Prompt, catalogue: Catalogue, **limits: Any) -> dict[str, list[str]]:
    found = refusal_of(prompt, catalogue, **limits).node_errors
    return {node_id: [each["type"] for each in one["errors"]] for node_id, one in found.items()}


def test_a_number_by_a_link_is_as_one_in_its_place(catalogue: Catalogue) -> None:
    given = image(width=["3", 0]) | {"3": node("PrimitiveInt", value=128)}
    assert graph_of(given, catalogue) == graph_of(image(width=128), catalogue)


def test_an_expression_takes_numbers_and_truth_values(catalogue: Catalogue) -> None:
    values = {"values.a": ["w", 0], "values.b": ["half", 0], "values.c": ["on", 0]}
    given = image(width=["sum", 1]) | {
        "w": node("SeedNode", seed=127),
        "half": node("PrimitiveFloat", value=0.5),
        "on": node("PrimitiveBoolean", value=True),
        "sum": node("ComfyMathExpression", expression="a + 2 * b * c", **values),
    }
    assert graph_of(given, catalogue) == graph_of(image(width=128), catalogue)
    given["sum"]["inputs"]["expression"] = "a / 0"
    assert errors_of(given, catalogue) == {"sum": ["custom_validation_failed"]}
    given["half"] = node("PrimitiveString", value="0.5")
    assert errors_of(given, catalogue)["sum"] == ["return_type_mismatch"]


def test_it_costs_as_much(catalogue: Catalogue) -> None:
    linked = text_to_image(steps=["p", 0]) | {"p": node("PrimitiveInt", value=50)}
    found = graph_of(linked, catalogue)
    assert found.cost == graph_of(text_to_image(steps=50), catalogue).cost
    assert found.total_steps == 50


LINKED: Prompt = {"width": ["3", 0]}
SQUARES: Prompt = {"width": ["3", 0], "height": ["3", 0], "batch_size": 16}


@pytest.mark.parametrize(
    ("sides", "kind", "value", "error"),
    [
        (LINKED, "Int", 5000, {"1": ["value_bigger_than_max"]}),
        (LINKED, "Int", 0, {"1": ["value_smaller_than_min"]}),
        (LINKED, "Int", -(2**62), {"1": ["value_smaller_than_min"]}),
        (LINKED, "Int", "many", {"3": ["invalid_input_type"]}),
        (LINKED, "String", "64", {"1": ["return_type_mismatch"]}),
        (SQUARES, "Int", 4096, {"1": ["value_bigger_than_max"]}),
    ],
)
def test_a_linked_number_is_held_to_the_range_and_type_of_its_input(
    sides: Prompt, kind: str, value: object, error: dict[str, list[str]], catalogue: Catalogue
) -> None:
    given = image(**sides) | {"3": node(f"Primitive{kind}", value=value)}
    assert errors_of(given, catalogue) == error


def test_texts_are_joined(catalogue: Catalogue) -> None:
    prompt = text_to_image()
    prompt["6"]["inputs"]["text"] = ["j", 0]
    prompt["j"] = node("StringConcatenate", string_a=["a", 0], string_b="b", delimiter=", ")
    prompt["a"] = node("PrimitiveStringMultiline", value="a")
    graph = graph_of(prompt, catalogue)
    assert graph.node("6").literals["text"] == "a, b"
    assert {"j", "a"}.isdisjoint(each.id for each in graph.nodes)


def as_wide_as(text: str, **nodes: Prompt) -> Prompt:
    """An image whose width is the length of the text of a node."""
    return image(width=["n", 0]) | {"n": node("StringLength", string=[text, 0])} | nodes


def doubled(count: int) -> Prompt:
    """A text of 2**count characters, whose length is the width of an image."""
    joined = {"s0": node("PrimitiveString", value="a")}
    for n in range(1, count + 1):
        both = {"string_a": [f"s{n - 1}", 0], "string_b": [f"s{n - 1}", 0]}
        joined[f"s{n}"] = node("StringConcatenate", **both, delimiter="")
    return as_wide_as(f"s{count}", **joined)


def trimmed(count: int, text: str) -> Prompt:
    """A text that so many nodes trim, one after the other."""
    chain = {"s0": node("PrimitiveString", value=text)}
    for n in range(1, count + 1):
        chain[f"s{n}"] = node("StringTrim", string=[f"s{n - 1}", 0], mode="Both")
    return as_wide_as(f"s{count}", **chain)


def test_a_text_that_doubles_stays_bounded(catalogue: Catalogue) -> None:
    assert graph_of(doubled(10), catalogue).node("1").literals["width"] == 1024
    assert errors_of(doubled(900), catalogue)["s16"] == ["value_bigger_than_max"]


def test_a_text_that_only_a_run_tells_stays_bounded_too(catalogue: Catalogue) -> None:
    unknown = {
        "m": node("GetImageSize", image=["1", 0]),
        "s0": node("StringSubstring", string="a" * 64, start=0, end=["m", 0]),
        "3": node("SaveImage", images=["1", 0], filename_prefix=["s900", 0]),
    }
    refusal = refusal_of(doubled(900) | image(width=64) | unknown, catalogue)
    assert re.search(r"s13 .* more than 524288 characters", str(refusal))


def test_all_texts_together_stay_bounded(catalogue: Catalogue) -> None:
    found = errors_of(trimmed(29, "a" * 30_000), catalogue)
    assert found["s17"] == ["value_bigger_than_max"]


def test_a_replacement_that_would_be_huge_is_not_made(catalogue: Catalogue) -> None:
    huge = {"string": "a" * 32_000, "find": "a", "replace": "b" * 32_000}
    given = as_wide_as("r", r=node("StringReplace", **huge))
    assert errors_of(given, catalogue)["r"] == ["custom_validation_failed"]


def test_values_that_need_each_other_are_a_cycle(catalogue: Catalogue) -> None:
    circle = trimmed(2, "") | {"s0": node("StringTrim", string=["s2", 0], mode="Both")}
    assert ["dependency_cycle"] in errors_of(circle, catalogue).values()


def test_a_long_chain_of_values_is_followed(catalogue: Catalogue) -> None:
    assert graph_of(trimmed(899, "abc"), catalogue).node("1").literals["width"] == 3


def chained(count: int, expression: str, start: Any = 1) -> Prompt:
    """Each node computes of the one before; the last is the width of an image."""
    sums = {"e0": node("ComfyMathExpression", expression="a", **{"values.a": start})}
    for n in range(1, count + 1):
        value = {"values.a": [f"e{n - 1}", 1]}
        sums[f"e{n}"] = node("ComfyMathExpression", expression=expression, **value)
    return image(width=[f"e{count}", 1]) | sums


@pytest.fixture
def parsed() -> Any:
    """What `cache_info` says of the expressions of this test."""
    maths._parsed.cache_clear()
    return maths._parsed.cache_info


def test_an_expression_of_many_nodes_is_parsed_once(parsed: Any, catalogue: Catalogue) -> None:
    graph = graph_of(chained(900, "a + 0.5 - 0.5 # many"), catalogue)
    assert graph.node("1").literals["width"] == 1
    assert parsed().misses == 2


@pytest.mark.parametrize("is_known", [True, False])
def test_no_graph_computes_more_than_so_many_characters(
    is_known: bool, parsed: Any, catalogue: Catalogue
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

    assert graph_of(graph(800), catalogue)
    accepted = parsed()
    assert accepted.misses == 41
    refusal = refusal_of(graph(960), catalogue)
    assert parsed().misses - accepted.misses < 36
    told = str(refusal.node_errors or refusal.details)
    assert "more than 32768 characters, which is the limit" in told


@declared("Grey", inputs={"image": InputFile(tooltip="Its first byte.")}, outputs=("IMAGE",))
def grey(context: Any, image: str) -> tuple[torch.Tensor]:
    """An image as bright as the first byte of the file."""
    return (torch.full((1, 8, 8, 3), context.input_file(image)[0] / 255),)


@declared("Latent", inputs={"latent": InputFile(kind="latent")}, outputs=("LATENT",))
def latent(context: Any, latent: str) -> tuple[bytes]:
    return (context.input_file(latent),)


@declared(
    "Save",
    inputs={"first": Int(1, min=0, max=9)},
    optional={"second": Int(2, min=0, max=9), "images": Link("IMAGE")},
    is_output=True,
)
def save(context: Any, first: int, second: int = 2, images: Any = None) -> list[Any]:
    return []


@pytest.fixture
def own(tmp_path: Path) -> Catalogue:
    """A catalogue with nodes that take files, and one with optional inputs."""
    return Catalogue(ModelsFolder(tmp_path), (grey, latent, save))


def loading(*names: Any) -> Prompt:
    prompt = {}
    for number, name in enumerate(names):
        prompt[f"l{number}"] = node("Grey", image=name)
        prompt[f"s{number}"] = node("SaveImage", images=[f"l{number}", 0], filename_prefix="")
    return prompt


def test_object_info_lists_the_files_and_offers_an_upload(own: Catalogue) -> None:
    info = own.object_info(["cat.png", "dog.png"])
    options = {"image_upload": True, "tooltip": "Its first byte."}
    assert info["Grey"]["input"]["required"]["image"] == [["cat.png", "dog.png"], options]
    assert info["Latent"]["input"]["required"]["latent"] == [["cat.png", "dog.png"], {}]
    assert own.object_info()["Grey"]["input"]["required"]["image"] == [[], options]


def test_a_graph_names_each_of_its_files_once_and_in_order(own: Catalogue) -> None:
    assert graph_of(loading("b.png", "a.png", "b.png"), own).input_files == ("b.png", "a.png")
    found = validate(loading("b.png"), own, Limits(), ["a.png", "b.png"])
    assert found.input_files == ("b.png",)


@pytest.mark.parametrize(
    "name", ["a.png", "a.png [input]", "clipspace/a.png [input]", "pets/a.png"]
)
def test_the_name_of_a_file_may_be_as_comfyuis_mask_editor_writes_it(
    own: Catalogue, name: str
) -> None:
    found = validate(loading(name), own, Limits(), ["a.png"])
    assert found.input_files == ("a.png",)
    assert found.node("l0").literals == {"image": "a.png"}


def test_a_file_that_is_not_there_is_not_in_the_list(own: Catalogue) -> None:
    with pytest.raises(GraphInvalid) as caught:
        validate(loading("cat.png", "../dog.png"), own, Limits(), ["cat.png"])
    (error,) = caught.value.body()["node_errors"]["l1"]["errors"]
    assert error["type"] == "value_not_in_list"
    assert error["details"] == "image: '../dog.png' not in [cat.png]"
    assert error["extra_info"] == {"input_name": "image", "received_value": "../dog.png"}


@pytest.mark.parametrize(
    ("sent", "type"),
    [
        (3, "invalid_input_type"),
        ("\ud800", "invalid_input_type"),
        (["s0", 1], "bad_linked_input"),
        (["l0", 0], "return_type_mismatch"),
    ],
)
def test_what_is_no_name_of_a_file_is_refused(sent: object, type: str, own: Catalogue) -> None:
    assert errors_of(loading(sent), own)["l0"][0] == type


def test_a_node_reads_the_bytes_that_were_submitted(tmp_path: Path) -> None:
    with running(tmp_path, (grey,)) as engine:
        both = engine.submit(
            loading("dark", "light"), input_files={"dark": b"\x10", "light": b"\xf0"}
        )
        assert [image.pixels[0, 0, 0] for image in both.images()] == [0x10, 0xF0]
        one = engine.submit(loading("dark", "light"), input_files={"dark": b"\x10"})
        assert "'light'" in str(one.error(InputFileUnavailable))


def test_object_info_tells_optional_inputs_from_required_ones(own: Catalogue) -> None:
    info = own.object_info()["Save"]
    assert set(info["input"]["required"]) == {"first"}
    assert info["input"]["optional"]["images"] == ["IMAGE", {}]
    assert info["input_order"] == {"required": ["first"], "optional": ["second", "images"]}


@pytest.mark.parametrize("given", [{"first": 3}, {"first": 3, "second": 4}])
def test_an_optional_input_is_taken_or_left_to_the_body(given: Prompt, own: Catalogue) -> None:
    assert graph_of({"s": node("Save", **given)}, own).node("s").literals == given


@pytest.mark.parametrize(
    ("given", "type"),
    [
        ({}, "required_input_missing"),
        ({"first": 3, "second": 10}, "value_bigger_than_max"),
        ({"first": 3, "images": ["x", 0]}, "bad_linked_input"),
    ],
)
def test_an_optional_input_that_is_given_is_checked(
    given: Prompt, type: str, own: Catalogue
) -> None:
    assert errors_of({"s": node("Save", **given)}, own) == {"s": [type]}
