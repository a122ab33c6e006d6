"""Trains the UNet together with its text encoder.

Latent diffusion: Rombach et al. 2022 (arXiv:2112.10752). Classifier-free guidance: Ho and Salimans
2022 (arXiv:2207.12598). Min-SNR loss weights: Hang et al. 2023 (arXiv:2303.09556).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextModel

from training.shapes import vocabulary
from training.shapes.scenes import HELD_OUT, Scenes, draw_scenes
from training.shapes.text_encoder import captions_of, encode
from training.shapes.trainer import Trainer
from training.shapes.vae import SCALING_FACTOR, latents_of
from training.single_file import SCHEDULER

CONFIG: dict[str, Any] = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [96, 128],
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 64,
    "attention_head_dim": 8,
}
_BATCH_SIZE = 32
_LEARNING_RATE = 1e-3
_TEXT_LEARNING_RATE = 4e-4
_DROPPED_PROMPTS = 0.1
_CLIP_SKIPS = 0.1
"""The share of captions that are encoded by the states before the last layer (clip_skip 2)."""
_MIN_SNR_GAMMA = 5.0
_TEST_SCENES = 128
_NAME = "unet"


class Denoiser(nn.Module):
    """The UNet and the text encoder, which are trained together."""

    def __init__(self, encoder: CLIPTextModel) -> None:
        super().__init__()
        self.text = encoder
        self.unet = UNet2DConditionModel(**CONFIG)


@dataclass(frozen=True, slots=True)
class _Examples:
    scenes: Scenes
    latents: Tensor
    """(n, 4, 8, 8) with unit variance."""

    def __len__(self) -> int:
        return len(self.scenes)


def train_unet(
    folder: Path, vae: AutoencoderKL, encoder: CLIPTextModel, *, steps: int, scenes: int, seed: int
) -> Denoiser:
    """Return the UNet and the text encoder, trained on the pictures of `scenes` scenes."""
    torch.manual_seed(seed)
    denoiser = Denoiser(encoder)
    examples = _examples(folder / "latents.pt", vae, n=scenes, seed=seed)
    rng = np.random.default_rng((seed, 21))
    drawn = draw_scenes(rng, _TEST_SCENES, allowed=HELD_OUT, textured=0)
    test = _Examples(drawn, latents_of(vae, drawn, seed) * SCALING_FACTOR)
    scheduler = DDPMScheduler(**SCHEDULER)

    def loss_of(step: int) -> Tensor:
        chosen = np.random.default_rng((seed, 22, step)).integers(len(examples), size=_BATCH_SIZE)
        batch = _Examples(examples.scenes.subset(chosen), examples.latents[chosen])
        return _loss(denoiser, scheduler, batch, f"{seed} {step}")

    def scores_of() -> dict[str, float]:
        return {"held_out_loss": _loss(denoiser, scheduler, test, f"{seed} test").item()}

    rates = {"unet": _LEARNING_RATE, "text": _TEXT_LEARNING_RATE}
    trainer = Trainer(_NAME, folder, denoiser, steps=steps, learning_rates=rates)
    trainer.run(loss_of, scores_of)
    return denoiser


def _examples(path: Path, vae: AutoencoderKL, *, n: int, seed: int) -> _Examples:
    """Return scenes with their latents, which are encoded once and then kept in `path`."""
    drawn = draw_scenes(np.random.default_rng((seed, 23)), n)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(latents_of(vae, drawn, seed) * SCALING_FACTOR, path)
    return _Examples(drawn, torch.load(path, weights_only=True))


def _loss(denoiser: Denoiser, scheduler: DDPMScheduler, batch: _Examples, seed: str) -> Tensor:
    rng = Random(seed)
    generator = torch.Generator().manual_seed(rng.getrandbits(62))
    context = _context(denoiser.text, batch.scenes, rng)
    # Evenly spaced timesteps make the loss less noisy than independent draws.
    even = (torch.arange(len(batch)) + torch.rand(len(batch), generator=generator)) / len(batch)
    times = (even * len(scheduler.betas)).long()
    noise = torch.randn(batch.latents.shape, generator=generator)
    noisy = scheduler.add_noise(batch.latents, noise, times)
    predicted = denoiser.unet(noisy, times, context, return_dict=False)[0]
    alphas = scheduler.alphas_cumprod[times]
    snr = alphas / (1 - alphas)
    weights = snr.clamp(max=_MIN_SNR_GAMMA) / snr
    return (weights * (predicted - noise).square().mean(dim=(1, 2, 3))).mean()


def _context(encoder: CLIPTextModel, scenes: Scenes, rng: Random) -> Tensor:
    """Return encoded captions (n, 77, width). Some are empty, and some have clip_skip 2."""
    rows = captions_of(scenes, rng)
    empty = vocabulary.trained_index_of_token()[vocabulary.tokens_of([""])]
    dropped = torch.tensor([rng.random() < _DROPPED_PROMPTS for _ in range(len(scenes))])
    rows = torch.where(dropped[:, None], empty, rows)
    last, earlier = encode(encoder, rows)
    early = torch.tensor([rng.random() < _CLIP_SKIPS for _ in range(len(scenes))])
    return torch.where(early[:, None, None], earlier, last)
