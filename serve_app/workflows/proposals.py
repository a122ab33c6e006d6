"""Proposes the inputs and outputs of a named workflow from its graph.

The title `input:NAME` of a node, as written in ComfyUI's editor, makes the first value of the node
an input with this name. The title `output:NAME` names the results of an output node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import ValidationError

from engine.interface import FieldError, ParametersInvalid
from serve_app.acceptance.inline_images import decoded
from serve_app.bodies import parse_json
from serve_app.image_texts import texts_of
from serve_app.refusals import InvalidImage
from serve_app.workflows.definition import (
    MAX_INPUTS,
    InputDefinition,
    InputType,
    is_link,
    is_number,
)

Declared: TypeAlias = Callable[[str], Mapping[str, Any] | None]
"""Returns the declaration of a node type in the shape of `object_info`, or None."""
Prompt: TypeAlias = Mapping[str, Any]

_TITLE = re.compile(r"(input|output):\s*([A-Za-z_][A-Za-z0-9_-]{0,63})")
_KINDS: Mapping[str, InputType] = {
    "INT": "integer",
    "FLOAT": "number",
    "STRING": "string",
    "BOOLEAN": "boolean",
}
_UPLOADS: Mapping[str, tuple[str, InputType]] = {
    "image_upload": ("image", "image"),
    "video_upload": ("video", "file"),
    "audio_upload": ("audio", "file"),
}
"""The name and the type of the input that is proposed for an input file of a node, by the option
with which the node type declares it.
"""
_PROPOSED_NAMES = {
    "seed": "seed",
    "noise_seed": "seed",
    "steps": "steps",
    "ckpt_name": "checkpoint",
    "unet_name": "diffusion_model",
    "lora_name": "lora",
}
"""The names of the proposed inputs, by the names of the inputs of nodes that they set."""
_SIZES = ("width", "height", "batch_size")
"""Inputs that are proposed only for nodes without links. Such nodes make empty latents."""
_MASK_LOADER = "LoadImageMask"
_RANDOM_SEED = -1
_MAX_IMAGE_BYTES = 16 * 1024**2


def proposed_inputs(prompt: Prompt, declared: Declared) -> dict[str, InputDefinition]:
    """Return inputs for texts, seeds, sizes, steps, models and input files of the graph.

    If a name is proposed more than once, the later ones get a number (`seed`, `seed_2`), in the
    order of the ids of the nodes. At most `MAX_INPUTS` inputs are proposed.
    """
    roles = _roles(prompt)
    inputs: dict[str, InputDefinition] = {}
    for node_id, node in _in_order(prompt):
        specs = _specs(declared(node["class_type"]))
        values = {name: spec for name, spec in specs.items() if _is_value(node["inputs"].get(name))}
        if (titled := _name_in_title(node, "input")) and values:
            found = [(titled, next(iter(values)))]
        else:
            found = [
                (asked, name)
                for name, spec in values.items()
                if (asked := _name_of(node, name, spec, role=roles.get(node_id))) is not None
            ]
        for asked, name in found[: MAX_INPUTS - len(inputs)]:
            kind = _type_of(values[name], node["inputs"][name])
            more = _seed_options() if asked == "seed" else _bounds(values[name], kind)
            definition = InputDefinition(node=node_id, input=name, type=kind, **more)
            inputs[_unused_name(asked, inputs)] = definition
    return inputs


def proposed_outputs(prompt: Prompt, declared: Declared) -> dict[str, str]:
    """Return the ids of all output nodes of the graph, by the names of the outputs."""
    outputs: dict[str, str] = {}
    for node_id, node in _in_order(prompt):
        if (declared(node["class_type"]) or {}).get("output_node"):
            outputs[_unused_name(_name_in_title(node, "output") or "output", outputs)] = node_id
    return outputs


def with_types(
    prompt: Prompt, inputs: Mapping[str, InputDefinition], declared: Declared
) -> dict[str, InputDefinition]:
    """Return the inputs with their types. The graph must have the node of each input.

    Raises ParametersInvalid if an input is not valid with its type, for example because of its
    default.
    """
    done: dict[str, InputDefinition] = {}
    errors: list[FieldError] = []
    for name, each in inputs.items():
        node = prompt[each.node]
        spec = _specs(declared(node["class_type"])).get(each.input)
        kind = each.type or _type_of(spec, node["inputs"].get(each.input))
        try:
            done[name] = InputDefinition.model_validate(each.model_dump() | {"type": kind})
        except ValidationError as error:
            why = error.errors()[0]["msg"].removeprefix("Value error, ")
            errors.append(FieldError("value_error", why, f"inputs.{name}"))
    if errors:
        raise ParametersInvalid(tuple(errors))
    return done


def nodes_needed_for(prompt: Prompt, outputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the nodes on which these output nodes depend, in the order of the graph.

    Raises ParametersInvalid if the graph has no such output node.
    """
    errors = [
        FieldError("unknown_node", f"the graph has no node {node[:80]!r}", f"outputs.{name}")
        for name, node in outputs.items()
        if node not in prompt
    ]
    if errors:
        raise ParametersInvalid(tuple(errors))
    needed: set[str] = set()
    open_nodes = list(outputs.values())
    while open_nodes:
        node_id = open_nodes.pop()
        if node_id not in needed and node_id in prompt:
            needed.add(node_id)
            open_nodes += _sources(prompt[node_id])
    return {node_id: node for node_id, node in prompt.items() if node_id in needed}


