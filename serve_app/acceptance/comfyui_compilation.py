"""Checks requests for endpoints whose graphs run on a ComfyUI server.

The structure of a graph is always checked, and whether the endpoint allows its node types. Node
types and values are checked by the last `/object_info` of the server, if there is one. The server
checks all of them when the job runs. A diffusion request is compiled to a graph of core nodes,
which every server has.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from comfyui.errors import PromptRefused
from comfyui.graphs import INPUT_SUFFIX
from comfyui.object_info import ObjectInfo
from engine.interface import (
    MODEL_NOT_SUPPORTED,
    Catalogue,
    CompiledDiffusion,
    EngineError,
    FieldError,
    Graph,
    GraphInvalid,
    ParametersInvalid,
    ServerModels,
    compile_with_core_nodes,
    parse_graph,
    workflow_members,
)
from events.store.records import Endpoint, KeyLimits, Upload
from serve_app.acceptance.compilation import (
    CheckedBody,
    RequestCompiler,
    draw_seed,
    missing_nodes_advice,
)
from serve_app.acceptance.inline_images import InlineImage
from serve_app.upload_store import is_upload_name
from settings.constant import constant
from settings.graph import GraphSettings
from settings.keys import ImageFormat
from storage.file_names import is_media_name

_NODES_UNKNOWN = (
    "the nodes of the server are not known yet: save the workflow in the editor with "
    '"Save (API Format)", and send that file'
)
_SHOWN_NAMES = 20
_SHOWN_ERRORS = 50
_SHOWN_CHARS = 100
_MOST_FILES = 256
"""The most texts in one graph that may be names of uploads."""
_MOST_INPUT_BYTES = 256 * 2**20
"""The largest size of all input files of a job in bytes. The worker holds them in memory."""
_CHECKPOINTS = "checkpoints"
_CHECKPOINT_INPUT = "ckpt_name"
"""The input of ComfyUI's loaders that names a checkpoint."""
_LOADERS = {
    _CHECKPOINTS: ("CheckpointLoaderSimple", "ckpt_name"),
    "loras": ("LoraLoader", "lora_name"),
    "vae": ("VAELoader", "vae_name"),
    "upscale_models": ("UpscaleModelLoader", "model_name"),
}
"""The core node and the input that list the models of each folder."""
_MAX_EXTRA_DATA_BYTES = constant("MAX_SERVER_EXTRA_DATA_BYTES", 8 * 1024)
"""The largest size of the members of `extra_data` for the server as JSON, in bytes."""
_NOT_FOR_SERVER = {"extra_pnginfo", "client_id", "create_time"}
"""`extra_pnginfo` is recorded with the request, and the server sets the others itself."""
_MODEL_ERRORS = {MODEL_NOT_SUPPORTED}
_INPUT_ERRORS = _MODEL_ERRORS | {
    "bad_linked_input",
    "invalid_input_type",
    "required_input_missing",
    "return_type_mismatch",
    "value_not_in_list",
}
"""The types of errors that depend on what an engine declares."""


