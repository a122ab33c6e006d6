"""Inputs that depend on a choice, outputs that depend on a link, and output nodes that pass on."""

from __future__ import annotations

from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.editor_file.conversion import prompt_of
from engine.graph.graph import Source
from tests.support.engine.graphs import cost_of, graph_of, node_error, refusal_of
from tests.support.engine.workflows import Prompt, node, with_input

MADE = {
    "image": node("EmptyImage", width=32, height=16, batch_size=1, color=0),
    "mask": node("SolidMask", value=1.0, width=16, height=16),
}


def resize(resize_type: Any, source: str = "image", **parts: Any) -> Prompt:
    inputs = {f"resize_type.{name}": value for name, value in parts.items()}
    return node(
        "ResizeImageMaskNode",
        input=[source, 0],
        resize_type=resize_type,
        scale_method="area",
        **inputs,
    )


def saved(**nodes: Any) -> Prompt:
    return MADE | nodes | {"save": node("SaveImage", images=["r", 0], filename_prefix="x")}


def literals_of(prompt: Prompt, catalogue: Catalogue) -> dict[str, Any]:
    return {
        name.removeprefix("resize_type."): value
        for name, value in graph_of(prompt, catalogue).node("r").literals.items()
        if name.startswith("resize_type.")
    }


@pytest.mark.parametrize(
    ("resize_type", "given", "used"),
    [
        ("scale dimensions", {"width": 8, "height": "9"}, {"width": 8, "height": 9}),
        ("scale width", {"width": 8, "height": "no number"}, {"width": 8}),
        ("scale to multiple", {}, {"multiple": 8}),
        ("scale total pixels", {"megapixels": 0.1}, {"megapixels": 0.1, "multiple": 1}),
    ],
)
def test_only_the_parts_of_the_chosen_value_are_used_and_may_be_left_out(
    resize_type: str, given: dict[str, Any], used: dict[str, Any], catalogue: Catalogue
) -> None:
    prompt = saved(r=resize(resize_type, **given))
    if resize_type == "scale dimensions":
        used = used | {"crop": "center"}
    assert literals_of(prompt, catalogue) == used
    assert graph_of(graph_of(prompt, catalogue).prompt, catalogue) == graph_of(prompt, catalogue)


@pytest.mark.parametrize(
    ("resize_type", "parts", "type", "details"),
    [
        ("scale", {}, "value_not_in_list", "resize_type: 'scale'"),
        ("scale width", {"width": -1}, "value_smaller_than_min", "resize_type.width: -1"),
        ("scale width", {"width": 5000}, "value_bigger_than_max", "at most 4096"),
        ("scale width", {"width": [1]}, "bad_linked_input", "resize_type.width"),
        ("match size", {}, "required_input_missing", "resize_type.match"),
        ("match size", {"match": ["image", 1]}, "bad_linked_input", "resize_type.match"),
        ("scale longer dimension", {"longer_size": 0}, "custom_validation_failed", "above 0"),
        ("scale shorter dimension", {"shorter_size": 0}, "custom_validation_failed", "above 0"),
    ],
)
def test_an_error_names_the_part(
    resize_type: str, parts: dict[str, Any], type: str, details: str, *, catalogue: Catalogue
) -> None:
    error = node_error(saved(r=resize(resize_type, **parts)), catalogue, "r")
    assert error["type"] == type
    assert details in error["details"]


@pytest.mark.parametrize(
    ("class_type", "values", "expected"),
    [
        (
            "ResizeImageMaskNode",
            ["scale dimensions", 640, 360, "disabled", "lanczos"],
            {
                "resize_type": "scale dimensions",
                "resize_type.width": 640,
                "resize_type.height": 360,
                "resize_type.crop": "disabled",
                "scale_method": "lanczos",
            },
        ),
        (
            "ResizeImageMaskNode",
            ["match size", "center", "area"],
            {
                "resize_type": "match size",
                "resize_type.crop": "center",
                "scale_method": "area",
            },
        ),
        (
            "ResizeImageMaskNode",
            ["scale total pixels", 1.6, "area"],
            {
                "resize_type": "scale total pixels",
                "resize_type.megapixels": 1.6,
                "resize_type.multiple": 1,
                "scale_method": "area",
            },
        ),
        (
            "SaveImageAdvanced",
            ["mine", "png", "8-bit", "sRGB"],
            {
                "filename_prefix": "mine",
                "format": "png",
                "format.bit_depth": "8-bit",
                "format.input_color_space": "sRGB",
            },
        ),
        (
            "ResolutionSelector",
            ["3:2 (Photo)", 2],
            {"aspect_ratio": "3:2 (Photo)", "megapixels": 2},
        ),
    ],
)
def test_a_file_of_the_editor_has_the_parts_of_its_values(
    class_type: str, values: list[Any], expected: dict[str, Any], catalogue: Catalogue
) -> None:
    file = {"nodes": [{"id": 1, "type": class_type, "widgets_values": values}], "links": []}
    assert prompt_of(file, catalogue.declaration)["1"]["inputs"] == expected


def test_a_part_may_be_linked(catalogue: Catalogue) -> None:
    prompt = saved(r=resize("scale width", width=["n", 0]), n=node("PrimitiveInt", value=12))
    assert literals_of(prompt, catalogue) == {"width": 12}
    matched = saved(r=resize("match size", match=["mask", 0], crop="disabled"))
    links = graph_of(matched, catalogue).node("r").links
    assert links["resize_type.match"] == Source("mask", 0)


