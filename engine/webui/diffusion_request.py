"""Compiles the body of a diffusion request to a valid graph, with its cost.

Styles, names, defaults and seeds are resolved first, so that the recorded request makes the same
images later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import CheckpointUnavailable, FieldError, GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from engine.graph.validation import parse_graph, validate
from engine.webui.compiler import compile_parameters
from engine.webui.core_nodes import require_core_members, with_core_nodes
from engine.webui.family_defaults import checkpoint_traits
from engine.webui.infotext import ImageSettings, image_settings
from engine.webui.model_names import ServerModels, listed_name, named_by_hash
from engine.webui.parameters import DiffusionParameters, parse_parameters
from engine.webui.sampler_names import Compatibility
from engine.webui.styles import Style, styles_of

_PLACE = "{prompt}"
_LONGEST_CHARS = 2**20
_SHOWN_NAMES = 20
_CHECKPOINT_MEMBERS = ("sd_model_checkpoint", "hr_checkpoint_name", "refiner_checkpoint")


@dataclass(frozen=True, slots=True)
class CompiledDiffusion:
    request: dict[str, Any]
    """The members of the request as JSON. The same members make the same images later."""
    prompt: dict[str, Any]
    """The node graph in ComfyUI's API format."""
    graph: Graph
    """`prompt` after its validation. The cost assumes input files of 512 x 512 pixels."""
    first_index: dict[str, int]
    images: int
    settings: ImageSettings
    notes: tuple[str, ...]
    """The deviations from the request that are known already."""


def compile_diffusion(
    body: Any,
    catalogue: Catalogue,
    limits: Limits,
    *,
    compatibility: Compatibility,
    default_checkpoint: str | None,
    draw_seed: Callable[[], int],
) -> CompiledDiffusion:
    """Compile the body of a request. A negative seed is replaced by a drawn seed.

    `compatibility` applies if the body does not name a compatibility. `default_checkpoint` applies
    if the body does not name a checkpoint. If `default_checkpoint` is None too, the first
    checkpoint of the models folder applies.

    Raises ParametersInvalid, GraphInvalid, ModelsUnavailable.
    """
    given = parse_parameters(body, compatibility)
    models, default = catalogue.models, default_checkpoint
    if given.checkpoint is None and default is None:
        default = next(iter(models.names(CHECKPOINTS)), None)
    named = expanded(given, models)
    usual = with_family_defaults(named, body, models, default=default)
    parameters = with_seed(usual, draw_seed)
    compiled = compile_parameters(parameters, models, limits, default_checkpoint=default)
    try:
        graph = validate(compiled.prompt, catalogue, limits)
    except GraphInvalid as error:
        raise error.of_parameters() from error
    return CompiledDiffusion(
        request=_recorded(body, parameters, default=default),
        prompt=compiled.prompt,
        graph=graph,
        first_index=compiled.first_index,
        images=parameters.images,
        settings=image_settings(parameters, compiled),
        notes=compiled.notes,
    )


def compile_with_core_nodes(
    body: Any,
    catalogue: Catalogue,
    limits: Limits,
    *,
    models: ServerModels,
    default_checkpoint: str | None,
    draw_seed: Callable[[], int],
) -> CompiledDiffusion:
    """Compile the body of a request to a graph of ComfyUI's core nodes, for a ComfyUI server.

    The request has the compatibility of ComfyUI. `models` are those of the server. As the families
    of its checkpoints are not known, the defaults are the same for all. Styles are those of the
    models folder here. For the other arguments see `compile_diffusion`.

    Raises ParametersInvalid, also for a member that needs a node which ComfyUI does not have.
    Raises GraphInvalid, ModelsUnavailable.
    """
    given = parse_parameters(body, "comfyui")
    require_core_members(given)
    parameters = with_seed(_with_styles(given, catalogue.models), draw_seed)
    compiled = compile_parameters(parameters, models, limits, default_checkpoint=default_checkpoint)
    prompt = with_core_nodes(compiled.prompt, parameters)
    return CompiledDiffusion(
        request=_recorded(body, parameters, default=default_checkpoint),
        prompt=prompt,
        graph=parse_graph(prompt, catalogue, limits),
        first_index=compiled.first_index,
        images=parameters.images,
        settings=image_settings(parameters, compiled),
        notes=compiled.notes,
    )


def _recorded(
    body: Mapping[str, Any], parameters: DiffusionParameters, *, default: str | None
) -> dict[str, Any]:
    """Return the members to record. `default` is the checkpoint if the body does not name one."""
    recorded = parameters.recorded()
    if body.get("compatibility") is None:
        # The compatibility is recorded with the job's terms.
        del recorded["compatibility"]
    if parameters.checkpoint is None:
        # The default may have changed by the time the job is repeated.
        recorded["sd_model_checkpoint"] = default
    return recorded


