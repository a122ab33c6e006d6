"""Nodes that make a latent of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, LatentShape, saturated
from engine.graph.declarations import Float, Link, node
from engine.nodes.latents.latent import changed_latent

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent

_PAIR = {"samples1": Link("LATENT"), "samples2": Link("LATENT")}
_COPIES = 8


def _of_two(first: LatentShape, second: LatentShape, made: LatentShape) -> Estimate:
    largest = max(first, second, made, key=lambda each: each.size_bytes)
    resampled = largest.megapixels * work.RESAMPLE
    return Estimate((made,), work=resampled, scratch_bytes=_COPIES * largest.size_bytes)


def _pair_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["samples1"], inputs["samples2"]
    return _of_two(first, second.counted(max(first.count, second.count)), first)


def _batch_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["samples1"], inputs["samples2"]
    return _of_two(first, second, first.counted(saturated(first.count + second.count)))


def _one_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_latent(inputs["samples"], inputs["samples"])


@node(
    "LatentAdd",
    inputs=_PAIR,
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_pair_estimate,
)
def latent_add(context: Context, samples1: Latent, samples2: Latent) -> tuple[Latent]:
    """Adds two latents."""
    from engine.diffusion.images import latent_arithmetic

    return (latent_arithmetic.added(samples1, samples2),)


@node(
    "LatentSubtract",
    inputs=_PAIR,
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_pair_estimate,
)
def latent_subtract(context: Context, samples1: Latent, samples2: Latent) -> tuple[Latent]:
    """Subtracts the second latent from the first."""
    from engine.diffusion.images import latent_arithmetic

    return (latent_arithmetic.added(samples1, samples2, -1.0),)


@node(
    "LatentMultiply",
    inputs={"samples": Link("LATENT"), "multiplier": Float(1.0, min=-10.0, max=10.0)},
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_one_estimate,
)
def latent_multiply(context: Context, samples: Latent, multiplier: float) -> tuple[Latent]:
    """Multiplies a latent by a number."""
    return (replace(samples, samples=samples.samples * multiplier),)


@node(
    "LatentInterpolate",
    inputs={**_PAIR, "ratio": Float(1.0, min=0.0, max=1.0, tooltip="The share of the first.")},
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_pair_estimate,
)
def latent_interpolate(
    context: Context, samples1: Latent, samples2: Latent, ratio: float
) -> tuple[Latent]:
    """Interpolates the directions and the lengths of two latents."""
    from engine.diffusion.images import latent_arithmetic

    return (latent_arithmetic.interpolated(samples1, samples2, ratio),)


@node(
    "LatentBlend",
    inputs={
        **_PAIR,
        "blend_factor": Float(0.5, min=0.0, max=1.0, tooltip="The share of the first."),
    },
    outputs=("LATENT",),
    category="_for_testing",
    display_name="Latent Blend",
    estimate=_pair_estimate,
)
def latent_blend(
    context: Context, samples1: Latent, samples2: Latent, blend_factor: float
) -> tuple[Latent]:
    """The mean of two latents."""
    from engine.diffusion.images import latent_arithmetic

    return (latent_arithmetic.blended(samples1, samples2, blend_factor),)


@node(
    "LatentBatch",
    inputs=_PAIR,
    outputs=("LATENT",),
    category="latent/batch",
    estimate=_batch_estimate,
)
def latent_batch(context: Context, samples1: Latent, samples2: Latent) -> tuple[Latent]:
    """Makes one batch of two; the second is brought to the size of the first."""
    return (context.latents.joined(samples1, samples2),)