class ComfyUICompiler(RequestCompiler):
    """Compiles the request bodies of one key for one endpoint with the engine `comfyui`."""

    def __init__(
        self,
        endpoint: Endpoint,
        catalogue: Catalogue,
        settings: GraphSettings,
        *,
        object_info: ObjectInfo | None = None,
        **more: Any,
    ) -> None:
        """`object_info` is None until a server of the endpoint has declared its node types."""
        super().__init__(endpoint, catalogue, settings, **more)
        self._object_info = object_info

    def declared(self, class_type: str) -> Mapping[str, Any] | None:
        if self._object_info is None:
            return super().declared(class_type)
        return self._object_info.nodes.get(class_type)

    def members(self, body: object) -> dict[str, Any]:
        if self._object_info is not None:
            return workflow_members(body, self.declared)
        with missing_nodes_advice(_NODES_UNKNOWN):
            return workflow_members(body, self.declared)

    def _graph(self, prompt: object) -> Graph:
        graph = parse_graph(prompt, self.catalogue, self.limits, draw_seed=draw_seed)
        if refused := self._refused(graph):
            raise self._not_allowed(refused)
        self._require_allowed_checkpoints(graph)
        self._require_known(graph, {*graph.input_files, *_possible_files(graph)})
        return graph

    def _require_allowed_checkpoints(self, graph: Graph) -> None:
        """Raise GraphInvalid if a loader names a checkpoint that the endpoint does not allow."""
        if (allowed := self.endpoint.checkpoints) is None:
            return
        for node in graph.nodes:
            name = node.literals.get(_CHECKPOINT_INPUT)
            if name is not None and name not in allowed:
                details = f"node {node.id}: {str(name)[:_SHOWN_CHARS]!r} is not allowed here"
                raise GraphInvalid("value_not_in_list", "A checkpoint is not allowed", details)

    def _require_known(self, graph: Graph, files: Collection[str]) -> None:
        """Raise GraphInvalid if the server would certainly refuse the graph."""
        if self._object_info is None:
            return
        try:
            self._object_info.check(graph.prompt, files)
        except PromptRefused as error:
            raise GraphInvalid.of_comfyui(error.error, error.node_errors) from error

    def _refused(self, graph: Graph) -> dict[str, str]:
        """Return the node types that the endpoint does not allow, by node id."""
        types = {node.id: node.class_type for node in graph.nodes}
        names = set(types.values())
        refused = names.intersection(self.endpoint.comfyui_denied_nodes or ())
        if (allowed := self.endpoint.comfyui_allowed_nodes) is not None:
            refused |= names.difference(allowed)
        return {id: name for id, name in types.items() if name in refused}

    def _not_allowed(self, types: Mapping[str, str]) -> GraphInvalid:
        """Return an error of ComfyUI's form for nodes whose types are not allowed."""
        details = f"is not allowed on the endpoint {self.endpoint.id}"
        return _nodes_invalid(
            types,
            "node_not_allowed",
            "The node type is not allowed",
            {id: f"{name[:_SHOWN_CHARS]} {details}" for id, name in types.items()},
        )

    def _extra_data(self, extra_data: object) -> str | None:
        """Return the members for the server as JSON. Raises ParametersInvalid."""
        members = extra_data if isinstance(extra_data, dict) else {}
        for_server = {name: value for name, value in members.items() if name not in _NOT_FOR_SERVER}
        if not for_server:
            return None
        text = json.dumps(for_server)
        if len(text) > _MAX_EXTRA_DATA_BYTES:
            message = (
                f"has {len(text)} bytes as JSON without extra_pnginfo, but at most "
                f"{_MAX_EXTRA_DATA_BYTES} are allowed"
            )
            raise ParametersInvalid((FieldError("too_long", message, "extra_data"),))
        return text

    def _body(self, recorded: dict[str, Any], graph: Graph, **more: Any) -> CheckedBody:
        # The texts of a diffusion request are prompts and names of models.
        files = () if "recorded_graph" in more else _possible_files(graph)
        return ComfyUIBody(self, recorded, graph=graph, possible_files=files, **more)

    def _compiled(self, body: Any) -> CompiledDiffusion:
        compiled = compile_with_core_nodes(
            body,
            self.catalogue,
            self.limits,
            models=self._models(),
            default_checkpoint=self.checkpoint(),
            draw_seed=draw_seed,
        )
        if refused := self._refused(compiled.graph):
            raise self._not_allowed(refused)
        self._require_known(compiled.graph, compiled.graph.input_files)
        return replace(compiled, request=_without_suffixes(compiled.request))

    def checkpoint(self) -> str | None:
        """Return the checkpoint for requests without one, or None if it is not known."""
        return self.endpoint.checkpoint or next(iter(self._models().names(_CHECKPOINTS)), None)

    def model_names(self, folder: str) -> tuple[str, ...]:
        return self._models().names(folder)

    def checkpoint_named(self, asked: str) -> str:
        return self._models().name(_CHECKPOINTS, asked)

    def _models(self) -> ServerModels:
        """Return the models that requests may name."""
        known: dict[str, tuple[str, ...]] = {}
        if self._object_info is not None:
            found = {kind: self._object_info.choices(*each) for kind, each in _LOADERS.items()}
            known = {kind: names for kind, names in found.items() if names is not None}
        if self.endpoint.checkpoints is not None:
            known[_CHECKPOINTS] = self.endpoint.checkpoints
        return ServerModels(known)


def may_run_on_server(error: GraphInvalid, object_info: ObjectInfo | None) -> bool:
    """Whether a ComfyUI server may run a graph that Darkroom's own engine refuses.

    Errors about the limits of the service hold for every engine. Without `object_info`, a wrong
    value cannot be told from a value that only the server knows.
    """
    if error.type == "missing_node_type":
        return True
    types = {each["type"] for node in error.node_errors.values() for each in node["errors"]}
    if not types:
        return False
    return types <= _MODEL_ERRORS or (object_info is not None and types <= _INPUT_ERRORS)


