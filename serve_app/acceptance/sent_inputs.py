"""The images that a workflow brings along in the place of the names of uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import InputFile
from engine.graph.graph_errors import InputError, graph_invalid
from serve_app.uploads.sent_image import sent_as

_PLACE = "\0sent {}"
"""No upload has such a name."""


@dataclass(frozen=True, slots=True)
class SentInput:
    """An image, and the first input that it is sent for."""

    place: str
    """What stands there until the image is stored."""
    image: str
    node_id: str
    input_name: str


@dataclass(frozen=True, slots=True)
class TakenImages:
    prompt: object
    """With places where images were sent, which are many times as long."""
    images: tuple[SentInput, ...] = ()
    chars: int = 0
    """How long all that was taken out is."""


def without_images(prompt: object, catalogue: Catalogue, *, most: int) -> TakenImages:
    """The prompt, of which nothing is checked, and the images that its inputs have.

    Raises GraphInvalid where there are more than `most`.
    """
    if not isinstance(prompt, dict):
        return TakenImages(prompt)
    taken: dict[str, SentInput] = {}
    changed: dict[str, Any] = {}
    chars = 0
    for node_id, node in prompt.items():
        sent = _sent_inputs(node, catalogue)
        for name, image in sent.items():
            place = _PLACE.format(len(taken))
            taken.setdefault(image, SentInput(place, image, node_id, name))
            chars += len(image)
        if len(taken) > most:
            details = f"{most} are taken: upload them, and name the uploads"
            raise GraphInvalid("too_many_images", "The prompt brings too many images", details)
        if sent:
            places = {name: taken[image].place for name, image in sent.items()}
            changed[node_id] = {**node, "inputs": {**node["inputs"], **places}}
    return TakenImages({**prompt, **changed}, tuple(taken.values()), chars)


def _sent_inputs(node: object, catalogue: Catalogue) -> dict[str, str]:
    if not isinstance(node, dict) or not isinstance(node.get("inputs"), dict):
        return {}
    class_type = node.get("class_type")
    declared = catalogue.node(class_type) if isinstance(class_type, str) else None
    if declared is None:
        return {}
    inputs = node["inputs"]
    files = [
        name
        for name in declared.file_inputs
        if isinstance(each := declared.all_inputs[name], InputFile) and each.kind == "image"
    ]
    return {
        name: inputs[name]
        for name in files
        if isinstance(inputs.get(name), str) and sent_as(inputs[name]) is not None
    }


def with_names(prompt: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The prompt with the names of uploads at their places."""
    return {
        node_id: {
            **node,
            "inputs": {
                name: names.get(value, value) if isinstance(value, str) else value
                for name, value in node["inputs"].items()
            },
        }
        for node_id, node in prompt.items()
    }


def image_refused(
    sent: SentInput, why: str, prompt: Mapping[str, Any], catalogue: Catalogue
) -> GraphInvalid:
    """The error of an image in a valid prompt. It repeats nothing of it: a URL may be a secret."""
    types = {node_id: catalogue.node(node["class_type"]) for node_id, node in prompt.items()}
    sources = {
        node_id: [value[0] for value in node["inputs"].values() if isinstance(value, list)]
        for node_id, node in prompt.items()
    }
    error = InputError(
        "custom_validation_failed",
        "The image cannot be used",
        f"{sent.input_name}: {why}",
        extra_info={"input_name": sent.input_name},
    )
    known = {node_id: declared for node_id, declared in types.items() if declared is not None}
    return graph_invalid({sent.node_id: [error]}, sources, known)
