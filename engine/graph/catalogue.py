"""The catalogue: all node types, models and built-in choices that a job may use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from engine.families.control_nets import control_problems
from engine.families.family import Family
from engine.families.recognition import (
    encoders_problem,
    family_of,
    problems_of,
    traits_of,
)
from engine.graph.declarations import (
    AnyValue,
    Boolean,
    Choice,
    DynamicChoice,
    Float,
    Input,
    InputFile,
    Int,
    Link,
    NodeType,
    String,
    type_name,
)
from engine.graph.graph import Graph
from engine.graph.models_folder import (
    CHECKPOINTS,
    CONTROL_NETS,
    DIFFUSION_MODELS,
    EMBEDDINGS,
    HYPERNETWORKS,
    LORAS,
    TEXT_ENCODERS,
    UPSCALE_MODELS,
    VAES,
    ModelsFolder,
)
from engine.graph.names import Sampler, Scheduler
from engine.nodes import NODE_TYPES
from engine.webui.family_defaults import RequestDefaults, request_defaults
from engine.webui.model_names import listed_name
from engine.webui.sampler_names import ALL_SAMPLERS, ALL_SCHEDULERS
from engine.webui.styles import Style, styles_of
from engine.webui.upscalers import UPSCALERS, Upscaler, upscaler_named

_OF_FAMILIES = {CHECKPOINTS, DIFFUSION_MODELS, TEXT_ENCODERS}
"""The folders of models whose cost depends on their family."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    kind: str
    """The folder of the model, such as checkpoints or loras."""
    name: str
    family: Family | None
    """None if the file does not show the family."""
    defaults: RequestDefaults | None
    """The defaults of a checkpoint whose family is known."""


