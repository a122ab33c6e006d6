"""Checks the body of a generate request, and draws the seeds that it leaves open."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import EngineError, FieldError, GraphInvalid, ParametersInvalid
from engine.extra_data import pnginfo_of, require_metadata_size, require_size
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.costing import COST_TOO_HIGH, FileSizes
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import CHECKPOINTS
from engine.graph.seeds import resolve_seeds
from engine.graph.validation import validate
from engine.webui.compiler import compile_parameters
from engine.webui.family_defaults import with_family_defaults
from engine.webui.parameters import parse_parameters, with_seed
from engine.webui.sampler_names import Compatibility
from events.store.records import Endpoint
from events.types import Flavour
from serve_app.acceptance.expansion import expanded
from serve_app.acceptance.sent_inputs import (
    SentInput,
    TakenImages,
    image_refused,
    member_refused,
    with_member_names,
    with_names,
    without_images,
    without_member_images,
)
from serve_app.acceptance.text_budget import require_recordable, require_text_budget
from serve_app.acceptance.workflow_file import workflow_members
from serve_app.refusals import BodyTooLarge
from settings.graph import GraphSettings

_SHOWN_NAMES = 20
_FIELD_OF_LIMIT = {
    "max_cost": "steps",
    "max_live_bytes": "width",
    "max_conditioning_rows": "prompt",
    "max_tokens": "prompt",
    "max_merged_models": "prompt",
    "max_outputs": "batch_size",
}
"""The member of a diffusion request that brings a job below a limit."""


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A valid request as the job records it: what a run needs of it, its seeds drawn."""

    request: dict[str, Any]
    images: int
    """How many the job makes; 0 where only the run can tell."""
    cost: Cost
    """Until the uploads are known, those that it takes count as small ones."""
    input_files: tuple[str, ...] = ()
    """Names of the uploads that it takes."""
    sent_images: tuple[SentInput, ...] = ()
    """Those that are no uploads yet: their places are among the names."""
    compiled: dict[str, Any] | None = None
    """The graph of a diffusion request."""

    @property
    def prompt(self) -> Any:
        """The graph that a run is made of."""
        return self.request["prompt"] if self.compiled is None else self.compiled


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks bodies against what one endpoint takes."""

    catalogue: Catalogue
    limits: Limits
    default_checkpoint: str | None
    """If None, it is the first of the models folder."""
    compatibility: Compatibility
    """Of a diffusion request that names none."""
    max_sent_images: int
    max_request_chars: int
    max_extra_data_bytes: int
    max_metadata_bytes: int

    def check(self, flavour: Flavour, body: Any, *, excess_bytes: int = 0) -> CheckedRequest:
        """`excess_bytes`: what the body has too many, unless these are of images.

        Raises GraphInvalid, ParametersInvalid, BodyTooLarge, ModelsUnavailable.
        """
        if flavour is Flavour.WORKFLOW:
            return self._workflow(body, excess_bytes)
        return self._diffusion(body, excess_bytes)

    def _workflow(self, body: Any, excess_bytes: int) -> CheckedRequest:
        """Members that a run does not need, such as `client_id`, are accepted and not recorded."""
        members = workflow_members(body, self.catalogue)
        taken = without_images(members.get("prompt"), self.catalogue, most=self.max_sent_images)
        _require_small(taken, excess_bytes)
        pnginfo = pnginfo_of(members.get("extra_data"))
        require_size(pnginfo, self.max_extra_data_bytes)
        require_text_budget(taken.rest, self.max_request_chars)
        prompt = resolve_seeds(taken.rest, draw_seed)
        graph = validate(prompt, self.catalogue, self.limits)
        # Each text that came by links stands wherever it is used now.
        require_text_budget(graph.prompt, self.max_request_chars)
        self._require_metadata(graph, pnginfo)
        recorded: dict[str, Any] = {"prompt": graph.prompt}
        if pnginfo:
            recorded["extra_data"] = {"extra_pnginfo": pnginfo}
        require_recordable(recorded)
        return CheckedRequest(
            recorded,
            images=0,
            cost=graph.cost,
            input_files=graph.input_files,
            sent_images=_used(taken, graph),
        )

    def with_uploads(self, checked: CheckedRequest, names: Mapping[str, str]) -> CheckedRequest:
        """A valid request whose images are uploads now; `names` has these by their places."""
        prompt = with_names(checked.prompt, names)
        files = tuple(dict.fromkeys(names.get(name, name) for name in checked.input_files))
        if checked.compiled is None:
            request, compiled = {**checked.request, "prompt": prompt}, None
        else:
            request, compiled = with_member_names(checked.request, names), prompt
        return replace(
            checked, request=request, compiled=compiled, input_files=files, sent_images=()
        )

    def refusal_of(self, checked: CheckedRequest, sent: SentInput, why: str) -> EngineError:
        """The error of an image that a valid request brings along."""
        if checked.compiled is not None:
            return member_refused(sent, why)
        return image_refused(sent, why, checked.prompt, self.catalogue)

    def with_files(self, checked: CheckedRequest, sizes: FileSizes) -> CheckedRequest:
        """A valid request with the cost that it has with its uploads.

        Raises GraphInvalid, ParametersInvalid.
        """
        try:
            graph = validate(checked.prompt, self.catalogue, self.limits, sizes=sizes)
        except GraphInvalid as error:
            if checked.compiled is None:
                raise
            raise _too_costly(error) from error
        return replace(checked, cost=graph.cost)

    def require_files(self, checked: CheckedRequest, known: Collection[str]) -> None:
        """Check a valid request again, with the files it may name.

        Raises GraphInvalid, or ParametersInvalid, where it names a file that is not among `known`.
        """
        if checked.compiled is None:
            validate(checked.prompt, self.catalogue, self.limits, known)
        else:
            _require_known(checked.request, known)

    def _diffusion(self, body: Any, excess_bytes: int) -> CheckedRequest:
        taken = without_member_images(body, most=self.max_sent_images)
        _require_small(taken, excess_bytes)
        given = parse_parameters(taken.rest, self.compatibility)
        models, default = self.catalogue.models, self.default_checkpoint
        if given.checkpoint is None:
            default = self.checkpoint()
        named = expanded(given, models)
        usual = with_family_defaults(named, taken.rest, models, default=default)
        parameters = with_seed(usual, draw_seed)
        compiled = compile_parameters(
            parameters, self.catalogue, self.limits, default_checkpoint=default
        )
        require_text_budget(compiled.prompt, self.max_request_chars)
        try:
            graph = validate(compiled.prompt, self.catalogue, self.limits)
        except GraphInvalid as error:
            raise _too_costly(error) from error
        self._require_metadata(graph)
        recorded = parameters.recorded()
        if body.get("compatibility") is None:
            # One of the job's terms, and no member that a worker of an older version would refuse.
            del recorded["compatibility"]
        if given.checkpoint is None:
            # The default may have changed by the time the job is repeated.
            recorded["sd_model_checkpoint"] = default
        return CheckedRequest(
            recorded,
            images=parameters.images,
            cost=graph.cost,
            input_files=graph.input_files,
            sent_images=_used(taken, graph),
            compiled=compiled.prompt,
        )

    def checkpoint(self) -> str | None:
        """That of a request that names none. Raises ModelsUnavailable."""
        if self.default_checkpoint is not None:
            return self.default_checkpoint
        return next(iter(self.catalogue.models.names(CHECKPOINTS)), None)

    def _require_metadata(self, graph: Graph, pnginfo: Mapping[str, Any] | None = None) -> None:
        require_metadata_size(
            (graph.prompt, *(pnginfo or {}).values()),
            images=graph.cost.outputs,
            max_bytes=self.max_metadata_bytes,
        )


def _require_small(taken: TakenImages, excess_bytes: int) -> None:
    """Raise BodyTooLarge where the body has too many bytes, and they are not of images."""
    if taken.chars < excess_bytes:
        raise BodyTooLarge(excess_bytes - taken.chars)


def _used(taken: TakenImages, graph: Graph) -> tuple[SentInput, ...]:
    return tuple([each for each in taken.images if each.place in graph.input_files])


def _require_known(request: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise ParametersInvalid where a diffusion request names an upload that is not there."""
    named = [*(("init_images", each) for each in request["init_images"])]
    if mask := request.get("mask"):
        named.append(("mask", mask))
    shown = ", ".join([*known][:_SHOWN_NAMES]) or "none"
    errors = [
        FieldError("value_not_in_list", f"no upload {name[:80]!r}; there are: {shown}", field)
        for field, name in named
        if name not in known
    ]
    if errors:
        raise ParametersInvalid(tuple(errors))


