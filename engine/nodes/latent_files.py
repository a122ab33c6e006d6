"""Nodes that save latents to files and load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.graph.declarations import InputFile, Link, String, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.reports import SavedLatent


@node(
    "SaveLatent",
    inputs={
        "samples": Link("LATENT"),
        "filename_prefix": String(
            "latents/ComfyUI", tooltip="Accepted and not used: files are named by their job."
        ),
    },
    category="_for_testing",
    is_output=True,
)
def save_latent(context: Context, samples: Latent, filename_prefix: str) -> list[SavedLatent]:
    """Makes a batch of latents a result of the job, as one file."""
    return [context.saved(samples)]


@node(
    "LoadLatent",
    inputs={"latent": InputFile(kind="latent", tooltip="An uploaded latent.")},
    outputs=("LATENT",),
    category="_for_testing",
)
def load_latent(context: Context, latent: str) -> tuple[Latent]:
    """Loads a latent that was saved before."""
    return (context.latent_file(latent),)
