"""Compiles the body of a generate request to a valid graph, and draws missing seeds."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from comfyui.object_info import ObjectInfo
from engine.interface import (
    Catalogue,
    CompiledDiffusion,
    EngineError,
    FieldError,
    Graph,
    GraphInvalid,
    Limits,
    ParametersInvalid,
    compile_diffusion,
    input_file_refused,
    pnginfo_of,
    validate,
    with_cost,
    workflow_members,
)
from events.store.records import Endpoint, KeyLimits, Upload
from events.types import Compiled, Flavour, Infotext
from serve_app.acceptance.inline_images import (
    ExtractedImages,
    InlineImage,
    member_refused,
    with_member_names,
    with_names,
    without_images,
    without_member_images,
)
from serve_app.refusals import BodyTooLarge, QualityOfPng
from settings.constant import constant
from settings.graph import Compatibility, GraphSettings
from settings.keys import ImageFormat

_MAX_INLINE_IMAGES = constant("MAX_SENT_IMAGES", 16)
"""The largest number of inline images in one request."""
_MAX_PNGINFO_BYTES = constant("MAX_EXTRA_DATA_BYTES", 64 * 1024)
"""The largest size of a workflow's `extra_pnginfo` as JSON, in bytes."""
MAX_METADATA_BYTES = constant("MAX_METADATA_BYTES", 64 * 1024**2)
"""The largest total size of the metadata in all images of a job, in bytes."""
_SHOWN_NAMES = 20


class RequestCompiler:
    """Compiles the request bodies of one key for one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        catalogue: Catalogue,
        settings: GraphSettings,
        *,
        default_checkpoint: str | None,
        max_cost: float = 0.0,
    ) -> None:
        """`default_checkpoint` applies to an endpoint without a checkpoint of its own, if the
        endpoint allows it. `max_cost` is the limit of the key; 0 means no limit.
        """
        allowed = endpoint.checkpoints
        if allowed is not None:
            catalogue = catalogue.only(allowed)
            default_checkpoint = default_checkpoint if default_checkpoint in allowed else None
        self.endpoint = endpoint
        self.catalogue = catalogue
        self.limits = Limits(**endpoint.limits(settings)).narrowed(max_cost)
        self._default_checkpoint = endpoint.checkpoint or default_checkpoint or None
        self._compatibility = compatibility_of(endpoint, settings)

    def compile(self, flavour: Flavour, body: Any, *, excess_bytes: int = 0) -> CheckedBody:
        """Compile and validate a body, of which at least `excess_bytes` must be inline images.

        Raises GraphInvalid, ParametersInvalid, BodyTooLarge, ModelsUnavailable.
        """
        if flavour is Flavour.WORKFLOW:
            return self._workflow(body, excess_bytes)
        return self._diffusion(body, excess_bytes)

    def _workflow(self, body: Any, excess_bytes: int) -> CheckedBody:
        """Compile a workflow. Members that no run needs, such as `client_id`, are dropped."""
        members = self.members(body)
        extracted = without_images(members.get("prompt"), self.catalogue, most=_MAX_INLINE_IMAGES)
        _require_small(extracted, excess_bytes)
        pnginfo = pnginfo_of(members.get("extra_data"))
        require_small_pnginfo(pnginfo, _MAX_PNGINFO_BYTES)
        graph = self._graph(extracted.rest)
        _require_metadata(graph, pnginfo)
        recorded: dict[str, Any] = {"prompt": graph.prompt}
        if pnginfo:
            recorded["extra_data"] = {"extra_pnginfo": pnginfo}
        require_recordable(recorded)
        return self._body(
            recorded,
            graph,
            input_files=graph.input_files,
            inline_images=_used(extracted, graph),
            extra_data=self._extra_data(members.get("extra_data")),
            ignored_inputs=_ignored_inputs(extracted.rest, graph),
        )

    def _extra_data(self, _: object) -> str | None:
        """Return None, because no node reads further members of `extra_data`."""
        return None

    def declared(self, class_type: str) -> Mapping[str, Any] | None:
        """Return the declaration of a node type in the shape of `object_info`, or None."""
        return self.catalogue.declaration(class_type)

    def members(self, body: object) -> dict[str, Any]:
        """Return the members of a workflow. A file of ComfyUI's editor becomes a graph."""
        with missing_nodes_advice(_OTHER_ENGINE):
            return workflow_members(body, self.declared)

    def _graph(self, prompt: object) -> Graph:
        with missing_nodes_advice(_OTHER_ENGINE):
            return validate(prompt, self.catalogue, self.limits, draw_seed=draw_seed)

    def _body(self, recorded: dict[str, Any], graph: Graph, **more: Any) -> CheckedBody:
        return CheckedBody(self, recorded, graph=graph, **more)

    def _diffusion(self, body: Any, excess_bytes: int) -> CheckedBody:
        extracted = without_member_images(body, most=_MAX_INLINE_IMAGES)
        _require_small(extracted, excess_bytes)
        compiled = self._compiled(extracted.rest)
        _require_metadata(compiled.graph)
        require_recordable({"request": compiled.request, "graph": compiled.prompt})
        return self._body(
            compiled.request,
            compiled.graph,
            images=compiled.images,
            input_files=compiled.graph.input_files,
            inline_images=_used(extracted, compiled.graph),
            recorded_graph=recorded_graph(compiled),
            notes=compiled.notes,
        )

    def _compiled(self, body: Any) -> CompiledDiffusion:
        return compile_diffusion(
            body,
            self.catalogue,
            self.limits,
            compatibility=self._compatibility,
            default_checkpoint=self._default_checkpoint,
            draw_seed=draw_seed,
        )

    def checkpoint(self) -> str | None:
        """Return the checkpoint for requests without one: the default, or the first checkpoint in
        the models folder. Raises ModelsUnavailable.
        """
        if self._default_checkpoint is not None:
            return self._default_checkpoint
        return next(iter(self.catalogue.checkpoints()), None)

    def model_names(self, folder: str) -> tuple[str, ...]:
        """Return the names of the models of a folder. Raises ModelsUnavailable."""
        return self.catalogue.models.names(folder)

    def checkpoint_named(self, asked: str) -> str:
        """Return the name of a checkpoint for a spelling of the WebUI.

        Raises ValueError for an unknown name, and ModelsUnavailable.
        """
        return self.catalogue.checkpoint(asked)


