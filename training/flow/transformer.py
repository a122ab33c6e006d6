"""Trains the transformer together with its text encoder.

Rectified flow: Liu et al. 2022 (arXiv:2209.03003). Times from a logit-normal distribution: Esser et
al. 2024 (arXiv:2403.03206), section 3.1. Classifier-free guidance: Ho and Salimans 2022
(arXiv:2207.12598).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, ZImageTransformer2DModel
from torch import Tensor, nn
from transformers import Qwen3Model

from engine.diffusion.families.transformer import FLUX_LATENT
from engine.families.table import Z_IMAGE
from training.flow import text_encoder
from training.flow.text_encoder import encode
from training.flow.tokens import captions_of, ids_of
from training.shapes.scenes import HELD_OUT, Scenes, draw_scenes
from training.shapes.trainer import Trainer
from training.shapes.vae import latents_of

CONFIG: dict[str, Any] = {
    "in_channels": Z_IMAGE.latent_channels,
    "dim": 128,
    "n_layers": 5,
    "n_refiner_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 4,
    "cap_feat_dim": text_encoder.CONFIG["hidden_size"],
    "axes_dims": [8, 12, 12],
    "axes_lens": [1024, 64, 64],
}
_BATCH_SIZE = 32
_LEARNING_RATE = 1e-3
_TEXT_LEARNING_RATE = 4e-4
_DROPPED_PROMPTS = 0.1
_LOGIT_MEAN, _LOGIT_DEVIATION = 0.5, 1.2
"""Parameters of the distribution of noise levels. More than half of the levels are above 0.5, where
the network places the shapes.
"""
_TEST_SCENES = 128
_NAME = "transformer"


class Denoiser(nn.Module):
    """The transformer and the text encoder, which are trained together."""

    def __init__(self, encoder: Qwen3Model) -> None:
        super().__init__()
        self.text = encoder
        self.transformer = ZImageTransformer2DModel(**CONFIG)
        # The first outputs are zeros, which is the mean of the targets.
        for weight in self.transformer.all_final_layer["2-1"].linear.parameters():
            nn.init.zeros_(weight)


@dataclass(frozen=True, slots=True)
class _Examples:
    scenes: Scenes
    latents: Tensor
    """(n, 16, 8, 8) with unit variance."""

    def __len__(self) -> int:
        return len(self.scenes)


def train_transformer(
    folder: Path,
    vae: AutoencoderKL,
    encoder: Qwen3Model,
    *,
    steps: int,
    scenes: int,
    seed: int,
    cpu_budget_s: float,
) -> Denoiser:
    """Return the transformer and the text encoder, trained on the pictures of `scenes` scenes."""
    torch.manual_seed(seed)
    denoiser = Denoiser(encoder)
    examples = _examples(folder / "latents.pt", vae, n=scenes, seed=seed)
    rng = np.random.default_rng((seed, 21))
    drawn = draw_scenes(rng, _TEST_SCENES, allowed=HELD_OUT, textured=0)
    test = _Examples(drawn, _scaled_latents(vae, drawn, seed))

    def loss_of(step: int) -> Tensor:
        chosen = np.random.default_rng((seed, 22, step)).integers(len(examples), size=_BATCH_SIZE)
        batch = _Examples(examples.scenes.subset(chosen), examples.latents[chosen])
        return _loss(denoiser, batch, f"{seed} {step}")

    def scores_of() -> dict[str, float]:
        return {"held_out_loss": _loss(denoiser, test, f"{seed} test").item()}

    rates = {"transformer": _LEARNING_RATE, "text": _TEXT_LEARNING_RATE}
    trainer = Trainer(
        _NAME, folder, denoiser, steps=steps, learning_rates=rates, cpu_budget_s=cpu_budget_s
    )
    trainer.run(loss_of, scores_of)
    return denoiser


def _examples(path: Path, vae: AutoencoderKL, *, n: int, seed: int) -> _Examples:
    """Return scenes with their latents, which are encoded once and then kept in `path`."""
    drawn = draw_scenes(np.random.default_rng((seed, 23)), n)
    if not path.exists():
        torch.save(_scaled_latents(vae, drawn, seed), path)
    return _Examples(drawn, torch.load(path, weights_only=True))


def _scaled_latents(vae: AutoencoderKL, scenes: Scenes, seed: int) -> Tensor:
    return (latents_of(vae, scenes, seed) - FLUX_LATENT.shift) * FLUX_LATENT.scale


def _loss(denoiser: Denoiser, batch: _Examples, seed: str) -> Tensor:
    rng = Random(seed)
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    sigmas = _sigmas(len(batch), generator)
    share = sigmas[:, None, None, None]
    noise = torch.randn(batch.latents.shape, generator=generator)
    noisy = (1 - share) * batch.latents + share * noise
    # If the processor supports bfloat16, oneDNN multiplies these matrices several times as fast.
    with torch.autocast("cpu", torch.bfloat16):
        texts = encode(denoiser.text, _prompts(batch.scenes, rng))
        found = denoiser.transformer(list(noisy[:, :, None]), 1 - sigmas, texts, return_dict=False)
    # The network's time and prediction go from noise to picture.
    predicted = torch.stack(list(found[0]))[:, :, 0].float()
    return (predicted - (batch.latents - noise)).square().mean()


def _sigmas(n: int, generator: torch.Generator) -> Tensor:
    """Return (n,) shares of noise. Evenly spaced quantiles make the loss less noisy than draws."""
    even = (torch.arange(n) + torch.rand(n, generator=generator)) / n
    normal = torch.special.ndtri(even.clamp(1e-4, 1 - 1e-4))
    return torch.sigmoid(_LOGIT_MEAN + _LOGIT_DEVIATION * normal)


def _prompts(scenes: Scenes, rng: Random) -> Sequence[Sequence[int]]:
    (empty,) = ids_of([""])
    return [empty if rng.random() < _DROPPED_PROMPTS else row for row in captions_of(scenes, rng)]
