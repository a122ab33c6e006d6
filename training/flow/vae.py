"""Trains the autoencoder: 64x64 pictures to 8x8 latents with 16 channels, and back.

The training begins with the weights of darkroom-shapes that have the same shape. A term of the loss
makes the first twelve channels similar to the reduced picture, because a transformer learns to
predict such channels more easily.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional

from engine.diffusion.families.transformer import FLUX_LATENT
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.families.table import Z_IMAGE
from engine.graph.models_folder import ModelsFolder
from training.shapes import vae as shapes_vae
from training.shapes.drawing import draw
from training.shapes.export import CHECKPOINT
from training.shapes.scenes import draw_scenes
from training.shapes.trainer import Trainer
from training.shapes.vae import latents_of, pictures, pixel_weights, psnr, scale_latents, to_tensor

CONFIG: dict[str, Any] = {
    **shapes_vae.CONFIG,
    "latent_channels": Z_IMAGE.latent_channels,
    "scaling_factor": FLUX_LATENT.scale,
    "shift_factor": FLUX_LATENT.shift,
}
_BATCH_SIZE = 8
_LEARNING_RATE = 1e-3
_SQUARED_ERROR_WEIGHT = 2.0
_KL_WEIGHT = 4e-6
_FIRST_LOG_VARIANCE = -6.0
_HINT_STEPS = 100
_LASTING_HINT = 0.1
_LATENT_SIDE = 8
_CELLS = 2
"""The number of cells along each side of a latent pixel. The first channels of the pixel are the
colours of its cells.
"""
_TEST_PICTURES = 64
_SCALING_PICTURES = 512
_NAME = "vae"


def train_vae(folder: Path, *, steps: int, seed: int, cpu_budget_s: float) -> AutoencoderKL:
    """Return the trained autoencoder.

    The channels of its latents, shifted and scaled by `FLUX_LATENT`, have a mean of 0 and a
    variance of 1.
    """
    torch.manual_seed(seed)
    vae = AutoencoderKL(**CONFIG)
    _copy_known_weights(vae)
    test = pictures(draw_scenes(np.random.default_rng((seed, 1)), _TEST_PICTURES), seed)

    def loss_of(step: int) -> Tensor:
        rng = np.random.default_rng((seed, 2, step))
        return _loss(vae, to_tensor(draw(draw_scenes(rng, _BATCH_SIZE, textured=0.1), rng)), step)

    def scores_of() -> dict[str, float]:
        return {"psnr_db": psnr(vae.decode(vae.encode(test).latent_dist.mode()).sample, test)}

    rates = {"": _LEARNING_RATE}
    trainer = Trainer(
        _NAME, folder, vae, steps=steps, learning_rates=rates, cpu_budget_s=cpu_budget_s
    )
    trainer.run(loss_of, scores_of)
    scenes = draw_scenes(np.random.default_rng((seed, 3)), _SCALING_PICTURES)
    latents = latents_of(vae, scenes, seed)
    scale_latents(vae, latents, std=1 / FLUX_LATENT.scale, mean=FLUX_LATENT.shift)
    return vae.eval().requires_grad_(False)


def _copy_known_weights(vae: AutoencoderKL) -> None:
    store = ModelStore(ModelsFolder(CHECKPOINT.parents[1]), torch.device("cpu"), 2**30)
    known = load_checkpoint(store, CHECKPOINT.name).vae.autoencoder.state_dict()
    own = vae.state_dict()
    same = {name: each for name, each in known.items() if each.shape == own[name].shape}
    vae.load_state_dict(own | same)
    with torch.no_grad():
        vae.quant_conv.bias[Z_IMAGE.latent_channels :] = _FIRST_LOG_VARIANCE


def _loss(vae: AutoencoderKL, batch: Tensor, step: int) -> Tensor:
    encoding = vae.encode(batch).latent_dist
    decoded = vae.decode(encoding.sample(torch.Generator().manual_seed(step))).sample
    error = decoded - batch
    errors = error.abs() + _SQUARED_ERROR_WEIGHT * error.square()
    loss = (pixel_weights(batch) * errors).mean() + _KL_WEIGHT * encoding.kl().mean()
    hint = max(_LASTING_HINT, 1 - step / _HINT_STEPS)
    return loss + hint * _hint_loss(encoding.mean, batch)


def _hint_loss(latents: Tensor, batch: Tensor) -> Tensor:
    """Return the squared error of the first channels against the colours of the cells."""
    small = functional.avg_pool2d(batch, batch.shape[-1] // (_LATENT_SIDE * _CELLS))
    cells = functional.pixel_unshuffle(small, _CELLS)
    return functional.mse_loss(latents[:, : cells.shape[1]], cells)
