"""The path of one latent from noise to picture: its sampler, and the model calls that it makes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.guidance_rules import Third
from engine.diffusion.conditioning.placement import placed_conditionings
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.start import NoiseScale, noised, own_latent
from engine.diffusion.images.latents import Latent, Mask, noise_like
from engine.diffusion.inpainting import (
    KeptNoise,
    MaskSteps,
    concat_latent,
    fitted_mask,
    inpainting,
)
from engine.diffusion.model import Model
from engine.diffusion.patches.patched_calls import guided_x0, is_self_guided, patched_by_sigma
from engine.diffusion.samplers.lookup import DEFAULT, SamplerOptions, sampling_of
from engine.diffusion.samplers.noise import (
    UNVARIED,
    Variation,
    drawn_noise,
    independent_noise,
    shifted,
    start_noise,
    varied,
)
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.errors import EngineError
from engine.graph.names import Sampler
from engine.webui.sampler_names import SAMPLER_OF


@dataclass(frozen=True, slots=True, eq=False)
class SamplerSchedule:
    """A sampler by its name, and the sigmas that it steps through."""

    sampler: str
    sigmas: Tensor
    """(n,) on the CPU; they fall, or rise where the schedule was flipped."""
    whole: Tensor | None = None
    """The schedule whose end `sigmas` are, if Brownian paths are to be those of all of it."""
    options: SamplerOptions = DEFAULT

    @property
    def row(self) -> Sampler:
        return SAMPLER_OF[self.sampler]


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
    skips_negative_below: float = 0.0
    """Below this sigma every second call of the model leaves the negative out."""
    third: Third | None = None
    """What guides beside both; without it, that of the model."""


@dataclass(frozen=True, slots=True, eq=False)
class Refiner:
    """A second model that takes the first one's place near the end of a schedule."""

    model: Model
    guidance: Guidance
    switch_at: float
    """At this share of its timesteps, from the largest sigma down."""

    def begins_at(self, sigma: float) -> bool:
        levels = self.model.levels
        passed = levels.last_timestep - levels.timestep_near(sigma)
        return passed / (levels.last_timestep + 1) >= self.switch_at


@dataclass(frozen=True, slots=True)
class NoiseConfig:
    """The noise that sampling adds, at the start and in the steps."""

    seed: int
    adds_noise: bool = True
    """False: the latent has its noise already."""
    step_seed_offset: int | None = 0
    """What is added to `seed` for the noise of the steps; None: it goes on where that of the start
    ends."""
    scale: NoiseScale = "comfyui"
    variation: Variation = UNVARIED
    multiplier: float = 1.0
    """What the noise of the start is multiplied with beside its scale."""
    renews_kept: bool = True
    """What a mask keeps gets its noise anew in each call."""


def trajectory(
    model: Model,
    latent: Latent,
    schedule: SamplerSchedule,
    *,
    guidance: Guidance,
    noise_config: NoiseConfig,
    on_sigmas_passed: Callable[[int], None],
    on_estimate: Callable[[Tensor], None] = lambda _estimate: None,
    refiner: Refiner | None = None,
) -> Work[tuple[Latent, Latent]]:
    """The latent at the end of the schedule, and the last estimate of it without noise.

    `on_sigmas_passed` gets how many sigmas are passed, `on_estimate` the first estimate of a step.
    """
    if not len(schedule.sigmas):
        return latent, latent
    latent = own_latent(latent, model, schedule.sigmas, schedule.row)
    clean = model.to_latent(latent.samples.to(model.device))
    noise, generator = _start_noise(latent, noise_config, like=clean)
    start = noised(clean, noise, schedule.sigmas[0], levels=model.levels, scale=noise_config.scale)
    if len(schedule.sigmas) == 1:
        return (one := replace(latent, samples=model.from_latent(start))), one
    sampling = _sampling(schedule, start, noise_config, generator, is_flow=model.levels.is_flow)
    if (mask := latent.noise_mask) is not None:
        kept_noise, fitted = _mask_noise(schedule, noise, noise_config), fitted_mask(mask, clean)
        steps = MaskSteps.of(schedule.sigmas, model.levels, model.soft_mask)
        sampling = inpainting(sampling, fitted, clean, kept_noise, levels=model.levels, steps=steps)
    calls = _Calls(model, guidance, mask, clean, schedule.row.needs_uncond, generator)
    end, x0 = yield from _sampled(
        sampling,
        start,
        schedule,
        denoise=_denoise(calls, refiner),
        on_sigmas_passed=on_sigmas_passed,
        on_estimate=on_estimate,
    )
    ends = model.levels.ended(end, schedule.sigmas[-1]), x0
    last, estimate = (replace(latent, samples=model.from_latent(each)) for each in ends)
    return last, estimate


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """The calls of one model."""

    model: Model
    guidance: Guidance
    mask: Mask | None
    clean: Tensor
    needs_uncond: bool
    generator: torch.Generator

    def make(self) -> Callable[[Tensor, Tensor], Denoise]:
        """What makes the call for an x and its sigma. Raises EngineError."""
        model, guidance, clean = self.model, self.guidance, self.clean
        third = guidance.third or model.third
        sized = partial(
            model.with_size_conditioning, latent=clean, seed=self.generator.initial_seed()
        )
        cond, uncond, *more = placed_conditionings(
            sized(guidance.positive, negative=False),
            sized(guidance.negative, negative=True),
            clean,
            model.levels,
            more=[sized(third.conditioning, negative=True)] if third else (),
        )
        model_at = patched_by_sigma(model, self.generator)
        made = partial(
            Denoise,
            cond=cond,
            uncond=uncond,
            rule=third.rule if third else None,
            third=more[0] if more else (),
            needs_uncond=self.needs_uncond,
            concat_latent=concat_latent(self.mask, clean) if model.inpaints else None,
            needs_parts=is_self_guided(model),
        )
        counted = count()

        def denoise(x: Tensor, sigma: Tensor) -> Denoise:
            skips = next(counted) % 2 == 1 and float(sigma) < guidance.skips_negative_below
            return made(model_at(float(sigma)), x, sigma, cfg=1.0 if skips else guidance.cfg)

        return denoise


