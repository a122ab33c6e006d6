"""The path of one latent from noise to picture: its sampler, and the model calls that it makes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.placement import placed_conditionings
from engine.diffusion.denoise import Denoise
from engine.diffusion.images.latents import Latent, Mask, noise_like
from engine.diffusion.inpainting import concat_latent, fitted_mask, inpainting
from engine.diffusion.model import Model
from engine.diffusion.samplers.lookup import sampling_of
from engine.diffusion.samplers.noise import shifted, start_noise
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.graph import names


@dataclass(frozen=True, slots=True, eq=False)
class SamplerSchedule:
    """A sampler by its name, and the sigmas that it steps through."""

    sampler: str
    sigmas: Tensor
    """(n,) on the CPU; they fall, or rise where the schedule was flipped."""

    @property
    def row(self) -> names.Sampler:
        return names.SAMPLER_OF[self.sampler]


class _Steps:
    """Where on its schedule a sampler is, by the sigma that it calls the model at."""

    def __init__(self, schedule: SamplerSchedule) -> None:
        *begins, end = schedule.sigmas.tolist()
        self._sign = -1.0 if begins[0] >= end else 1.0
        self._passed = sorted(self._sign * each for each in begins)
        self._begins = None if schedule.row.own_schedule else frozenset(begins)

    def passed(self, sigma: float) -> int:
        """The number of the schedule's sigmas, without the last, that come no later."""
        return bisect_right(self._passed, self._sign * sigma)

    def begins_at(self, sigma: float) -> bool:
        """Whether a step may begin there. Samplers also call the model within a step."""
        return self._begins is None or sigma in self._begins


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    """Both conditionings of classifier-free guidance, and its scale."""

    positive: Conditioning
    negative: Conditioning
    cfg: float


@dataclass(frozen=True, slots=True)
class NoiseConfig:
    """The noise that sampling adds, at the start and in the steps."""

    seed: int
    adds_noise: bool = True
    """False: the latent has its noise already."""
    step_seed_offset: int = 0
    """What is added to `seed` for the noise of the steps."""


def trajectory(
    model: Model,
    latent: Latent,
    schedule: SamplerSchedule,
    *,
    guidance: Guidance,
    noise_config: NoiseConfig,
    on_sigmas_passed: Callable[[int], None],
) -> Work[tuple[Latent, Latent]]:
    """The latent at the end of the schedule, and the last estimate of it without noise.

    `on_sigmas_passed` gets the number of the schedule's sigmas that the sampler has passed.
    """
    if len(schedule.sigmas) == 0:
        return latent, latent
    clean = latent.samples.to(model.device) * model.latent_scale
    noise = _start_noise(latent, noise_config).to(clean)
    start = clean + noise * _noise_scale(schedule.sigmas[0], model.levels)
    if len(schedule.sigmas) == 1:
        noised = replace(latent, samples=start / model.latent_scale)
        return noised, noised
    sampling = _sampling(schedule, start, noise_config)
    if latent.noise_mask is not None:
        mask = fitted_mask(latent.noise_mask, clean)
        sampling = inpainting(sampling, mask, clean, _mask_noise(schedule, noise, noise_config))
    end, x0 = yield from _sampled(
        sampling,
        start,
        schedule,
        denoise=_denoise(
            model,
            latent.noise_mask,
            clean,
            guidance=guidance,
            needs_uncond=schedule.row.needs_uncond,
        ),
        on_sigmas_passed=on_sigmas_passed,
    )
    scale = model.latent_scale
    return replace(latent, samples=end / scale), replace(latent, samples=x0 / scale)


def _denoise(
    model: Model, mask: Mask | None, clean: Tensor, *, guidance: Guidance, needs_uncond: bool
) -> Callable[[Tensor, Tensor], Denoise]:
    """What makes the call of the model for an x and its sigma."""
    cond, uncond = placed_conditionings(guidance.positive, guidance.negative, clean, model.levels)
    return partial(
        Denoise,
        model,
        cond=cond,
        uncond=uncond,
        cfg=guidance.cfg,
        needs_uncond=needs_uncond,
        concat_latent=concat_latent(mask, clean) if model.inpaints else None,
    )


def _sampled(
    sampling: Sampling,
    start: Tensor,
    schedule: SamplerSchedule,
    *,
    denoise: Callable[[Tensor, Tensor], Denoise],
    on_sigmas_passed: Callable[[int], None],
) -> Work[tuple[Tensor, Tensor]]:
    """The end of `sampling`, and the last estimate of x0 at the beginning of a step.

    A sampler that has nothing to do makes no estimate; `start` stands for it.
    """
    estimate, steps = start, _Steps(schedule)
    try:
        x, sigma = next(sampling)
        while True:
            request = denoise(x, sigma)
            x0: Tensor = yield request
            on_sigmas_passed(steps.passed(request.level))
            if steps.begins_at(request.level):
                estimate = x0[0] if schedule.row.needs_uncond else x0
            x, sigma = sampling.send(x0)
    except StopIteration as stop:
        return stop.value, estimate


def _start_noise(latent: Latent, config: NoiseConfig) -> Tensor:
    if config.adds_noise:
        return start_noise(latent, config.seed)
    return torch.zeros_like(latent.samples)


def _sampling(schedule: SamplerSchedule, start: Tensor, config: NoiseConfig) -> Sampling:
    step_seed = shifted(config.seed, config.step_seed_offset)
    return sampling_of(
        schedule.sampler, start, schedule.sigmas, seed=config.seed, step_seed=step_seed
    )


def _mask_noise(schedule: SamplerSchedule, noise: Tensor, config: NoiseConfig) -> Tensor:
    """The noise of the part that a mask keeps."""
    if schedule.row.own_mask_noise:
        return noise_like(noise, shifted(config.seed, 1)).to(noise)
    return noise


def _noise_scale(sigma: Tensor, levels: NoiseLevels) -> Tensor:
    """The factor of the noise at the start. From the model's largest sigma on, it includes the unit
    variance of the clean latent, as in ComfyUI.
    """
    is_largest = sigma > levels.sigma_max or torch.isclose(sigma, levels.sigma_max, rtol=1e-5)
    return (1 + sigma**2).sqrt() if is_largest else sigma