class ComfyUIBody(CheckedBody):
    """A body whose graph a ComfyUI server will check. The cost of its graph is not known."""

    def with_file_sizes(self, _: Mapping[str, tuple[int, int]]) -> CheckedBody:
        return self

    def needs_server(self, _: ObjectInfo) -> bool:
        return False

    def recorded_image_format(
        self, limits: KeyLimits, image_format: ImageFormat | None, image_quality: int | None
    ) -> tuple[ImageFormat | None, int | None]:
        """Return None for both, because the save nodes of the graph choose the format.

        Raises ParametersInvalid if the request or the key needs another form of the files.
        """
        errors = []
        # The graph of a diffusion request saves its images as PNG.
        own_format = None if self.recorded_graph is None else "png"
        if image_format not in (None, own_format) or image_quality is not None:
            message = (
                "cannot be set here: the save nodes of the graph choose the format of their files"
            )
            errors.append(FieldError("not_supported", message, "image_format"))
        if limits.embed_metadata is False:
            message = (
                "the key forbids metadata in images, but ComfyUI writes the graph into its files: "
                "use another key or endpoint"
            )
            errors.append(FieldError("not_supported", message, "endpoint"))
        if errors:
            raise ParametersInvalid(tuple(errors))
        return None, None

    def require_files(self, known: Collection[str]) -> None:
        """Raise GraphInvalid or ParametersInvalid if a named file is not in `known`."""
        if self.recorded_graph is not None:
            super().require_files(known)
            return
        shown = ", ".join([*known][:_SHOWN_NAMES]) or "none"
        missing = {
            node.id: f"there is no upload {name[:80]!r}; there are: {shown}"
            for node in self.graph.nodes
            for name in node.input_files
            if name not in known
        }
        types = {node.id: node.class_type for node in self.graph.nodes if node.id in missing}
        message = "An input file does not exist"
        raise _nodes_invalid(types, "value_not_in_list", message, missing)

    def require_readable(self, uploads: Collection[Upload]) -> None:
        """Raise GraphInvalid if the uploads are too large together.

        The nodes of the server decide which files they can read. A diffusion request reads images.
        """
        if self.recorded_graph is not None:
            super().require_readable(uploads)
        size_bytes = sum(each.size_bytes for each in uploads)
        if size_bytes > _MOST_INPUT_BYTES:
            details = (
                f"the input files of the prompt have {size_bytes} bytes together, but at most "
                f"{_MOST_INPUT_BYTES} are allowed"
            )
            raise GraphInvalid("too_large", "The input files are too large", details)

    def refusal_of(self, sent: InlineImage, why: str) -> EngineError:
        if self.recorded_graph is not None:
            return super().refusal_of(sent, why)
        return GraphInvalid("custom_validation_failed", "The image cannot be used", why)


def _nodes_invalid(
    types: Mapping[str, str], type: str, message: str, details: Mapping[str, str]
) -> GraphInvalid:
    """Return an error of ComfyUI's form with one error of each node in `types`, by node id."""
    node_errors = {
        node_id: {
            "errors": [
                {"type": type, "message": message, "details": details[node_id], "extra_info": {}}
            ],
            "dependent_outputs": [],
            "class_type": name[:_SHOWN_CHARS],
        }
        for node_id, name in islice(types.items(), _SHOWN_ERRORS)
    }
    node_id = next(iter(types))
    return GraphInvalid(
        "prompt_outputs_failed_validation",
        "The prompt is not valid",
        f"node {node_id}: {details[node_id]}",
        extra_info={"errors": len(types), "errors_shown": len(node_errors)},
        node_errors=node_errors,
    )


def _without_suffixes(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checked diffusion request with its files under the names of their uploads."""
    result = dict(request)
    if images := request.get("init_images"):
        result["init_images"] = [name.removesuffix(INPUT_SUFFIX) for name in images]
    if mask := request.get("mask"):
        result["mask"] = mask.removesuffix(INPUT_SUFFIX)
    return result


def _possible_files(graph: Graph) -> tuple[str, ...]:
    """Return the texts of a graph that may be names of uploads, except its known input files.

    Any node may read a file, so each literal text that ends like the name of an image, a video, an
    audio file or a latent is possible. Raises GraphInvalid if there are too many.
    """
    known = {*graph.input_files}
    texts = (value for node in graph.nodes for value in node.literals.values())
    names = (text.removesuffix(INPUT_SUFFIX) for text in texts if isinstance(text, str))
    found = {name for name in names if is_media_name(name) and is_upload_name(name)} - known
    if len(found) > _MOST_FILES:
        details = (
            f"the prompt has {len(found)} names of files, but at most {_MOST_FILES} are allowed"
        )
        raise GraphInvalid("too_many_files", "The prompt has too many names of files", details)
    return tuple(sorted(found))