_OTHER_ENGINE = "an endpoint with the engine `comfyui` runs nodes of packs"


@contextmanager
def missing_nodes_advice(advice: str) -> Generator[None]:
    """Add to an error about unknown node types what the caller can do."""
    try:
        yield
    except GraphInvalid as error:
        if error.type != "missing_node_type":
            raise
        details = f"{error.details}; {advice}"
        raise GraphInvalid(
            error.type, error.message, details, extra_info=error.extra_info
        ) from error


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """A valid body in the form that is recorded with the job. All seeds are drawn."""

    compiler: RequestCompiler = field(repr=False, compare=False)
    recorded_request: dict[str, Any]
    graph: Graph = field(repr=False, compare=False)
    """The valid graph with its cost. The cost assumes small input files before `with_file_sizes`.
    """
    images: int = 0
    """The number of images of the job; 0 if the number is unknown before the run."""
    recorded_graph: Compiled | None = None
    """The graph of a diffusion request in the form of the event. None for a workflow, because its
    recorded request contains the graph.
    """
    presigned_uploads: tuple[str, ...] | None = None
    """The encrypted URLs to which the images are sent."""
    input_files: tuple[str, ...] = ()
    """Names of the uploads that the graph reads, and placeholders of inline images."""
    possible_files: tuple[str, ...] = ()
    """Texts of the graph that mean an upload if the owner has one of this name."""
    inline_images: tuple[InlineImage, ...] = ()
    """The inline images that are not stored as uploads yet."""
    notes: tuple[str, ...] = ()
    """Deviations of the graph from a diffusion request."""
    extra_data: str | None = field(default=None, repr=False)
    """JSON with the members of `extra_data` that only a ComfyUI server reads. They may be secrets.
    """
    ignored_inputs: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)
    """The inputs of a workflow that have no effect, each with the type of its node."""
    stored_names: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The upload name of each stored inline image, by placeholder."""

    @property
    def prompt(self) -> Any:
        """The graph to run, in ComfyUI's API format."""
        recorded = self.recorded_graph
        return self.recorded_request["prompt"] if recorded is None else recorded.graph

    def with_uploads(self, names: Mapping[str, str]) -> CheckedBody:
        """Return the body with uploads instead of inline images. `names` are the upload names by
        placeholder.
        """
        prompt = with_names(self.prompt, names)
        if self.recorded_graph is None:
            request, graph = {**self.recorded_request, "prompt": prompt}, None
        else:
            request = with_member_names(self.recorded_request, names)
            graph = self.recorded_graph.model_copy(update={"graph": prompt})
        return replace(
            self,
            recorded_request=request,
            recorded_graph=graph,
            input_files=tuple(dict.fromkeys(names.get(name, name) for name in self.input_files)),
            inline_images=(),
            stored_names=names,
        )

    def with_file_sizes(self, sizes: Mapping[str, tuple[int, int]]) -> CheckedBody:
        """Return the body with its cost for input files of these widths and heights, by name.

        Raises GraphInvalid or ParametersInvalid if the cost exceeds a limit of the endpoint.
        """
        placeholders = {
            placeholder: sizes[name]
            for placeholder, name in self.stored_names.items()
            if name in sizes
        }
        catalogue, limits = self.compiler.catalogue, self.compiler.limits
        try:
            graph = with_cost(self.graph, catalogue, limits, sizes={**sizes, **placeholders})
        except GraphInvalid as error:
            if self.recorded_graph is None:
                raise
            raise error.of_parameters() from error
        return replace(self, graph=graph)

    def needs_server(self, object_info: ObjectInfo) -> bool:
        """Whether Darkroom's own engine would ignore an input that a ComfyUI server with these node
        types has.
        """
        return any(
            object_info.has_input(class_type, name) for class_type, name in self.ignored_inputs
        )

    def recorded_image_format(
        self, limits: KeyLimits, image_format: ImageFormat | None, image_quality: int | None
    ) -> tuple[ImageFormat | None, int | None]:
        """Return the image format and quality to record. Both are None for PNG.

        `limits` are those of the key, and the other arguments are the request's. Raises
        QualityOfPng, ParametersInvalid.
        """
        image_format = image_format or limits.image_format or "png"
        if image_format == "png":
            if image_quality is not None:
                raise QualityOfPng
            return None, None
        return image_format, image_quality or limits.image_quality

    def require_files(self, known: Collection[str]) -> None:
        """Raise GraphInvalid or ParametersInvalid if a named file is not in `known`."""
        if self.recorded_graph is None:
            validate(self.prompt, self.compiler.catalogue, self.compiler.limits, known)
        else:
            _require_known(self.recorded_request, known)

    def require_readable(self, uploads: Collection[Upload]) -> None:
        """Raise GraphInvalid or ParametersInvalid if the engine cannot read one of these uploads of
        the graph.
        """
        for name in [each.name for each in uploads if not each.width]:
            why = f"This endpoint cannot read video or audio files, such as {name[:80]!r}."
            if self.recorded_graph is None:
                raise input_file_refused(self.graph, self.compiler.catalogue, name, why)
            fields = [field for field, each in _files_of(self.recorded_request) if each == name]
            raise ParametersInvalid((FieldError("value_error", why, fields[0]),))

    def refusal_of(self, sent: InlineImage, why: str) -> EngineError:
        """Return the error for an unusable inline image."""
        if self.recorded_graph is not None:
            return member_refused(sent, why)
        return input_file_refused(self.graph, self.compiler.catalogue, sent.placeholder, why)