def graph_in_image(text: str) -> Any:
    """Return the graph that an image contains. `text` is the image as a data URL or in base64.

    Raises InvalidImage, and ApiError 400 if the graph is not valid JSON.
    """
    texts, _ = texts_of(decoded(text, max_bytes=_MAX_IMAGE_BYTES))
    for name in ("prompt", "workflow"):
        if name in texts:
            return parse_json(texts[name].encode("utf-8", "surrogatepass"))
    raise InvalidImage("The image contains no graph.")


def _in_order(prompt: Prompt) -> Iterator[tuple[str, Any]]:
    """Yield the nodes, sorted by the numbers in their ids."""
    digits = re.compile(r"\d+")
    order = sorted(prompt, key=lambda node: ([int(each) for each in digits.findall(node)], node))
    return ((node_id, prompt[node_id]) for node_id in order)


def _roles(prompt: Prompt) -> dict[str, str]:
    """Return the role of each node whose texts guide a sampler, by node id.

    The role is `prompt` if an input `positive` depends on the node, and `negative_prompt` if an
    input `negative` does.
    """
    roles: dict[str, str] = {}
    for role, link in (("prompt", "positive"), ("negative_prompt", "negative")):
        open_nodes = [
            node["inputs"][link][0] for node in prompt.values() if is_link(node["inputs"].get(link))
        ]
        while open_nodes:
            node_id = str(open_nodes.pop())
            if node_id in prompt and node_id not in roles:
                roles[node_id] = role
                open_nodes += _sources(prompt[node_id])
    return roles


def _sources(node: Mapping[str, Any]) -> list[str]:
    """Return the ids of the nodes to which the inputs of a node are linked."""
    return [str(value[0]) for value in node["inputs"].values() if is_link(value)]


def _name_of(node: Mapping[str, Any], name: str, spec: Any, *, role: str | None) -> str | None:
    """Return the name of the input that is proposed for a value of a node, or None.

    `role` is the name for a text of this node, or None if the node guides no sampler.
    """
    options = _options(spec)
    for flag, (asked, _) in _UPLOADS.items():
        if options.get(flag):
            return "mask" if node["class_type"] == _MASK_LOADER else asked
    if options.get("multiline"):
        return role or ("prompt" if name == "text" else None)
    if name in _SIZES and not _sources(node):
        return name
    return _PROPOSED_NAMES.get(name)


def _specs(declaration: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the declarations of the inputs of a node type by name; empty if it is unknown."""
    inputs = (declaration or {}).get("input") or {}
    return {**(inputs.get("required") or {}), **(inputs.get("optional") or {})}


def _options(spec: Any) -> Mapping[str, Any]:
    has_options = isinstance(spec, list | tuple) and len(spec) > 1 and isinstance(spec[1], Mapping)
    return spec[1] if has_options else {}


def _type_of(spec: Any, value: Any) -> InputType:
    """Return the type of an input from its declaration, or else from its value in the graph."""
    options = _options(spec)
    for flag, (_, kind) in _UPLOADS.items():
        if options.get(flag):
            return kind
    if isinstance(spec, list | tuple) and spec and isinstance(spec[0], str) and spec[0] in _KINDS:
        return _KINDS[spec[0]]
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def _bounds(spec: Any, kind: InputType) -> dict[str, Any]:
    if kind not in ("integer", "number"):
        return {}
    options = _options(spec)
    bounds = {"minimum": options.get("min"), "maximum": options.get("max")}
    return {name: value for name, value in bounds.items() if is_number(value)}


def _seed_options() -> dict[str, Any]:
    description = "The seed of the noise; -1: a random seed"
    return {"default": _RANDOM_SEED, "minimum": _RANDOM_SEED, "description": description}


def _name_in_title(node: Mapping[str, Any], kind: str) -> str | None:
    """Return NAME if the node has the title `<kind>:NAME`. Otherwise return None."""
    meta = node.get("_meta")
    title = meta.get("title") if isinstance(meta, Mapping) else None
    found = _TITLE.fullmatch(title.strip()) if isinstance(title, str) else None
    return found[2] if found and found[1] == kind else None


def _unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """Return the name, or else the first of `name_2`, `name_3`, … that is not taken."""
    number, unused = 1, name
    while unused in taken:
        number += 1
        unused = f"{name}_{number}"
    return unused


def _is_value(value: Any) -> bool:
    return isinstance(value, str | bool | int | float)
