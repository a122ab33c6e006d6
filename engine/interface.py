"""The public interface of the engine. The service imports no other module of the engine."""

from __future__ import annotations

from engine.activity import Activity, ActivityKind, ModelUse
from engine.container_memory import container_memory
from engine.engine import Engine, Run
from engine.errors import (
    MODEL_NOT_SUPPORTED,
    DeviceFailed,
    EngineError,
    FieldError,
    GraphInvalid,
    MachineFailed,
    ModelsUnavailable,
    NodeFailed,
    OutOfMemory,
    ParametersInvalid,
    is_machine_error,
)
from engine.extensions import installed_extensions, installed_nodes
from engine.extra_data import pnginfo_of
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import (
    input_file_refused,
    parse_graph,
    validate,
    with_cost,
)
from engine.graph.workflow_file import is_of_editor, workflow_members
from engine.options import DeviceOptions, RunOptions
from engine.reports import (
    EngineEvent,
    Errored,
    ErroredNode,
    Finished,
    ImageReady,
    LatentReady,
    Progress,
    ResultReady,
    TextReady,
)
from engine.timed_reads import without_waiting
from engine.webui.diffusion_request import (
    CompiledDiffusion,
    compile_diffusion,
    compile_with_core_nodes,
)
from engine.webui.generation_texts import GenerationText, generation_text, image_texts
from engine.webui.infotext import ImageSettings, read_infotext, split_infotext
from engine.webui.model_names import ServerModels
from engine.webui.parameters import (
    DiffusionParameters,
    OverrideSettings,
    parse_parameters,
    requests_nothing,
)
from engine.webui.upscalers import Upscaler

__all__ = [
    "MODEL_NOT_SUPPORTED",
    "Activity",
    "ActivityKind",
    "Catalogue",
    "CompiledDiffusion",
    "DeviceFailed",
    "DeviceOptions",
    "DiffusionParameters",
    "Engine",
    "EngineError",
    "EngineEvent",
    "Errored",
    "ErroredNode",
    "Family",
    "FieldError",
    "Finished",
    "GenerationText",
    "Graph",
    "GraphInvalid",
    "ImageReady",
    "ImageSettings",
    "LatentReady",
    "Limits",
    "MachineFailed",
    "ModelUse",
    "ModelsFolder",
    "ModelsUnavailable",
    "NodeFailed",
    "OutOfMemory",
    "OverrideSettings",
    "ParametersInvalid",
    "Progress",
    "ResultReady",
    "Run",
    "RunOptions",
    "ServerModels",
    "TextReady",
    "Upscaler",
    "compile_diffusion",
    "compile_with_core_nodes",
    "container_memory",
    "generation_text",
    "image_texts",
    "input_file_refused",
    "installed_extensions",
    "installed_nodes",
    "is_machine_error",
    "is_of_editor",
    "parse_graph",
    "parse_parameters",
    "pnginfo_of",
    "read_infotext",
    "requests_nothing",
    "split_infotext",
    "validate",
    "with_cost",
    "without_waiting",
    "workflow_members",
]
