"""The diffusion flavour: flat parameters, compiled to the same node graph as a workflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from engine import names
from engine.catalogue import Catalogue
from engine.errors import FieldError, ParametersInvalid, encodable
from engine.inputs import Limits
from engine.models_folder import CHECKPOINTS

_SEEDS = 2**64
_SHOWN_NAMES = 20
_SHOWN_ERRORS = 50


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _unicode(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode") from None
    return value


def _known_sampler(value: str) -> str:
    names.sampler(value)
    return value


def _known_scheduler(value: str) -> str:
    names.scheduler(value)
    return value


_Text = Annotated[str, AfterValidator(_unicode)]
_Whole = Annotated[int, BeforeValidator(_no_boolean)]
_Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class OverrideSettings(_Strict):
    """Settings for this job alone."""

    sd_model_checkpoint: _Text | None = None


class DiffusionParameters(_Strict):
    """A diffusion request. Sides in pixels; a negative seed means that one is to be drawn."""

    prompt: _Text
    negative_prompt: _Text = ""
    sd_model_checkpoint: _Text | None = None
    width: Annotated[_Whole, Field(ge=16, le=4096)] = 512
    height: Annotated[_Whole, Field(ge=16, le=4096)] = 512
    sampler_name: Annotated[str, AfterValidator(_known_sampler)] = "Euler"
    scheduler: Annotated[str, AfterValidator(_known_scheduler)] = names.AUTOMATIC
    steps: Annotated[_Whole, Field(ge=1, le=150)] = 20
    cfg_scale: Annotated[_Number, Field(ge=0, le=100)] = 7.0
    batch_size: Annotated[_Whole, Field(ge=1, le=16)] = 1
    clip_skip: Annotated[_Whole, Field(ge=1, le=12)] = 1
    seed: Annotated[_Whole, Field(lt=_SEEDS)] = -1
    override_settings: OverrideSettings | None = None

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that was asked for."""
        overridden = self.override_settings and self.override_settings.sd_model_checkpoint
        return overridden or self.sd_model_checkpoint or None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A node graph in ComfyUI's API format, and which image each of its output nodes makes."""

    prompt: dict[str, Any]
    first_index: dict[str, int]
    seeds: tuple[int, ...]
    """The seed of every image asked for, skipped or not."""


def parse_parameters(body: object) -> DiffusionParameters:
    """The parameters of a request body; raises ParametersInvalid with an entry per bad field."""
    try:
        return DiffusionParameters.model_validate(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)[:_SHOWN_ERRORS]
        raise ParametersInvalid(tuple(_field_error(each) for each in errors)) from error


def _field_error(error: Any) -> FieldError:
    where = ".".join(str(part) for part in error["loc"]) or "body"
    messages = {"missing": "is required", "extra_forbidden": "is not supported"}
    message = messages.get(error["type"], error["msg"].removeprefix("Value error, "))
    return FieldError(error["type"], message, encodable(where))


def with_seed(parameters: DiffusionParameters, draw: Callable[[], int]) -> DiffusionParameters:
    """The parameters with a seed drawn where they ask for one."""
    return parameters.model_copy(update={"seed": draw()}) if parameters.seed < 0 else parameters


def compile_parameters(
    parameters: DiffusionParameters,
    catalogue: Catalogue,
    limits: Limits,
    *,
    default_checkpoint: str | None,
    skip: frozenset[int] = frozenset(),
) -> Compiled:
    """The node graph: one sampler per image with seed + i; images in `skip` are left out.

    Raises ParametersInvalid where the checkpoint is not known or a limit is passed. The seed must
    have been drawn.
    """
    if parameters.seed < 0:
        raise ValueError("draw the seed first: see with_seed")
    _require_limits(parameters, limits)
    checkpoint = _checkpoint(parameters.checkpoint or default_checkpoint, catalogue)
    seeds = tuple((parameters.seed + i) % _SEEDS for i in range(parameters.batch_size))
    prompt = _shared_nodes(parameters, checkpoint)
    images = [index for index in range(parameters.batch_size) if index not in skip]
    for index in images:
        prompt |= _image_nodes(parameters, index, seeds[index])
    return Compiled(prompt, {f"save-{index}": index for index in images}, seeds)


def _require_limits(parameters: DiffusionParameters, limits: Limits) -> None:
    sides = (limits.min_side, limits.max_side)
    ranges = {
        "width": (parameters.width, *sides),
        "height": (parameters.height, *sides),
        "steps": (parameters.steps, 1, limits.max_steps),
        "batch_size": (parameters.batch_size, 1, limits.max_batch),
    }
    errors = [
        FieldError("out_of_range", f"must be {least} to {most}", name)
        for name, (value, least, most) in ranges.items()
        if not least <= value <= most
    ]
    pixels = parameters.width * parameters.height * parameters.batch_size
    if pixels > limits.max_pixels:
        message = f"width x height x batch_size is {pixels}, at most {limits.max_pixels}"
        errors.append(FieldError("too_many_pixels", message, "width"))
    if errors:
        raise ParametersInvalid(tuple(errors))


def _checkpoint(asked: str | None, catalogue: Catalogue) -> str:
    """The listed name of one given with or without extension, or with WebUI's " [hash]"."""
    known = catalogue.models.names(CHECKPOINTS)
    if asked is None:
        message = "is required: this endpoint has no checkpoint of its own"
        raise ParametersInvalid((FieldError("missing", message, "sd_model_checkpoint"),))
    plain = asked.rpartition(" [")[0] if asked.endswith("]") and " [" in asked else asked
    for name in (asked, plain, f"{plain}.safetensors"):
        if name in known:
            return name
    shown = ", ".join(known[:_SHOWN_NAMES]) or "none"
    message = f"is not known; there are: {shown}"
    raise ParametersInvalid((FieldError("value_not_in_list", message, "sd_model_checkpoint"),))


def _shared_nodes(parameters: DiffusionParameters, checkpoint: str) -> dict[str, Any]:
    nodes = {"checkpoint": _node("CheckpointLoaderSimple", ckpt_name=checkpoint)}
    clip: list[Any] = ["checkpoint", 1]
    if parameters.clip_skip > 1:
        nodes["clip"] = _node(
            "CLIPSetLastLayer", clip=clip, stop_at_clip_layer=-parameters.clip_skip
        )
        clip = ["clip", 0]
    nodes["positive"] = _node("CLIPTextEncode", text=parameters.prompt, clip=clip)
    nodes["negative"] = _node("CLIPTextEncode", text=parameters.negative_prompt, clip=clip)
    nodes["latent"] = _node(
        "EmptyLatentImage", width=parameters.width, height=parameters.height, batch_size=1
    )
    return nodes


def _image_nodes(parameters: DiffusionParameters, index: int, seed: int) -> dict[str, Any]:
    sampler, scheduler = names.resolve(parameters.sampler_name, parameters.scheduler)
    sample = _node(
        "KSampler",
        model=["checkpoint", 0],
        positive=["positive", 0],
        negative=["negative", 0],
        latent_image=["latent", 0],
        seed=seed,
        steps=parameters.steps,
        cfg=parameters.cfg_scale,
        sampler_name=sampler,
        scheduler=scheduler,
        denoise=1.0,
    )
    decode = _node("VAEDecode", samples=[f"sample-{index}", 0], vae=["checkpoint", 2])
    save = _node("SaveImage", images=[f"decode-{index}", 0], filename_prefix="darkroom")
    return {f"sample-{index}": sample, f"decode-{index}": decode, f"save-{index}": save}


def _node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}
