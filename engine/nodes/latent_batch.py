"""Nodes that repeat the latents of a batch or select some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.graph.declarations import Int, Link, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent


@node(
    "RepeatLatentBatch",
    inputs={"samples": Link("LATENT"), "amount": Int(1, min=1, max=64, limit="batch")},
    outputs=("LATENT",),
    category="latent/batch",
    display_name="Repeat Latent Batch",
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
)
def latent_from_batch(
    context: Context, samples: Latent, batch_index: int, length: int
) -> tuple[Latent]:
    """Takes some latents of a batch; a sampler gives them the noise they had in it."""
    return (context.latents.batch_slice(samples, batch_index, length),)