def _too_costly(error: GraphInvalid) -> EngineError:
    """The error of a compiled graph, of which the caller knows only the parameters."""
    if error.type != COST_TOO_HIGH:
        return error
    field = _FIELD_OF_LIMIT[error.extra_info["limit"]]
    return ParametersInvalid((FieldError(error.type, error.details, field),))


def checker_for(
    endpoint: Endpoint,
    catalogue: Catalogue,
    settings: GraphSettings,
    *,
    default_checkpoint: str | None,
    max_cost: float = 0.0,
) -> Checker:
    """`default_checkpoint`: for an endpoint that has none of its own, and allows it.

    `max_cost`: of the key; 0 is as much as the endpoint takes.
    """
    allowed = endpoint.checkpoints
    if allowed is not None:
        catalogue = catalogue.only(allowed)
        default_checkpoint = default_checkpoint if default_checkpoint in allowed else None
    return Checker(
        catalogue=catalogue,
        limits=Limits(**endpoint.limits(settings)).narrowed(max_cost),
        default_checkpoint=endpoint.checkpoint or default_checkpoint or None,
        compatibility=endpoint.compatibility or settings.compatibility,
        max_sent_images=settings.max_sent_images,
        max_request_chars=settings.max_request_chars,
        max_extra_data_bytes=settings.max_extra_data_bytes,
        max_metadata_bytes=settings.max_metadata_bytes,
    )


def draw_seed() -> int:
    """A seed of 32 bits, as WebUI draws it: a JSON reader may lose digits above 2**53."""
    return secrets.randbelow(2**32)
