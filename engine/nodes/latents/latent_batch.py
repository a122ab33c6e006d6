"""Nodes that repeat the latents of a batch or select some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.graph.cost import Estimate, LatentShape, saturated
from engine.graph.declarations import Int, Link, node
from engine.nodes.latents.latent import changed_latent

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent


def _repeat_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    amount: int = inputs["amount"]
    repeated = replace(
        latent,
        count=saturated(latent.count * amount),
        held_bytes=saturated(latent.held_bytes * amount),
    )
    return changed_latent(latent, repeated)


def _slice_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    return Estimate((latent.counted(min(latent.count, inputs["length"])),))


@node(
    "RepeatLatentBatch",
    inputs={"samples": Link("LATENT"), "amount": Int(1, min=1, max=64, limit="batch")},
    outputs=("LATENT",),
    category="latent/batch",
    display_name="Repeat Latent Batch",
    estimate=_repeat_estimate,
)
def repeat_latent_batch(context: Context, samples: Latent, amount: int) -> tuple[Latent]:
    """Repeats a batch; a sampler gives each repeat noise of its own."""
    return (context.latents.repeated(samples, amount),)


@node(
    "LatentFromBatch",
    inputs={
        "samples": Link("LATENT"),
        "batch_index": Int(0, min=0, max=63, tooltip="The first one to take."),
        "length": Int(1, min=1, max=64, tooltip="How many."),
    },
    outputs=("LATENT",),
    category="latent/batch",
    display_name="Latent From Batch",
    estimate=_slice_estimate,
)
def latent_from_batch(
    context: Context, samples: Latent, batch_index: int, length: int
) -> tuple[Latent]:
    """Takes some latents of a batch; a sampler gives them the noise they had in it."""
    return (context.latents.batch_slice(samples, batch_index, length),)
