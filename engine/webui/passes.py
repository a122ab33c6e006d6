"""The passes of a diffusion request. The hires fix adds a second, larger pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from engine.errors import FieldError, ParametersInvalid
from engine.graph.models_folder import (
    CHECKPOINTS,
    EMBEDDINGS,
    VAES,
    ModelsFolder,
    pickled_refused,
)
from engine.webui.family_defaults import checkpoint_family, checkpoint_traits, default_side
from engine.webui.model_names import (
    Models,
    lora_of_any_name,
    lora_of_file,
    model_name,
    named_embeddings,
)
from engine.webui.parameters import DiffusionParameters, steps_taken
from engine.webui.prompt import (
    Lora,
    PromptInvalid,
    SplitPrompt,
    read_negative_prompt,
    read_prompt,
    split_networks,
)
from engine.webui.sampler_names import (
    ALIGN_YOUR_STEPS,
    ALIGN_YOUR_STEPS_XL,
    asked_scheduler,
    resolve,
)

_MULTIPLE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One run of a sampler for every image. Models have listed names. Sides are in pixels."""

    checkpoint: str
    vae: str | None
    loras: tuple[Lora, ...]
    notes: tuple[str, ...]
    """A note for each extra network of the prompt that was left out."""
    prompt: str
    negative_prompt: str
    sampler: str
    scheduler: str
    steps: int
    width: int
    height: int
    steps_before: int = 0
    taken_steps: int = 0
    """The number of steps at the end of the schedule to take; 0 means that `denoise` decides."""
    is_from_images: bool = False
    denoise: float = 1.0
    uncropped: tuple[int, int] | None = None
    """Width and height before the image is cropped."""
    refiner: str | None = None
    """The checkpoint for the last steps."""
    refiner_loras: tuple[Lora, ...] = ()


def with_refiner(pass_: Pass, parameters: DiffusionParameters, models: Models) -> Pass:
    """Return the pass with the refiner of the request. Raises ParametersInvalid.

    The LoRAs of the pass apply to the refiner only if the refiner is of the same family.
    """
    if not parameters.refiner_checkpoint:
        return pass_
    refiner = _named("refiner_checkpoint", models, CHECKPOINTS, parameters.refiner_checkpoint)
    if refiner == pass_.checkpoint:
        return pass_
    is_alike = checkpoint_family(models, refiner) == checkpoint_family(models, pass_.checkpoint)
    return replace(pass_, refiner=refiner, refiner_loras=pass_.loras if is_alike else ())


def first_pass(
    parameters: DiffusionParameters, models: Models, default_checkpoint: str | None
) -> Pass:
    """Return the first pass of a request. Raises ParametersInvalid."""
    split = _split(parameters, "prompt", models)
    checkpoint = _checkpoint(parameters.checkpoint or default_checkpoint, models)
    sampler, scheduler = resolve(
        parameters.sampler_name,
        parameters.scheduler,
        parameters.compatibility,
        from_noise=not parameters.starts_from_images,
    )
    _require_guidance_input(parameters, models, checkpoint)
    side = default_side(models, checkpoint)
    vae = parameters.override_settings.sd_vae
    pass_ = Pass(
        checkpoint=checkpoint,
        vae=_named("override_settings.sd_vae", models, VAES, vae) if vae else None,
        loras=split.loras,
        notes=split.notes,
        prompt=split.text,
        negative_prompt=parameters.negative_prompt,
        sampler=sampler,
        scheduler=_fitted(scheduler, models, checkpoint),
        steps=parameters.steps,
        width=_whole_cells(parameters.width or side),
        height=_whole_cells(parameters.height or side),
        **_start(parameters),
    )
    _check_prompts(pass_, "prompt", "negative_prompt")
    if parameters.compatibility == "webui" and isinstance(models, ModelsFolder):
        _require_readable_embeddings(pass_, "prompt", "negative_prompt", models)
    return pass_


def _start(parameters: DiffusionParameters) -> dict[str, Any]:
    """Return the fields of the first pass that depend on initial images."""
    if not parameters.starts_from_images:
        return {}
    strength = parameters.denoising_strength
    fixed = parameters.override_settings.img2img_fix_steps or parameters.compatibility == "comfyui"
    if fixed:
        return {"is_from_images": True, "denoise": strength}
    return {"is_from_images": True, "taken_steps": steps_taken(parameters.steps, strength)}


def second_pass(parameters: DiffusionParameters, first: Pass, models: Models) -> Pass:
    """Return the pass of the hires fix. Settings that are not given are copied from `first`.

    Raises ParametersInvalid.
    """
    split = SplitPrompt(first.prompt, first.loras)
    if parameters.hr_prompt:
        split = _split(parameters, "hr_prompt", models)
    checkpoint = first.checkpoint
    if asked := parameters.hr_checkpoint_name:
        checkpoint = _named("hr_checkpoint_name", models, CHECKPOINTS, asked)
    sampler, scheduler = _hires_sampler(parameters)
    width, height = _target_size(parameters, first)
    pass_ = Pass(
        checkpoint=checkpoint,
        vae=first.vae,
        loras=split.loras,
        notes=split.notes,
        prompt=split.text,
        negative_prompt=parameters.hr_negative_prompt or first.negative_prompt,
        sampler=sampler,
        scheduler=_fitted(scheduler, models, checkpoint),
        steps=parameters.hr_second_pass_steps or parameters.steps,
        width=width,
        height=height,
        steps_before=first.steps,
        denoise=parameters.denoising_strength,
        uncropped=_covering_size(parameters, first),
    )
    _check_prompts(pass_, "hr_prompt", "hr_negative_prompt")
    if parameters.compatibility == "webui" and isinstance(models, ModelsFolder):
        _require_readable_embeddings(pass_, "hr_prompt", "hr_negative_prompt", models)
    return pass_


