"""Nodes that denoise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine import names
from engine.batcher import Work
from engine.declarations import Choice, Float, Int, Link, node

if TYPE_CHECKING:
    from engine.diffusion.checkpoints import Model
    from engine.diffusion.conditioning import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.latents import Latent

_SAMPLERS = Choice(tuple(row.name for row in names.SAMPLERS), resolve=names.sampler_alone)
_SCHEDULERS = Choice(tuple(row.name for row in names.SCHEDULERS), resolve=names.scheduler_alone)


@node(
    "KSampler",
    inputs={
        "model": Link("MODEL", tooltip="The model that denoises the latent."),
        "seed": Int(
            0, min=0, max=2**64 - 1, tooltip="Starts the noise; the same seed makes the same image."
        ),
        "steps": Int(
            20, min=1, max=10_000, limit="steps", tooltip="The number of denoising steps."
        ),
        "cfg": Float(
            8.0, min=0.0, max=100.0, step=0.1, tooltip="How closely the text is followed."
        ),
        "sampler_name": _SAMPLERS,
        "scheduler": _SCHEDULERS,
        "positive": Link("CONDITIONING", tooltip="What the image should show."),
        "negative": Link("CONDITIONING", tooltip="What it should not show."),
        "latent_image": Link("LATENT", tooltip="The latent to denoise."),
        "denoise": Float(1.0, min=0.0, max=1.0, tooltip="Below 1 keeps some of the given latent."),
    },
    outputs=("LATENT",),
    category="sampling",
    display_name="KSampler",
    steps_input="steps",
)
def k_sampler(
    context: Context,
    *,
    model: Model,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Conditioning,
    negative: Conditioning,
    latent_image: Latent,
    denoise: float,
) -> Work[tuple[Latent]]:
    """Denoises a latent, guided by the positive and the negative conditioning."""
    sigmas = context.sigmas(model, scheduler, steps, denoise, sampler=sampler_name)
    latent = yield from context.sample(
        model,
        latent_image,
        sampler=sampler_name,
        sigmas=sigmas,
        steps=steps,
        seed=seed,
        positive=positive,
        negative=negative,
        cfg=cfg,
    )
    return (latent,)