def expanded(parameters: DiffusionParameters, models: ModelsFolder) -> DiffusionParameters:
    """Return the parameters with applied styles, and with names in the place of hashes.

    Recorded parameters then make the same images even after a style has changed. Raises
    ParametersInvalid for an unknown style.
    """
    return _with_named_checkpoints(_with_styles(parameters, models), models)


def _with_styles(parameters: DiffusionParameters, models: ModelsFolder) -> DiffusionParameters:
    if not parameters.styles:
        return parameters
    known = styles_of(models)
    styles = [_style(name, known) for name in parameters.styles]
    texts = {
        "prompt": [each.prompt for each in styles],
        "hr_prompt": [each.prompt for each in styles],
        "negative_prompt": [each.negative_prompt for each in styles],
        "hr_negative_prompt": [each.negative_prompt for each in styles],
    }
    changed = {
        name: _styled(name, getattr(parameters, name), added)
        for name, added in texts.items()
        if getattr(parameters, name) or not name.startswith("hr_")
    }
    return parameters.model_copy(update={**changed, "styles": ()})


def _style(name: str, known: Mapping[str, Style]) -> Style:
    if name in known:
        return known[name]
    shown = ", ".join([*known][:_SHOWN_NAMES]) or "none"
    message = f"{name[:80]!r} is not known; there are: {shown}"
    raise ParametersInvalid((FieldError("value_not_in_list", message, "styles"),))


def _styled(member: str, text: str, added: Iterable[str]) -> str:
    """Return the text with the texts of styles.

    A style with a placeholder is put around the text. Any other style is added at the end.
    """
    for each in added:
        grown = len(each) + len(text) * max(1, each.count(_PLACE))
        if grown > _LONGEST_CHARS:
            message = (
                f"has {grown} characters with its styles, but at most {_LONGEST_CHARS} are allowed"
            )
            raise ParametersInvalid((FieldError("value_error", message, member),))
        if _PLACE in each:
            text = each.replace(_PLACE, text)
        else:
            text = ", ".join(part for part in (text.strip(), each.strip()) if part)
    return text.strip()


def _with_named_checkpoints(
    parameters: DiffusionParameters, models: ModelsFolder
) -> DiffusionParameters:
    settings = parameters.override_settings
    named = {name: _named(getattr(parameters, name), models) for name in _CHECKPOINT_MEMBERS}
    changed: dict[str, Any] = {name: found for name, found in named.items() if found}
    if found := _named(settings.sd_model_checkpoint, models):
        changed["override_settings"] = settings.model_copy(update={"sd_model_checkpoint": found})
    return parameters.model_copy(update=changed) if changed else parameters


def _named(asked: str | None, models: ModelsFolder) -> str | None:
    """Return the checkpoint with the hash `asked`, or None for a name or an unknown hash."""
    if not asked:
        return None
    try:
        listed_name(asked, models.names(CHECKPOINTS))
    except ValueError:
        return named_by_hash(models, asked)
    return None


def with_family_defaults(
    parameters: DiffusionParameters,
    body: Mapping[str, Any],
    models: ModelsFolder,
    *,
    default: str | None,
) -> DiffusionParameters:
    """Return the parameters of a body, with the checkpoint's defaults for values that are not set.

    The result is recorded with the job. `default` is the checkpoint if the body does not name one.
    """
    asked = parameters.checkpoint or default
    try:
        name = listed_name(asked or "", models.names(CHECKPOINTS))
        traits = checkpoint_traits(models, name)
    except (CheckpointUnavailable, ValueError):
        return parameters  # The compilation raises an error with the reason.
    usual = {} if traits is None else asdict(traits.defaults)
    given = parameters.model_fields_set - {"steps"}
    if body.get("steps") is not None:
        given |= {"steps"}
    if given & {"sampler_name", "scheduler"}:
        # If one of the two is given, the other gets no default, because the default may not fit.
        given |= {"sampler_name", "scheduler"}
    taken = {name: each for name, each in usual.items() if each is not None and name not in given}
    return parameters.model_copy(update=taken) if taken else parameters


def with_seed(parameters: DiffusionParameters, draw: Callable[[], int]) -> DiffusionParameters:
    """Return the parameters with drawn seeds in place of negative seeds."""
    names = ("seed", "subseed") if parameters.varies else ("seed",)
    drawn = {name: draw() for name in names if getattr(parameters, name) < 0}
    return parameters.model_copy(update=drawn) if drawn else parameters