def _hires_sampler(parameters: DiffusionParameters) -> tuple[str, str]:
    """Return the sampler and the scheduler of the second pass; the default is the first pass."""
    sampler, scheduler = parameters.sampler_name, parameters.scheduler
    if parameters.compatibility == "webui":
        scheduler = asked_scheduler(sampler, scheduler)
    return resolve(
        parameters.hr_sampler_name or sampler,
        parameters.hr_scheduler or scheduler,
        parameters.compatibility,
        from_noise=False,
    )


def _fitted(scheduler: str, models: Models, checkpoint: str) -> str:
    """Return the variant of the scheduler for the family of the checkpoint."""
    if scheduler != ALIGN_YOUR_STEPS:
        return scheduler
    traits = checkpoint_traits(models, checkpoint)
    return ALIGN_YOUR_STEPS_XL if traits and traits.aligned_steps == "SDXL" else scheduler


def _require_guidance_input(
    parameters: DiffusionParameters, models: Models, checkpoint: str
) -> None:
    """Raise ParametersInvalid for a guidance scale that the checkpoint cannot use."""
    traits = checkpoint_traits(models, checkpoint)
    if parameters.distilled_cfg_scale and traits and not traits.takes_guidance_input:
        message = f"is for Flux.1, but {checkpoint} is {traits.title}: leave it out"
        raise _field_invalid("value_error", message, "distilled_cfg_scale")


def _target_size(parameters: DiffusionParameters, first: Pass) -> tuple[int, int]:
    """Return width and height in pixels. A side of 0 keeps the proportions of the first pass."""
    width, height = first.width, first.height
    target_width, target_height = parameters.hr_resize_x, parameters.hr_resize_y
    if not target_width and not target_height:
        target_width, target_height = (
            int(width * parameters.hr_scale),
            int(height * parameters.hr_scale),
        )
    target_width, target_height = (
        target_width or target_height * width // height,
        target_height or target_width * height // width,
    )
    return _whole_cells(target_width), _whole_cells(target_height)


def _covering_size(parameters: DiffusionParameters, first: Pass) -> tuple[int, int] | None:
    """Return the size with the first pass's proportions that covers the target size.

    Returns None if nothing is cropped.
    """
    target_width, target_height = parameters.hr_resize_x, parameters.hr_resize_y
    if not (target_width and target_height) or parameters.compatibility == "comfyui":
        return None
    if first.width * target_height < target_width * first.height:
        target_height = target_width * first.height // first.width
    else:
        target_width = target_height * first.width // first.height
    return _whole_cells(target_width), _whole_cells(target_height)


def _whole_cells(side: int) -> int:
    return side - side % _MULTIPLE


def _checkpoint(asked: str | None, models: Models) -> str:
    if asked is None:
        message = "is required, because this endpoint has no checkpoint of its own"
        raise _field_invalid("missing", message, "sd_model_checkpoint")
    return _named("sd_model_checkpoint", models, CHECKPOINTS, asked)


def _named(field: str, models: Models, kind: str, asked: str) -> str:
    try:
        return model_name(models, kind, asked)
    except ValueError as error:
        raise _field_invalid("value_not_in_list", str(error), field) from None


def _split(parameters: DiffusionParameters, field: str, models: Models) -> SplitPrompt:
    is_webui = parameters.compatibility == "webui"
    find = partial(lora_of_file, models)
    if is_webui and isinstance(models, ModelsFolder):
        find = partial(lora_of_any_name, models)
    try:
        return split_networks(getattr(parameters, field), find, skips_unknown=is_webui)
    except PromptInvalid as error:
        raise _field_invalid("invalid_prompt", str(error), field) from error


def _check_prompts(pass_: Pass, field: str, negative_field: str) -> None:
    counted = {"steps": pass_.steps, "steps_before": pass_.steps_before}
    for name, text, read in (
        (field, pass_.prompt, read_prompt),
        (negative_field, pass_.negative_prompt, read_negative_prompt),
    ):
        try:
            read(text, **counted)
        except PromptInvalid as error:
            raise _field_invalid("invalid_prompt", str(error), name) from error


def _require_readable_embeddings(
    pass_: Pass, field: str, negative_field: str, models: ModelsFolder
) -> None:
    """Raise ParametersInvalid if a text names an embedding that exists only as a pickled file."""
    known = {PurePosixPath(name).stem for name in models.names(EMBEDDINGS)}
    pickled = {
        name: path for name, path in models.pickled(EMBEDDINGS).items() if path.stem not in known
    }
    for where, text in ((field, pass_.prompt), (negative_field, pass_.negative_prompt)):
        for path in named_embeddings([text], pickled).values():
            raise _field_invalid("value_error", str(pickled_refused(path)), where)


def _field_invalid(type: str, message: str, field: str) -> ParametersInvalid:
    return ParametersInvalid((FieldError(type, message, field),))