def test_an_output_has_the_type_of_the_linked_input(catalogue: Catalogue) -> None:
    twice = {"m": resize("scale width", "r", width=4), "r": resize("scale width", "mask", width=8)}
    shown = {"save": node("MaskPreview", mask=["m", 0])}
    assert len(graph_of(MADE | twice | shown, catalogue).nodes) == 4
    wrong = node_error(saved(r=resize("scale width", "mask")), catalogue, "save")
    assert wrong["type"] == "return_type_mismatch"
    assert wrong["details"] == "images: MASK, not IMAGE"


def test_a_type_that_is_not_allowed_or_a_circle_is_refused(catalogue: Catalogue) -> None:
    text = {"image": node("PrimitiveString", value="a")}
    error = refusal_of(saved(r=resize("scale width")) | text, catalogue).body()["node_errors"]["r"]
    assert error["errors"][0]["details"] == "input: STRING, not IMAGE,MASK"
    circle = saved(r=resize("scale width", "s"), s=resize("scale width", "r"))
    assert "form a cycle" in str(refusal_of(circle, catalogue).body())


def test_the_size_of_the_result_is_a_part_of_the_cost(catalogue: Catalogue) -> None:
    small, large = (
        cost_of(saved(r=resize("scale by multiplier", multiplier=by)), catalogue).live_bytes
        for by in (1.0, 8.0)
    )
    assert large > 32 * small


def test_a_link_from_an_output_node_begins_at_what_it_passes_on(catalogue: Catalogue) -> None:
    prompt = MADE | {
        "a": node("PreviewImage", images=["image", 0]),
        "b": node("SaveImage", images=["a", 0], filename_prefix="x"),
        "c": node("ImageCompare", image_a=["b", 0], image_b=["image", 0]),
    }
    graph = graph_of(prompt, catalogue)
    assert graph.node("c").links["image_a"] == graph.node("b").links["images"]
    assert graph.node("b").links["images"] == Source("image", 0)
    assert {each.id for each in graph.outputs} == {"a", "b", "c"}


def test_only_links_to_an_output_node_are_replaced(catalogue: Catalogue) -> None:
    prompt = MADE | {
        "": node("PreviewImage", images=["image", 0]),
        "r": resize("scale width", width=8),
        "save": node("SaveImage", images=["r", 0], filename_prefix="x"),
    }
    graph = graph_of(prompt, catalogue)
    assert graph.node("r").literals["resize_type"] == "scale width"
    assert graph.node("save").links["images"] == Source("r", 0)


@pytest.mark.parametrize(
    "images",
    [["b", 0], ["a", 0], ["a", 1], 3, None],
)
def test_an_output_node_without_a_source_passes_nothing_on(
    images: Any, catalogue: Catalogue
) -> None:
    prompt = MADE | {
        "a": node("PreviewImage", images=images),
        "b": node("PreviewImage", images=["a", 0]),
    }
    errors = refusal_of(prompt, catalogue).body()["node_errors"]
    assert errors["a"]["errors"][0]["type"] == "bad_linked_input"


@pytest.mark.parametrize(
    ("part", "value"),
    [("bit_depth", "16-bit"), ("input_color_space", "HDR")],
)
def test_what_an_advanced_save_cannot_do_is_refused_by_name(
    part: str, value: str, catalogue: Catalogue
) -> None:
    options = {"format": "png", f"format.{part}": value}
    saving = node("SaveImageAdvanced", images=["image", 0], filename_prefix="x", **options)
    error = node_error(MADE | {"s": saving}, catalogue, "s")
    assert error["details"].startswith(f"format.{part}: {value!r} not in ")
    for other in ("exr", "avif"):
        prompt = with_input(MADE | {"s": saving}, "s", format=other)
        assert node_error(prompt, catalogue, "s")["details"] == f"format: {other!r} not in [png]"


def test_a_largest_size_of_0_is_refused(catalogue: Catalogue) -> None:
    inputs = {"image": ["image", 0], "upscale_method": "area", "largest_size": 0}
    prompt = saved(r=node("ImageScaleToMaxDimension", **inputs))
    assert node_error(prompt, catalogue, "r")["details"] == "largest_size must be above 0"


@pytest.mark.parametrize(
    ("ratio", "megapixels", "multiple", "expected"),
    [
        ("1:1 (Square)", 1.0, None, (1024, 1024)),
        ("16:9 (Widescreen)", 0.4, 32, (864, 480)),
        ("9:16 (Portrait Widescreen)", 1.0, 8, (768, 1368)),
        ("21:9 (Ultrawide)", 16.0, 128, (6272, 2688)),
        ("2:3 (Portrait Photo)", 0.1, 16, (272, 400)),
    ],
)
def test_a_resolution_has_the_ratio_and_about_the_pixels(
    ratio: str,
    megapixels: float,
    multiple: int | None,
    expected: tuple[int, int],
    *,
    catalogue: Catalogue,
) -> None:
    inputs: dict[str, Any] = {"aspect_ratio": ratio, "megapixels": megapixels}
    if multiple is not None:
        inputs["multiple"] = multiple
    declared = catalogue.node("ResolutionSelector")
    assert declared is not None
    assert declared.body(None, **inputs) == expected
