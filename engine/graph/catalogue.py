"""The node types that a graph may use, with the choices that depend on the models folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import cache
from typing import Any

from engine.families.family import Family
from engine.families.recognition import family_of
from engine.graph.declarations import (
    Boolean,
    Choice,
    Float,
    Input,
    InputFile,
    Int,
    Link,
    NodeType,
    String,
    type_name,
)
from engine.graph.models_folder import CHECKPOINTS, DIFFUSION_MODELS, ModelsFolder
from engine.nodes import NODE_TYPES

_OF_FAMILIES = {CHECKPOINTS, DIFFUSION_MODELS}
"""The folders whose models cost what their family costs."""


class Catalogue:
    """The node types by their `class_type`."""

    def __init__(self, models: ModelsFolder, node_types: Sequence[NodeType] = NODE_TYPES) -> None:
        self.models = models
        self._node_types = {each.class_type: each for each in node_types}
        self._names: Callable[[str], tuple[str, ...]] = models.names

    def snapshot(self) -> Catalogue:
        """The same catalogue, which lists each folder once, however often it is asked."""
        snapshot = copy(self)
        snapshot._names = cache(self._names)
        return snapshot

    def only(self, checkpoints: Collection[str]) -> Catalogue:
        """The same catalogue, in which these checkpoints alone may be chosen."""
        view = copy(self)
        view.models = self.models.only(checkpoints)
        view._names = view.models.names
        return view

    def node(self, class_type: str) -> NodeType | None:
        """The node type of that name, or None."""
        return self._node_types.get(class_type)

    def choices(self, choice: Choice) -> tuple[str, ...]:
        """The values that may be chosen now. Those of a folder are the names of its models."""
        return self._names(choice.folder) if choice.folder else choice.values

    def families(self, declared: NodeType, literals: Mapping[str, Any]) -> dict[str, Family]:
        """The families of the models that a node names, by its inputs, as far as they are known."""
        found = {
            name: family_of(self.models, folder, literals[name])
            for name, folder in declared.model_inputs.items()
            if folder in _OF_FAMILIES and name in literals
        }
        return {name: family for name, family in found.items() if family}

    def object_info(self, input_files: Collection[str] = ()) -> dict[str, Any]:
        """Every node type in the shape of ComfyUI's `GET /object_info`.

        `input_files` are the names that an `InputFile` may have.
        """
        return {name: self._info(each, input_files) for name, each in self._node_types.items()}

    def input_config(self, declared: Input, input_files: Collection[str] = ()) -> list[Any]:
        """An input in ComfyUI's shape: its type (or the list to choose from) and its options."""
        options = _options(declared)
        match declared:
            case Choice():
                return [list(self.choices(declared)), options]
            case InputFile(is_text=True):
                return ["STRING", options]
            case InputFile():
                return [list(input_files), options]
            case _:
                return [type_name(declared), options]

    def _info(self, declared: NodeType, input_files: Collection[str]) -> dict[str, Any]:
        inputs = {"required": declared.inputs}
        if declared.optional:
            inputs["optional"] = declared.optional
        return {
            "input": {
                kind: {name: self.input_config(each, input_files) for name, each in some.items()}
                for kind, some in inputs.items()
            },
            "input_order": {kind: list(some) for kind, some in inputs.items()},
            "output": list(declared.outputs),
            "output_is_list": [False] * len(declared.outputs),
            "output_name": list(declared.output_names or declared.outputs),
            "name": declared.class_type,
            "display_name": declared.display_name or declared.class_type,
            "description": declared.description,
            "python_module": f"custom_nodes.{declared.package}" if declared.package else "nodes",
            "category": declared.category,
            "output_node": declared.is_output,
        }


def _options(declared: Input) -> dict[str, Any]:
    options: dict[str, Any] = {}
    match declared:
        case Int() | Float():
            options = {"default": declared.default, "min": declared.min, "max": declared.max}
            options["step"] = declared.step
        case String():
            options = {"default": declared.default, "multiline": declared.multiline}
        case Boolean():
            options = {"default": declared.default}
        case InputFile(is_text=True):
            options = {"default": "", "multiline": False}
        case InputFile(kind="image"):
            options = {"image_upload": True}  # makes ComfyUI's front end offer an upload
        case Choice() | Link() | InputFile():
            pass
    return {**options, "tooltip": declared.tooltip} if declared.tooltip else options