class Catalogue:
    MODEL_KINDS: ClassVar = (
        CHECKPOINTS,
        DIFFUSION_MODELS,
        TEXT_ENCODERS,
        LORAS,
        VAES,
        CONTROL_NETS,
        EMBEDDINGS,
        UPSCALE_MODELS,
        HYPERNETWORKS,
    )
    SAMPLERS: ClassVar[tuple[Sampler, ...]] = ALL_SAMPLERS
    SCHEDULERS: ClassVar[tuple[Scheduler, ...]] = ALL_SCHEDULERS
    UPSCALERS: ClassVar[Mapping[str, Upscaler]] = UPSCALERS
    """The upscalers that need no model, by their names in the WebUI."""

    def __init__(self, models: ModelsFolder, more_nodes: Sequence[NodeType] = ()) -> None:
        self.models = models
        self._node_types = {each.class_type: each for each in (*NODE_TYPES, *more_nodes)}
        self._names: Callable[[str], tuple[str, ...]] = models.names
        self._folders = sorted(
            {folder for each in self._node_types.values() for folder in each.model_inputs.values()}
        )

    def snapshot(self) -> Catalogue:
        """Return a copy of the catalogue that reads each folder at most once."""
        snapshot = copy(self)
        snapshot._names = cache(self._names)
        return snapshot

    def only(self, checkpoints: Collection[str]) -> Catalogue:
        """Return a copy of the catalogue in which only these checkpoints may be chosen."""
        view = copy(self)
        view.models = self.models.only(checkpoints)
        view._names = view.models.names
        return view

    def node(self, class_type: str) -> NodeType | None:
        return self._node_types.get(class_type)

    def image_inputs(self, class_type: str) -> tuple[str, ...]:
        """Return the names of the inputs of a node type that take an image file."""
        declared = self.node(class_type)
        inputs = declared.all_inputs.items() if declared else ()
        return tuple(
            name for name, each in inputs if isinstance(each, InputFile) and each.kind == "image"
        )

    def listed_models(self) -> list[ListedModel]:
        """Return all models that exist now. Raises ModelsUnavailable."""
        names = self.models.names
        return [self._listed(kind, name) for kind in self.MODEL_KINDS for name in names(kind)]

    def _listed(self, kind: str, name: str) -> ListedModel:
        # Several families share the kinds of their text encoders.
        traits = None if kind == TEXT_ENCODERS else traits_of(self.models, kind, name)
        defaults = request_defaults(traits) if traits and kind == CHECKPOINTS else None
        return ListedModel(kind, name, traits.family if traits else None, defaults)

    def checkpoints(self) -> tuple[str, ...]:
        """Return the names of the checkpoints. Raises ModelsUnavailable."""
        return self.models.names(CHECKPOINTS)

    def checkpoint(self, spelling: str) -> str:
        """Return the listed name of a checkpoint for a spelling of the WebUI, which may be shorter.

        Raises ValueError for an unknown name, and ModelsUnavailable.
        """
        return listed_name(spelling, self.checkpoints())

    def defaults(self, checkpoint: str) -> RequestDefaults:
        return request_defaults(traits_of(self.models, CHECKPOINTS, checkpoint))

    def upscaler(self, spelling: str) -> Upscaler | None:
        """Return the upscaler of that name, which may be a model. Raises ModelsUnavailable."""
        return upscaler_named(spelling, self.models)

    def styles(self) -> Mapping[str, Style]:
        """Return the operator's styles by name. Raises ModelsUnavailable."""
        return styles_of(self.models)

    def choices(self, choice: Choice) -> tuple[str, ...]:
        """Return the values that may be chosen now; for a folder, the names of its models."""
        return self._names(choice.folder) if choice.folder else choice.values

    def families(self, declared: NodeType, literals: Mapping[str, Any]) -> dict[str, Family]:
        """Return the known families of the models that a node names, by input."""
        found = {
            name: family_of(self.models, folder, literals[name])
            for name, folder in declared.model_inputs.items()
            if folder in _OF_FAMILIES and name in literals
        }
        return {name: family for name, family in found.items() if family}

    def model_problems(
        self, declared: NodeType, literals: Mapping[str, Any], outputs: Collection[str]
    ) -> dict[str, str]:
        """Return why a node cannot use a model that it names, by input.

        `outputs` are the types of the node's outputs that are used.
        """
        found = {
            name: problems_of(self.models, folder, literals[name]).of(outputs)
            for name, folder in declared.model_inputs.items()
            if name in literals
        }
        if not any(found.values()):
            encoders = {
                name: literals[name]
                for name, folder in declared.model_inputs.items()
                if folder == TEXT_ENCODERS and name in literals
            }
            found |= encoders_problem(self.models, encoders)
        return {name: problem for name, problem in found.items() if problem}

    def control_problems(self, graph: Graph) -> dict[str, tuple[str, str]]:
        """See `control_nets.control_problems`."""
        return control_problems(graph, self.models)

    def object_info(self, input_files: Collection[str] = ()) -> dict[str, Any]:
        """Return every node type in the shape of ComfyUI's `GET /object_info`.

        `input_files` are the names that an `InputFile` may have.
        """
        return {name: self._info(each, input_files) for name, each in self._node_types.items()}

    def choosable_models(self) -> tuple[tuple[str, ...], ...]:
        """Return the names of all models in `object_info`, which depends only on these names and on
        the names of the input files.
        """
        return tuple(map(self._names, self._folders))

    def declaration(self, class_type: str) -> dict[str, Any] | None:
        """Return a node type as in `object_info`, but without the names of models and files."""
        if (declared := self.node(class_type)) is None:
            return None
        without_models = copy(self)
        without_models._names = lambda _: ()
        return without_models._info(declared, ())

    def input_config(self, declared: Input, input_files: Collection[str] = ()) -> list[Any]:
        """Return an input in ComfyUI's shape: its type (or its choices) and its options."""
        options = _options(declared)
        match declared:
            case DynamicChoice():
                options["options"] = [
                    {"key": value, "inputs": {"required": self._configs(parts, input_files)}}
                    for value, parts in declared.options.items()
                ]
                return [type_name(declared), options]
            case Choice():
                return [list(self.choices(declared)), options]
            case InputFile(is_text=True):
                return ["STRING", options]
            case InputFile():
                return [list(input_files), options]
            case _:
                return [type_name(declared), options]

    def _configs(
        self, inputs: Mapping[str, Input], input_files: Collection[str]
    ) -> dict[str, list[Any]]:
        return {name: self.input_config(each, input_files) for name, each in inputs.items()}

    def _info(self, declared: NodeType, input_files: Collection[str]) -> dict[str, Any]:
        inputs = {"required": declared.inputs}
        if declared.optional:
            inputs["optional"] = declared.optional
        outputs, names = declared.outputs, declared.output_names
        if declared.passed_input:
            outputs = (type_name(declared.inputs[declared.passed_input]),)
            names = (declared.passed_input,)
        return {
            "input": {kind: self._configs(some, input_files) for kind, some in inputs.items()},
            "input_order": {kind: list(some) for kind, some in inputs.items()},
            "output": list(outputs),
            "output_is_list": [False] * len(outputs),
            "output_name": list(names or outputs),
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
            if declared.dynamic_prompts:
                options["dynamicPrompts"] = True
        case Boolean():
            options = {"default": declared.default}
        case InputFile(is_text=True):
            options = {"default": "", "multiline": False}
        case InputFile(kind="image"):
            # With this option, ComfyUI's front end offers an upload.
            options = {"image_upload": True}
        case Choice(default=str() as default):
            options = {"default": default}
        case AnyValue() | Choice() | Link() | InputFile():
            pass
    return {**options, "tooltip": declared.tooltip} if declared.tooltip else options
