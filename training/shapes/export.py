"""Writes the trained models as one checkpoint that the engine loads."""

from __future__ import annotations

from pathlib import Path

from diffusers import AutoencoderKL

from training.shapes import text_encoder, unet, vae
from training.shapes.text_encoder import with_all_tokens
from training.shapes.unet import Denoiser
from training.single_file import SCHEDULER, Component, write_single_file

CHECKPOINT = Path(__file__).parents[2] / "models" / "checkpoints" / "darkroom-shapes.safetensors"


def export(autoencoder: AutoencoderKL, denoiser: Denoiser, out: Path = CHECKPOINT) -> None:
    """Write the checkpoint `out`, and the configurations beside it."""
    write_single_file(
        out,
        unet=Component(unet.CONFIG, denoiser.unet.state_dict()),
        vae=Component(vae.CONFIG, autoencoder.state_dict()),
        text_encoders=[Component(text_encoder.CONFIG, with_all_tokens(denoiser.text))],
        scheduler=SCHEDULER,
    )
