"""One latent's way from noise to picture: a sampler, and the model that answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.placement import guides
from engine.diffusion.denoise import Denoise
from engine.diffusion.images.latents import Latent, noise_like
from engine.diffusion.inpainting import fitted_mask, inpainting, shown_beside
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise import shifted, start_noise
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.table import sampling_of
from engine.graph import names


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """A sampler by its name, and the levels it goes along."""

    sampler: str
    sigmas: Tensor

    @property
    def row(self) -> names.Sampler:
        return names.SAMPLER_OF[self.sampler]

    def left_behind(self, sigma: Tensor) -> int:
        """How many of its levels are at `sigma` or before it; they may rise, too."""
        levels = self.sigmas[:-1]
        falls = self.sigmas[0] >= self.sigmas[-1]
        return int((levels >= sigma if falls else levels <= sigma).sum())

    def begins_step(self, sigma: Tensor) -> bool:
        """Whether a step may begin at `sigma`; samplers look ahead and between levels, too."""
        return self.row.own_schedule or bool((self.sigmas[:-1] == sigma).any())


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
    course: Course,
    *,
    guidance: Guidance,
    noising: Noising,
    on_level: Callable[[int], None],
) -> Work[tuple[Latent, Latent]]:
    """The latent at the end of the course, and the last estimate of what it is without noise.

    `on_level` is told how many of the levels have been left behind.
    """
    if len(course.sigmas) == 0:
        return latent, latent
    clean = latent.samples.to(model.device) * model.latent_scale
    noise = _noise(latent, noising).to(clean)
    start = clean + noise * _noise_scale(course.sigmas[0], model.levels)
    if len(course.sigmas) == 1:
        noised = replace(latent, samples=start / model.latent_scale)
        return noised, noised
    positive, negative = guides(guidance.positive, guidance.negative, clean, model.levels)
    sampling = _sampling(course, start, noising)
    if latent.noise_mask is not None:
        kept_noise = _kept_noise(course, noise, noising)
        sampling = inpainting(sampling, fitted_mask(latent.noise_mask, clean), clean, kept_noise)
    beside = shown_beside(latent.noise_mask, clean) if model.inpaints else None
    estimate = start
    try:
        x, sigma = next(sampling)
        while True:
            answer: Tensor = yield Denoise(
                model,
                x,
                sigma,
                positive,
                negative,
                guidance.cfg,
                both=course.row.asks_both,
                beside=beside,
            )
            on_level(course.left_behind(sigma))
            if course.begins_step(sigma):
                estimate = answer[0] if course.row.asks_both else answer
            x, sigma = sampling.send(answer)
    except StopIteration as stop:
        end = replace(latent, samples=stop.value / model.latent_scale)
        return end, replace(latent, samples=estimate / model.latent_scale)


def _noise(latent: Latent, noising: Noising) -> Tensor:
    if noising.at_start:
        return start_noise(latent, noising.seed)
    return torch.zeros_like(latent.samples)


def _sampling(course: Course, start: Tensor, noising: Noising) -> Sampling:
    step_seed = shifted(noising.seed, noising.step_seed_offset)
    return sampling_of(course.sampler, start, course.sigmas, seed=noising.seed, step_seed=step_seed)


def _kept_noise(course: Course, noise: Tensor, noising: Noising) -> Tensor:
    """The noise of what a mask keeps."""
    if course.row.own_mask_noise:
        return noise_like(noise, shifted(noising.seed, 1)).to(noise)
    return noise


def _noise_scale(sigma: Tensor, levels: NoiseLevels) -> Tensor:
    """From the model's largest sigma on, the signal counts as noise too."""
    is_largest = sigma > levels.sigma_max or torch.isclose(sigma, levels.sigma_max, rtol=1e-5)
    return (1 + sigma**2).sqrt() if is_largest else sigma