def _denoise(calls: _Calls, refiner: Refiner | None) -> Callable[[Tensor, Tensor], Denoise]:
    """What makes the call of the model, or of the refiner once that has taken over.

    Raises EngineError for a refiner whose latents are others than the model's.
    """
    if refiner is None:
        return calls.make()
    if refiner.model.latent_scale != calls.model.latent_scale:
        raise EngineError("the refiner is of another kind: its latents are not the model's")
    first = calls.make()
    second = replace(calls, model=refiner.model, guidance=refiner.guidance).make()
    has_switched = False

    def denoise(x: Tensor, sigma: Tensor) -> Denoise:
        nonlocal has_switched
        has_switched = has_switched or refiner.begins_at(float(sigma))
        return (second if has_switched else first)(x, sigma)

    return denoise


def _sampled(
    sampling: Sampling,
    start: Tensor,
    schedule: SamplerSchedule,
    *,
    denoise: Callable[[Tensor, Tensor], Denoise],
    on_sigmas_passed: Callable[[int], None],
    on_estimate: Callable[[Tensor], None],
) -> Work[tuple[Tensor, Tensor]]:
    """The end of `sampling`, and the last estimate of x0 at the beginning of a step.

    A sampler that has nothing to do makes no estimate; `start` stands for it.
    """
    estimate, steps = start, _Steps(schedule)
    try:
        x, sigma = next(sampling)
        while True:
            request = denoise(x, sigma)
            x0 = yield from guided_x0(request)
            on_sigmas_passed(steps.passed(request.level))
            if steps.begins_at(request.level):
                estimate = x0[0] if schedule.row.needs_uncond else x0
                on_estimate(estimate)
            x, sigma = sampling.send(x0)
    except StopIteration as stop:
        return stop.value, estimate


def _start_noise(
    latent: Latent, config: NoiseConfig, *, like: Tensor
) -> tuple[Tensor, torch.Generator]:
    """The noise at the start, and the generator that it was drawn from."""
    generator = torch.Generator().manual_seed(config.seed)
    if not config.adds_noise:
        return torch.zeros_like(like), generator
    noise = varied(start_noise(latent, generator), config.seed, config.variation)
    return noise.to(like) * config.multiplier, generator


def _sampling(
    schedule: SamplerSchedule,
    start: Tensor,
    config: NoiseConfig,
    generator: torch.Generator,
    *,
    is_flow: bool,
) -> Sampling:
    offset = config.step_seed_offset
    return sampling_of(
        schedule.sampler,
        start,
        schedule.sigmas,
        seed=config.seed,
        step_noise=drawn_noise(start, generator)
        if offset is None
        else independent_noise(start, shifted(config.seed, offset)),
        path=schedule.whole,
        options=schedule.options,
        is_flow=is_flow,
    )


def _mask_noise(schedule: SamplerSchedule, noise: Tensor, config: NoiseConfig) -> KeptNoise:
    """The noise of the part that a mask keeps."""
    if schedule.row.own_mask_noise:
        noise = noise_like(noise, shifted(config.seed, 1)).to(noise)
    return KeptNoise(noise, config.renews_kept)