def _require_metadata(graph: Graph, pnginfo: Mapping[str, Any] | None = None) -> None:
    """Raise GraphInvalid if all images of the job together have too many bytes of metadata."""
    images = graph.cost.outputs
    # Each image contains the graph and all texts of `pnginfo`, as JSON in ASCII.
    texts = (graph.prompt, *(pnginfo or {}).values())
    size_bytes = images * sum(len(json.dumps(text)) for text in texts)
    if size_bytes > MAX_METADATA_BYTES:
        details = (
            f"{images} images have {size_bytes} bytes of metadata, but at most "
            f"{MAX_METADATA_BYTES} are allowed: shorten the texts of the prompt, or save fewer "
            "images"
        )
        message = "The images have too much metadata"
        raise GraphInvalid("too_much_metadata", message, details)


def recorded_graph(compiled: CompiledDiffusion) -> Compiled:
    """Convert a compiled graph to the form that is recorded with the job."""
    settings = compiled.settings
    infotext = Infotext(
        settings=settings.settings,
        seeds=settings.seeds,
        variation_seeds=settings.variation_seeds,
    )
    return Compiled(graph=compiled.prompt, first_index=compiled.first_index, infotext=infotext)


def _require_small(extracted: ExtractedImages, excess_bytes: int) -> None:
    """Raise BodyTooLarge if the body is too large even without its inline images."""
    if extracted.chars < excess_bytes:
        raise BodyTooLarge(excess_bytes - extracted.chars)


