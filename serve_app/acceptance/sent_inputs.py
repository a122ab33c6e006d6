"""The images that a request brings along in the place of the names of uploads.

They are taken out before anything is checked, since they are many times as long as all the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import FieldError, GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import InputFile
from engine.graph.graph_errors import InputError, graph_invalid
from serve_app.uploads.sent_image import sent_as

_PLACE = "\0sent {}"
"""No upload has such a name."""
_LIST, _MASK = "init_images", "mask"
"""The members of a diffusion request that name uploads."""
_TOO_MANY = "too_many_images"


@dataclass(frozen=True, slots=True)
class SentInput:
    """An image, and the first input that it is sent for."""

    place: str
    """What stands there until the image is stored."""
    image: str
    node_id: str | None
    """None in a diffusion request, of which `input_name` is a member."""
    input_name: str


@dataclass(frozen=True, slots=True)
class TakenImages:
    rest: Any
    """What they were taken out of, with places where they were."""
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
            raise GraphInvalid(_TOO_MANY, "The prompt brings too many images", _many(most))
        if sent:
            places = {name: taken[image].place for name, image in sent.items()}
            changed[node_id] = {**node, "inputs": {**node["inputs"], **places}}
    return TakenImages({**prompt, **changed}, tuple(taken.values()), chars)


def _many(most: int) -> str:
    return f"{most} are taken: upload them, and name the uploads"


def without_member_images(body: object, *, most: int) -> TakenImages:
    """A diffusion request, of which nothing is checked, and the images that its members have.

    Raises ParametersInvalid where there are more than `most`.
    """
    if not isinstance(body, dict):
        return TakenImages(body)
    taken: dict[str, SentInput] = {}
    chars = 0

    def place(value: object, member: str) -> object:
        nonlocal chars
        if not isinstance(value, str) or sent_as(value) is None:
            return value
        taken.setdefault(value, SentInput(_PLACE.format(len(taken)), value, None, member))
        if len(taken) > most:
            message = f"the request brings too many images: {_many(most)}"
            raise ParametersInvalid((FieldError(_TOO_MANY, message, member),))
        chars += len(value)
        return taken[value].place

    changed: dict[str, object] = {}
    if isinstance(images := body.get(_LIST), list):
        changed[_LIST] = [place(each, f"{_LIST}.{at}") for at, each in enumerate(images)]
    if _MASK in body:
        changed[_MASK] = place(body[_MASK], _MASK)
    return TakenImages({**body, **changed}, tuple(taken.values()), chars)


def with_member_names(request: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A recorded diffusion request with the names of uploads at their places."""
    changed: dict[str, Any] = {}
    if _LIST in request:
        changed[_LIST] = [names.get(each, each) for each in request[_LIST]]
    if mask := request.get(_MASK):
        changed[_MASK] = names.get(mask, mask)
    return {**request, **changed}


def member_refused(sent: SentInput, why: str) -> ParametersInvalid:
    """The error of an image in a valid diffusion request; see `image_refused`."""
    message = f"the image cannot be used. {why}"
    return ParametersInvalid((FieldError("value_error", message, sent.input_name),))


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
    assert sent.node_id is not None  # it is a graph's
    return graph_invalid({sent.node_id: [error]}, sources, known)
