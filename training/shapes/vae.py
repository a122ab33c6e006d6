"""Trains the autoencoder: 64x64 pictures to 8x8 latents with 4 channels, and back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from torch.nn import functional

from training.shapes.drawing import draw
from training.shapes.scenes import Scenes, draw_scenes
from training.shapes.trainer import Trainer

SCALING_FACTOR = 0.18215
"""The factor of Stable Diffusion. The weights are scaled so that the factor fits this model."""
CONFIG: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    # With the usual 32 groups, each of 32 channels would be normalised alone. Different plain
    # colours would then have equal encodings.
    "norm_num_groups": 8,
    "block_out_channels": [32, 32, 64, 96],
    "layers_per_block": 1,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "sample_size": 64,
    "scaling_factor": SCALING_FACTOR,
}
_BATCH_SIZE = 8
_LEARNING_RATE = 1.5e-3
_SQUARED_ERROR_WEIGHT = 2.0
_KL_WEIGHT = 2e-6
_EDGE_WEIGHT = 2.0
"""The weight that is added to the weight 1 of the few pixels near an edge."""
_HINT_STEPS = 1000
_FIRST_LOG_VARIANCE = -8.0
_TEST_PICTURES = 64
_SCALING_PICTURES = 512
_ENCODING_BATCH_SIZE = 64
_NAME = "vae"


def train_vae(folder: Path, *, steps: int, seed: int) -> AutoencoderKL:
    """Return the trained autoencoder. Its latents times SCALING_FACTOR have unit variance."""
    torch.manual_seed(seed)
    vae = AutoencoderKL(**CONFIG)
    with torch.no_grad():
        vae.quant_conv.bias[CONFIG["latent_channels"] :] = _FIRST_LOG_VARIANCE
    test = pictures(draw_scenes(np.random.default_rng((seed, 1)), _TEST_PICTURES), seed)

    def loss_of(step: int) -> Tensor:
        rng = np.random.default_rng((seed, 2, step))
        return _loss(vae, to_tensor(draw(draw_scenes(rng, _BATCH_SIZE, textured=0.1), rng)), step)

    def scores_of() -> dict[str, float]:
        return {"psnr_db": psnr(vae.decode(vae.encode(test).latent_dist.mode()).sample, test)}

    trainer = Trainer(_NAME, folder, vae, steps=steps, learning_rates={"": _LEARNING_RATE})
    trainer.run(loss_of, scores_of)
    scenes = draw_scenes(np.random.default_rng((seed, 3)), _SCALING_PICTURES)
    scale_latents(vae, latents_of(vae, scenes, seed), std=1 / SCALING_FACTOR)
    return vae.eval().requires_grad_(False)


def pictures(scenes: Scenes, seed: int) -> Tensor:
    """Return the pictures of scenes, (n, 3, 64, 64) of -1..1."""
    return to_tensor(draw(scenes, np.random.default_rng((seed, 4))))


def to_tensor(drawn: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(drawn).movedim(-1, 1).contiguous() * 2 - 1


def latents_of(vae: AutoencoderKL, scenes: Scenes, seed: int) -> Tensor:
    """Return the mode of the encoding of each picture, (n, channels, 8, 8), not scaled."""
    found = []
    with torch.no_grad():
        for start in range(0, len(scenes), _ENCODING_BATCH_SIZE):
            part = scenes.subset(slice(start, start + _ENCODING_BATCH_SIZE))
            found.append(vae.encode(pictures(part, seed + start)).latent_dist.mode())
    return torch.cat(found)


def psnr(one: Tensor, other: Tensor) -> float:
    """Return the peak signal-to-noise ratio of pictures of -1..1, in dB."""
    error = functional.mse_loss(one.clamp(-1, 1) / 2, other / 2).item()
    return -10 * math.log10(error)


def _loss(vae: AutoencoderKL, batch: Tensor, step: int) -> Tensor:
    encoding = vae.encode(batch).latent_dist
    decoded = vae.decode(encoding.sample(torch.Generator().manual_seed(step))).sample
    error = decoded - batch
    errors = error.abs() + _SQUARED_ERROR_WEIGHT * error.square()
    loss = (pixel_weights(batch) * errors).mean() + _KL_WEIGHT * encoding.kl().mean()
    if step < _HINT_STEPS:
        loss = loss + (1 - step / _HINT_STEPS) * _hint_loss(encoding.mean, batch)
    return loss


def _hint_loss(latents: Tensor, batch: Tensor) -> Tensor:
    """Return the squared error of the first latent channels against the reduced picture.

    At the beginning of the training, this term makes the latents contain the colours.
    """
    small = functional.avg_pool2d(batch, batch.shape[-1] // latents.shape[-1])
    return functional.mse_loss(latents[:, : small.shape[1]], small)


def pixel_weights(batch: Tensor) -> Tensor:
    """Return the weights of pixels, (n, 1, h, w), with a mean of 1."""
    padded = functional.pad(batch, (1, 1, 1, 1), mode="replicate")
    highest = functional.max_pool2d(padded, 3, stride=1)
    lowest = -functional.max_pool2d(-padded, 3, stride=1)
    edge = ((highest - lowest).amax(dim=1, keepdim=True) > 0.05).to(batch.dtype)
    weights = 1 + _EDGE_WEIGHT * edge
    return weights / weights.mean()


def scale_latents(vae: AutoencoderKL, latents: Tensor, *, std: float, mean: float = 0.0) -> None:
    """Scale the weights so that each latent channel has that mean and that standard deviation.

    The convolution before the latents and the convolution after them are both changed, so the
    pictures stay the same.
    """
    channels = latents.shape[1]
    before = latents.mean(dim=(0, 2, 3))
    unit = latents.std(dim=(0, 2, 3)) / std
    into, out_of = vae.quant_conv, vae.post_quant_conv
    with torch.no_grad():
        into.weight[:channels] /= unit[:, None, None, None]
        into.bias[:channels] = (into.bias[:channels] - before) / unit + mean
        into.bias[channels:] -= 2 * unit.log()
        out_of.bias += (out_of.weight[:, :, 0, 0] * before).sum(dim=1)
        out_of.weight *= unit[:, None, None]
        out_of.bias -= out_of.weight[:, :, 0, 0].sum(dim=1) * mean