def _used(extracted: ExtractedImages, graph: Graph) -> tuple[InlineImage, ...]:
    return tuple([each for each in extracted.images if each.placeholder in graph.input_files])


def _ignored_inputs(prompt: Mapping[str, Any], graph: Graph) -> frozenset[tuple[str, str]]:
    return frozenset(
        (node.class_type, name)
        for node in graph.nodes
        for name in prompt[node.id].get("inputs") or ()
        if name not in node.literals and name not in node.links
    )


def _require_known(request: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ParametersInvalid if a diffusion request names an upload that does not exist."""
    shown = ", ".join([*known][:_SHOWN_NAMES]) or "none"
    errors = [
        FieldError(
            "value_not_in_list", f"there is no upload {name[:80]!r}; there are: {shown}", field
        )
        for field, name in _files_of(request)
        if name not in known
    ]
    if errors:
        raise ParametersInvalid(tuple(errors))


def _files_of(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names of files in a recorded diffusion request, each after its member."""
    named = [("init_images", each) for each in request["init_images"]]
    return [*named, ("mask", request["mask"])] if request.get("mask") else named


def compatibility_of(endpoint: Endpoint, settings: GraphSettings) -> Compatibility:
    """Return the compatibility of a diffusion request that does not set one."""
    if endpoint.engine == "comfyui":
        return "comfyui"
    return endpoint.compatibility or settings.compatibility


def draw_seed() -> int:
    """Return a random seed of 32 bits, as in the WebUI."""
    # Some JSON readers round integers above 2**53.
    return secrets.randbelow(2**32)


_MAX_RECORDED_BYTES = 3 * 2**19
"""The largest size of a recorded request in bytes. Its event of at most 2 MiB has further data."""


def require_recordable(recorded: Mapping[str, Any]) -> None:
    """Raise GraphInvalid if a checked request and its graph are too large for the log.

    The graph can be larger than the body, because a linked value is copied into each of its inputs.
    """
    size_bytes = len(json.dumps(recorded, ensure_ascii=False).encode())
    if size_bytes > _MAX_RECORDED_BYTES:
        details = (
            f"the prompt and its linked values have {size_bytes} bytes, but at most "
            f"{_MAX_RECORDED_BYTES} are allowed: use shorter ids, or fewer links to switches"
        )
        raise GraphInvalid("too_large", "The prompt is too large", details)


def require_small_pnginfo(pnginfo: Mapping[str, Any], max_bytes: int) -> None:
    """Raise ParametersInvalid if `pnginfo` has more than `max_bytes` as compact JSON in UTF-8."""
    written = json.dumps(pnginfo, ensure_ascii=False, separators=(",", ":"))
    size_bytes = len(written.encode())
    if size_bytes > max_bytes:
        message = f"has {size_bytes} bytes as JSON, but at most {max_bytes} are allowed"
        raise ParametersInvalid((FieldError("too_long", message, "extra_data.extra_pnginfo"),))
