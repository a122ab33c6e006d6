"""Nodes that limit, weight and combine conditionings, and nodes that add pictures to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import ConditioningShape, Estimate, ImageShape, bytes_of, saturated
from engine.graph.declarations import Boolean, Choice, Float, Input, Int, Link, node
from engine.nodes.latents import encode_estimate
from engine.nodes.sides import CELL, MAX_SIDE

if TYPE_CHECKING:
    from engine.batcher import Work
    from engine.diffusion.conditioning.condition import ConcatImage, Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.diffusion.images.vae import Vae

_CONDITIONING = Link("CONDITIONING")
_STRENGTH = Float(
    1.0, min=0.0, max=10.0, tooltip="The weight of this conditioning relative to the others."
)


def _copied(conditioning: ConditioningShape, copied_bytes: int, *, scratch: int = 0) -> Estimate:
    """Return the estimate for a conditioning of which `copied_bytes` bytes are copied."""
    megapixels = saturated(copied_bytes) / ImageShape.pixel_bytes / 1e6
    return Estimate((conditioning,), work=megapixels * work.COPY, scratch_bytes=scratch)


def _combined_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first: ConditioningShape = inputs["conditioning_1"]
    return Estimate((first.combined(inputs["conditioning_2"]),))


def _concat_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, appended = inputs["conditioning_to"], inputs["conditioning_from"]
    longer = replace(first, tokens=saturated(first.tokens + appended.tokens))
    return _copied(longer, longer.size_bytes)


def _average_estimate(inputs: Mapping[str, Any]) -> Estimate:
    averaged: ConditioningShape = inputs["conditioning_to"]
    return _copied(averaged, averaged.size_bytes, scratch=averaged.size_bytes)


def _same_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["conditioning"],))


def _zeroed_estimate(inputs: Mapping[str, Any]) -> Estimate:
    zeroed: ConditioningShape = inputs["conditioning"]
    return _copied(zeroed, zeroed.size_bytes)


def _area_estimate(inputs: Mapping[str, Any]) -> Estimate:
    limited: ConditioningShape = inputs["conditioning"]
    return Estimate((replace(limited, areas=limited.rows),))


def _mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    masked: ConditioningShape = inputs["conditioning"]
    areas = 0 if inputs["set_cond_area"] == "default" else masked.rows
    held = saturated(masked.texts * inputs["mask"].size_bytes)
    return _copied(replace(masked, areas=max(areas, masked.areas)).holding(held), held)


def _pictures_estimate(inputs: Mapping[str, Any], *, encodings: int) -> Estimate:
    encoded = encode_estimate(inputs)
    (latent,) = encoded.shapes
    texts: list[ConditioningShape] = [inputs["positive"], inputs["negative"]]
    positive, negative = (each.holding(bytes_of(latent)) for each in texts)
    return replace(encoded, shapes=(positive, negative, latent), work=encodings * encoded.work)


def _pixels(default: int, least: int) -> Int:
    return Int(default, min=least, max=MAX_SIDE, step=8, tooltip="The length in pixels.")


def _fraction(default: float, step: float = 0.01) -> Float:
    return Float(default, min=0.0, max=1.0, step=step)


@node(
    "ConditioningCombine",
    inputs={"conditioning_1": _CONDITIONING, "conditioning_2": _CONDITIONING},
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Combine)",
    estimate=_combined_estimate,
)
def conditioning_combine(
    context: Context, conditioning_1: Conditioning, conditioning_2: Conditioning
) -> tuple[Conditioning]:
    """Applies both conditionings: the model's estimates with each of them are averaged."""
    return (conditioning_1 + conditioning_2,)


@node(
    "ConditioningConcat",
    inputs={"conditioning_to": _CONDITIONING, "conditioning_from": _CONDITIONING},
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Concat)",
    estimate=_concat_estimate,
)
def conditioning_concat(
    context: Context, conditioning_to: Conditioning, conditioning_from: Conditioning
) -> tuple[Conditioning]:
    """Appends a text to another one. If there are several conditionings, the first is appended."""
    return (tuple(each.concatenated(conditioning_from[0]) for each in conditioning_to),)


@node(
    "ConditioningAverage",
    inputs={
        "conditioning_to": _CONDITIONING,
        "conditioning_from": _CONDITIONING,
        "conditioning_to_strength": Float(
            1.0, min=0.0, max=1.0, tooltip="The weight of the first text."
        ),
    },
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Average)",
    estimate=_average_estimate,
)
def conditioning_average(
    context: Context,
    conditioning_to: Conditioning,
    conditioning_from: Conditioning,
    conditioning_to_strength: float,
) -> tuple[Conditioning]:
    """Averages two texts token by token."""
    other, weight = conditioning_from[0], conditioning_to_strength
    return (tuple(each.averaged(other, weight) for each in conditioning_to),)


@node(
    "ConditioningZeroOut",
    inputs={"conditioning": _CONDITIONING},
    outputs=("CONDITIONING",),
    category="advanced/conditioning",
    display_name="Conditioning (Zero Out)",
    estimate=_zeroed_estimate,
)
def conditioning_zero_out(context: Context, conditioning: Conditioning) -> tuple[Conditioning]:
    """Sets a conditioning to zeros, which differs from the conditioning of an empty text."""
    return (tuple(each.zeroed_out() for each in conditioning),)


def _area_inputs(size: Input, place: Input) -> dict[str, Input]:
    return {
        "conditioning": _CONDITIONING,
        "width": size,
        "height": size,
        "x": place,
        "y": place,
        "strength": _STRENGTH,
    }


