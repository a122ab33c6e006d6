"""One latent's way from noise to picture: a sampler, and the model that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine import names
from engine.batcher import Work
from engine.diffusion.conditioning import Conditioning
from engine.diffusion.denoise import Denoise
from engine.diffusion.inpainting import fitted_mask, inpainting
from engine.diffusion.latents import Latent, noise_like
from engine.diffusion.model import Model
from engine.diffusion.noise import shifted, start_noise
from engine.diffusion.noise_levels import NoiseLevels
from engine.diffusion.samplers import Sampling
from engine.diffusion.sampling import sampling_of


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    """What the model is asked for, and how far away from `negative` it goes."""

    positive: Conditioning
    negative: Conditioning
    cfg: float


@dataclass(frozen=True, slots=True)
class Noising:
    """Which noise there is: that of the start (unless it is in the latent), that of the steps."""

    seed: int
    at_start: bool = True
    step_seed_offset: int = 0


def trajectory(
    model: Model,
    latent: Latent,
    course: tuple[str, Tensor],
    *,
    guidance: Guidance,
    noising: Noising,
    on_level: Callable[[int], None],
) -> Work[tuple[Latent, Latent]]:
    """The latent at the end of a sampler's `course` along sigmas, and the last estimate of x0.

    `on_level` is told how many of the schedule's levels have been left behind.
    """
    sampler, sigmas = course
    if len(sigmas) < 2:
        return latent, latent
    sampling = _begun(model, latent, course, noising)
    estimate = latent.samples
    x, sigma = next(sampling)
    while True:
        x0: Tensor = yield Denoise(
            model, x, sigma, guidance.positive, guidance.negative, guidance.cfg
        )
        on_level(_levels_left(sigmas, sigma))
        if names.SAMPLER_OF[sampler].picks_levels or bool((sigmas[:-1] == sigma).any()):
            estimate = x0
        try:
            x, sigma = sampling.send(x0)
        except StopIteration as stop:
            end = replace(latent, samples=stop.value / model.latent_scale)
            return end, replace(latent, samples=estimate / model.latent_scale)


def _begun(model: Model, latent: Latent, course: tuple[str, Tensor], noising: Noising) -> Sampling:
    """The sampler on the noised latent, held to the latent's mask."""
    sampler, sigmas = course
    clean = latent.samples.to(model.device) * model.latent_scale
    noise = start_noise(latent, noising.seed) if noising.at_start else torch.zeros(clean.shape)
    noise = noise.to(clean.device)
    start = clean + noise * _noise_scale(sigmas[0], model.levels)
    step_seed = shifted(noising.seed, noising.step_seed_offset)
    sampling = sampling_of(sampler, start, sigmas, seed=noising.seed, step_seed=step_seed)
    if latent.noise_mask is None:
        return sampling
    if names.SAMPLER_OF[sampler].own_mask_noise:
        noise = noise_like(clean, shifted(noising.seed, 1)).to(clean.device)
    return inpainting(sampling, fitted_mask(latent.noise_mask, clean), clean, noise)


def _noise_scale(sigma: Tensor, levels: NoiseLevels) -> Tensor:
    """From the model's largest sigma on, the signal counts as noise too."""
    is_largest = sigma > levels.most or torch.isclose(sigma, levels.most, rtol=1e-5)
    return (1 + sigma**2).sqrt() if is_largest else sigma


def _levels_left(sigmas: Tensor, sigma: Tensor) -> int:
    """How many of a schedule's levels are at `sigma` or behind it; schedules may rise, too."""
    levels = sigmas[:-1]
    return int((levels >= sigma if sigmas[0] >= sigmas[-1] else levels <= sigma).sum())
