"""The trained models as one checkpoint, as the engine loads it."""

from __future__ import annotations

from pathlib import Path

from diffusers import AutoencoderKL

from training.shapes import text_encoder, unet, vae
from training.shapes.text_encoder import with_all_tokens
from training.shapes.unet import Painter
from training.single_file import SCHEDULER, Component, write_single_file

CHECKPOINT = Path(__file__).parents[2] / "models" / "checkpoints" / "darkroom-shapes.safetensors"


def export(autoencoder: AutoencoderKL, painter: Painter, out: Path = CHECKPOINT) -> None:
    """Write `out` and the configurations beside it."""
    write_single_file(
        out,
        unet=Component(unet.CONFIG, painter.unet.state_dict()),
        vae=Component(vae.CONFIG, autoencoder.state_dict()),
        text_encoders=[Component(text_encoder.CONFIG, with_all_tokens(painter.text))],
        scheduler=SCHEDULER,
    )