@node(
    "ConditioningSetArea",
    inputs=_area_inputs(_pixels(64, least=64), _pixels(0, least=0)),
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Set Area)",
    estimate=_area_estimate,
)
def conditioning_set_area(
    context: Context,
    *,
    conditioning: Conditioning,
    width: int,
    height: int,
    x: int,
    y: int,
    strength: float,
) -> tuple[Conditioning]:
    """Limits a conditioning to a rectangle of the image."""
    from engine.diffusion.conditioning.condition import Area

    area = Area(height // CELL, width // CELL, y // CELL, x // CELL)
    return (tuple(each.with_area(area, strength) for each in conditioning),)


@node(
    "ConditioningSetAreaPercentage",
    inputs=_area_inputs(_fraction(1.0), _fraction(0.0)),
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Set Area with Percentage)",
    estimate=_area_estimate,
)
def conditioning_set_area_percentage(
    context: Context,
    *,
    conditioning: Conditioning,
    width: float,
    height: float,
    x: float,
    y: float,
    strength: float,
) -> tuple[Conditioning]:
    """Limits a conditioning to a rectangle, in fractions of the image's width and height."""
    from engine.diffusion.conditioning.condition import AreaPercentage

    area = AreaPercentage(height, width, y, x)
    return (tuple(each.with_area(area, strength) for each in conditioning),)


@node(
    "ConditioningSetAreaStrength",
    inputs={"conditioning": _CONDITIONING, "strength": _STRENGTH},
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Set Area Strength)",
    estimate=_same_estimate,
)
def conditioning_set_area_strength(
    context: Context, conditioning: Conditioning, strength: float
) -> tuple[Conditioning]:
    """Sets the weight of a conditioning relative to others."""
    return (tuple(each.with_strength(strength) for each in conditioning),)


@node(
    "ConditioningSetMask",
    inputs={
        "conditioning": _CONDITIONING,
        "mask": Link("MASK"),
        "strength": _STRENGTH,
        "set_cond_area": Choice(
            ("default", "mask bounds"),
            tooltip="Whether the model gets the whole image, or only the bounding box of the mask.",
        ),
    },
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="Conditioning (Set Mask)",
    estimate=_mask_estimate,
)
def conditioning_set_mask(
    context: Context,
    *,
    conditioning: Conditioning,
    mask: Mask,
    strength: float,
    set_cond_area: str,
) -> tuple[Conditioning]:
    """Weights a conditioning by a mask."""
    bounds = set_cond_area != "default"
    return (
        tuple(each.with_mask(mask, strength, set_area_to_bounds=bounds) for each in conditioning),
    )


@node(
    "ConditioningSetTimestepRange",
    inputs={
        "conditioning": _CONDITIONING,
        "start": _fraction(0.0, step=0.001),
        "end": _fraction(1.0, step=0.001),
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning",
    display_name="Conditioning (Set Timestep Range)",
    estimate=_same_estimate,
)
def conditioning_set_timestep_range(
    context: Context, conditioning: Conditioning, start: float, end: float
) -> tuple[Conditioning]:
    """Limits a conditioning to a part of the steps."""
    return (tuple(each.with_percent_range(start, end) for each in conditioning),)


@node(
    "InpaintModelConditioning",
    inputs={
        "positive": _CONDITIONING,
        "negative": _CONDITIONING,
        "vae": Link("VAE"),
        "pixels": Link("IMAGE"),
        "mask": Link("MASK"),
        "noise_mask": Boolean(
            True, tooltip="Whether the latent also gets the mask, so that only this part changes."
        ),
    },
    outputs=("CONDITIONING", "CONDITIONING", "LATENT"),
    output_names=("positive", "negative", "latent"),
    category="conditioning/inpaint",
    estimate=partial(_pictures_estimate, encodings=2),
)
def inpaint_model_conditioning(
    context: Context,
    *,
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    pixels: Images,
    mask: Mask,
    noise_mask: bool,
) -> Work[tuple[Conditioning, Conditioning, Latent]]:
    """Adds a picture and a mask to both conditionings, for models that were made for inpainting."""
    latent, image = yield from context.encode_for_inpainting_model(vae, pixels, mask)
    if not noise_mask:
        latent = replace(latent, noise_mask=None)
    return _with_image(positive, image), _with_image(negative, image), latent


@node(
    "InstructPixToPixConditioning",
    inputs={
        "positive": _CONDITIONING,
        "negative": _CONDITIONING,
        "vae": Link("VAE"),
        "pixels": Link("IMAGE"),
    },
    outputs=("CONDITIONING", "CONDITIONING", "LATENT"),
    output_names=("positive", "negative", "latent"),
    category="conditioning/instructpix2pix",
    estimate=partial(_pictures_estimate, encodings=1),
)
def instruct_pix_to_pix_conditioning(
    context: Context,
    *,
    positive: Conditioning,
    negative: Conditioning,
    vae: Vae,
    pixels: Images,
) -> Work[tuple[Conditioning, Conditioning, Latent]]:
    """Adds a picture to both conditionings, for models that change a picture by an instruction.
    The latent is empty and has the size of the picture.
    """
    from engine.diffusion.conditioning.condition import ConcatImage

    latent = yield from context.encode_images(vae, pixels)
    image = ConcatImage(latent.samples)
    empty = replace(latent, samples=latent.samples.new_zeros(latent.samples.shape))
    return _with_image(positive, image), _with_image(negative, image), empty


def _with_image(conditioning: Conditioning, image: ConcatImage) -> Conditioning:
    return tuple(replace(each, concat_image=image) for each in conditioning)
