"""Writes the trained models as one checkpoint that the engine loads."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.families.family_lookup import transformer_family
from engine.diffusion.loading import layout
from engine.families.family import UNET, Family
from training.flow import vae
from training.flow.text_encoder import LAYERS
from training.flow.tokens import tokenizer
from training.flow.transformer import Denoiser
from training.shapes.export import CHECKPOINT as SHAPES
from training.single_file import State, packed, write_json

CHECKPOINT = SHAPES.with_name("darkroom-z-shapes.safetensors")
_VAE = "vae."
_TEXT_ENCODER = "text_encoders.qwen3_4b.transformer.model."


def export(autoencoder: AutoencoderKL, denoiser: Denoiser, out: Path = CHECKPOINT) -> None:
    """Write the checkpoint `out`, with the VAE's sizes and the tokenizer beside it."""
    network, decoder = denoiser.transformer.state_dict(), autoencoder.state_dict()
    parts: dict[str, State] = {
        UNET: packed(network, transformer_family(Family.Z_IMAGE).key_map(list(network), {})),
        _VAE: packed(decoder, layout.vae(decoder, vae.CONFIG)),
        _TEXT_ENCODER: _with_last_layer(denoiser.text.state_dict()),
    }
    half = {
        f"{prefix}{name}": each.to(torch.float16).contiguous()
        for prefix, state in parts.items()
        for name, each in state.items()
    }
    folder = out.with_suffix(".config")
    write_json(folder / "config.json", {"_class_name": "AutoencoderKL", **vae.CONFIG})
    tokenizer().save(str(folder / "tokenizer.json"))
    # The file is renamed when it is complete, so that no reader reads an incomplete file.
    unfinished = out.with_suffix(".unfinished")
    save_file(half, unfinished, metadata={"format": "pt"})
    unfinished.replace(out)


def _with_last_layer(state: State) -> dict[str, Tensor]:
    """Return the encoder with an unused last layer and a norm after it, as in published files."""
    last = f"layers.{LAYERS - 1}."
    unread = {
        name.replace(last, f"layers.{LAYERS}."): torch.zeros_like(each)
        for name, each in state.items()
        if name.startswith(last)
    }
    width = state["embed_tokens.weight"].shape[1]
    return {**state, **unread, "norm.weight": torch.ones(width)}
