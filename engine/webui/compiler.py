"""Compiles a diffusion request to a prompt: a node graph in ComfyUI's API format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import FieldError, ParametersInvalid
from engine.graph import names
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.webui.graph_writer import Writer
from engine.webui.parameters import DiffusionParameters
from engine.webui.passes import Pass, first_pass, second_pass, with_refiner
from engine.webui.upscalers import upscaler_of


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled request. `first_index` has the index of the image that each output node makes."""

    prompt: dict[str, Any]
    first_index: dict[str, int]
    seeds: tuple[int, ...]
    """The seed of every image of the request; those of skipped images are included."""
    passes: tuple[Pass, ...]
    """The first pass and, with the hires fix, the second."""


def compile_parameters(
    parameters: DiffusionParameters,
    catalogue: Catalogue,
    limits: Limits,
    *,
    default_checkpoint: str | None,
    skip: frozenset[int] = frozenset(),
) -> Compiled:
    """Compile a request. Image `i` has its own sampler and seeds; images in `skip` have none.

    Raises ParametersInvalid if a model is unknown, a text prompt cannot be parsed or a limit is
    exceeded. A negative seed must have been replaced before, see `with_seed`.
    """
    if parameters.seed < 0:
        raise ValueError("draw the seed first: see with_seed")
    if parameters.styles:
        raise ValueError("apply the styles first")
    if parameters.compatibility == "comfyui":
        _require_neutral(parameters)
    _require_startable(parameters)
    passes = [first_pass(parameters, catalogue, default_checkpoint)]
    upscaler = None
    if parameters.enable_hr:
        passes.append(second_pass(parameters, passes[0], catalogue))
        upscaler = upscaler_of(parameters, catalogue)
    passes[-1] = with_refiner(passes[-1], parameters, catalogue.models)
    if parameters.compatibility == "comfyui":
        _require_neutral_eta(parameters.eta, passes)
    _require_limits(parameters, passes, limits)
    seeds = tuple(map(parameters.seed_of, range(parameters.images)))
    images = [index for index in range(parameters.images) if index not in skip]
    writer = Writer(parameters)
    writer.write(passes, upscaler, images)
    first_index = {f"save-{index}": index for index in images}
    return Compiled(writer.nodes, first_index, seeds, tuple(passes))


def _require_neutral_eta(eta: float | None, passes: Sequence[Pass]) -> None:
    """Raise ParametersInvalid if `eta` is not the fixed eta of the samplers.

    It is 0 for DDIM and 1 for samplers that add noise. Other samplers ignore it.
    """
    for sampler in {each.sampler for each in passes}:
        neutral = {0.0} if sampler == "ddim" else {0.0, 1.0}
        if names.SAMPLER_OF[sampler].noise != "none":
            neutral = {1.0}
        if eta is not None and eta not in neutral:
            taken = " or ".join(f"{each:g}" for each in sorted(neutral))
            message = f"is supported as {taken} only with {sampler}"
            raise ParametersInvalid((FieldError("value_error", message, "eta"),))


def _require_neutral(parameters: DiffusionParameters) -> None:
    """Raise ParametersInvalid where a member is used that only the WebUI has."""
    message = "is supported in the sense of the WebUI only: see `compatibility`"
    found = [*parameters.own()]
    if parameters.starts_from_images:
        found += parameters.masked_in_webui_alone()
    if errors := tuple(FieldError("value_error", message, name) for name in found):
        raise ParametersInvalid(errors)


def _require_startable(parameters: DiffusionParameters) -> None:
    """Raise ParametersInvalid where members about images to start from do not go together."""
    given, batch = len(parameters.init_images), parameters.batch_size
    is_masked = parameters.mask is not None
    for field, message, is_wrong in (
        ("mask", "belongs to init_images, of which there are none", is_masked and not given),
        (
            "init_images",
            f"are {given}, of which each is for one image of a batch: batch_size is {batch}",
            given > max(1, batch),
        ),
        ("enable_hr", "is supported without init_images only", given and parameters.enable_hr),
        (
            "resize_mode",
            "3 is supported with a mask only if inpaint_full_res is true",
            is_masked and parameters.resizing == "latent upscale" and not parameters.is_only_masked,
        ),
    ):
        if is_wrong:
            raise ParametersInvalid((FieldError("value_error", message, field),))


def _require_limits(parameters: DiffusionParameters, passes: list[Pass], limits: Limits) -> None:
    sides = (limits.min_side, limits.max_side)
    steps = sum(each.steps for each in passes)
    ranges = {
        "width": (passes[0].width, *sides),
        "height": (passes[0].height, *sides),
        "steps": (steps, 1, limits.max_steps),
        "batch_size": (parameters.images, 1, limits.max_batch),
    }
    if len(passes) > 1:
        ranges |= {"hr_resize_x": (passes[1].width, *sides)}
        ranges |= {"hr_resize_y": (passes[1].height, *sides)}
    errors = [
        FieldError("out_of_range", f"must be {least} to {most}, in all it is {value}", name)
        for name, (value, least, most) in ranges.items()
        if not least <= value <= most
    ]
    pixels = sum(each.width * each.height for each in passes) * parameters.images
    if pixels > limits.max_pixels:
        message = f"width x height x images is {pixels}, at most {limits.max_pixels}"
        errors.append(FieldError("too_many_pixels", message, "width"))
    if errors:
        raise ParametersInvalid(tuple(errors))
