"""Nodes that make latents and turn them into images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.batcher import Work
from engine.declarations import Int, Link, node

if TYPE_CHECKING:
    from engine.diffusion.checkpoints import Vae
    from engine.diffusion.context import Context
    from engine.diffusion.latents import Images, Latent

_MAX_SIDE = 16384


@node(
    "EmptyLatentImage",
    inputs={
        "width": Int(
            512, min=16, max=_MAX_SIDE, step=8, multiple=8, limit="side", tooltip="In pixels."
        ),
        "height": Int(
            512, min=16, max=_MAX_SIDE, step=8, multiple=8, limit="side", tooltip="In pixels."
        ),
        "batch_size": Int(1, min=1, max=4096, limit="batch", tooltip="The number of images."),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Empty Latent Image",
    pixel_inputs=("width", "height", "batch_size"),
)
def empty_latent_image(context: Context, width: int, height: int, batch_size: int) -> tuple[Latent]:
    """Makes a batch of empty latents to be denoised."""
    return (context.empty_latent(width, height, batch_size),)


@node(
    "VAEDecode",
    inputs={"samples": Link("LATENT"), "vae": Link("VAE")},
    outputs=("IMAGE",),
    category="latent",
    display_name="VAE Decode",
)
def vae_decode(context: Context, samples: Latent, vae: Vae) -> Work[tuple[Images]]:
    """Decodes latents into images."""
    images = yield from context.decode(vae, samples)
    return (images,)
