"""Nodes that bring models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.batcher import Work
from engine.declarations import Choice, node
from engine.models_folder import CHECKPOINTS

if TYPE_CHECKING:
    from engine.diffusion.checkpoints import Clip, Model, Vae
    from engine.diffusion.context import Context


@node(
    "CheckpointLoaderSimple",
    inputs={"ckpt_name": Choice(folder=CHECKPOINTS, tooltip="The checkpoint (model) to load.")},
    outputs=("MODEL", "CLIP", "VAE"),
    category="loaders",
    display_name="Load Checkpoint",
)
def checkpoint_loader(context: Context, ckpt_name: str) -> Work[tuple[Model, Clip, Vae]]:
    """Loads the denoising model, the text encoder and the image decoder of a checkpoint."""
    checkpoint = yield from context.load(ckpt_name)
    return checkpoint.model, checkpoint.clip, checkpoint.vae
