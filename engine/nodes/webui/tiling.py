"""The node for images whose opposite edges fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.graph.declarations import Link, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model


@node(
    "WebUITiling",
    inputs={"model": Link("MODEL"), "vae": Link("VAE")},
    outputs=("MODEL", "VAE"),
    category="darkroom",
    display_name="WebUI Tiling",
)
def webui_tiling(context: Context, model: Model, vae: Vae) -> tuple[Model, Vae]:
    """Makes images whose opposite edges fit together, so that they can be laid side by side."""
    from engine.diffusion.seamless import seamless

    tiled = replace(model, unet=seamless(model.unet))
    return tiled, replace(vae, autoencoder=seamless(vae.autoencoder))
