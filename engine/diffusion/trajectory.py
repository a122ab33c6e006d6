"""Sampling of one latent: the noise at the start, the sampler and the model calls."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.conditioning.guidance import ThirdConditioning
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.flow_sampling import require_flow_sigmas
from engine.diffusion.host_copies import copied
from engine.diffusion.images.latents import Latent, Mask
from engine.diffusion.inpainting import (
    KeptNoise,
    TimedMask,
    fitted_mask,
    inpainting,
)
from engine.diffusion.model import Model
from engine.diffusion.patches.attention_reduction import CallDraws
from engine.diffusion.patches.self_guidance import perturb, watch
from engine.diffusion.patches.variants import variant_of
from engine.diffusion.samplers.noise import (
    UNVARIED,
    Variation,
    drawn_noise,
    shifted_seed,
    start_noise,
    varied,
)
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.noise_sources import (
    ON_CPU,
    NoiseSources,
    Randn,
    cpu_randn,
    randn_of,
    seeded_randn,
)
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.sampler_lookup import DEFAULT, SamplerOptions, sampling_of
from engine.errors import EngineError
from engine.graph.names import Sampler
from engine.webui.sampler_names import SAMPLER_OF, follows_timesteps


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a seed. `is_added` is false if the latent already contains noise."""

    seed: int
    is_added: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Guider:
    model: Model
    positive: Conditioning
    negative: Conditioning
    cfg: float
    third_conditioning: ThirdConditioning | None = None


NoiseScale: TypeAlias = Literal["comfyui", "sigma", "unit variance"]
"""The scale of the noise at the start. Flow models ignore this scale.

- sigma: the first sigma
- unit variance: the scale that gives a latent of unit variance after `Model.scaled_input`
- comfyui: unit variance if the first sigma is at least the model's largest sigma, or else sigma
"""


def own_latent(latent: Latent, model: Model, sigmas: Tensor, row: Sampler) -> Latent:
    """Return the latent, or zeros with the model's number of channels if the latent is zero.

    Raises EngineError if any other latent has another number of channels, or if the model does not
    work with the schedule or the sampler.
    """
    _require_schedule(model, sigmas, row)
    batch, channels, *sides = latent.samples.shape
    if channels == model.latent_channels:
        return latent
    if latent.samples.any():
        raise EngineError(
            f"the latent has {channels} channels, but the model ({model.family}) needs "
            f"{model.latent_channels}: encode the image with the VAE of the model"
        )
    return replace(latent, samples=torch.zeros(batch, model.latent_channels, *sides))


def _require_schedule(model: Model, sigmas: Tensor, row: Sampler) -> None:
    if not model.levels.is_flow:
        if model.family.predicts_flow:
            raise EngineError(
                f"{model.family.traits.title} predicts a flow, but its prediction or its noise "
                "levels were replaced with those of other models: leave out the ModelSampling node"
            )
        return
    require_flow_sigmas(sigmas)
    if follows_timesteps(row):
        raise EngineError(f"{row.label} needs the timesteps of Stable Diffusion")
    if model.guidance_rescale:
        raise EngineError("RescaleCFG is for models that predict noise, not for flow models")


def noised(
    clean: Tensor, noise: Tensor, sigma: Tensor, *, levels: NoiseLevels, scale: NoiseScale
) -> Tensor:
    """Return `clean` with `noise` added for `sigma`, the first sigma of a schedule."""
    if levels.is_flow:
        return levels.noised(clean, noise, sigma)
    return clean + noise * _factor(scale, sigma, levels)


def _factor(scale: NoiseScale, sigma: Tensor, levels: NoiseLevels) -> Tensor:
    has_unit_variance = scale == "unit variance"
    if scale == "comfyui":
        has_unit_variance = bool(
            sigma > levels.sigma_max or torch.isclose(sigma, levels.sigma_max, rtol=1e-5)
        )
    return (1 + sigma**2).sqrt() if has_unit_variance else sigma


def patched_by_sigma(model: Model, generator: torch.Generator) -> Callable[[float], Model]:
    """Return a function from a sigma to the patched model of the next call.

    The random draws of the patches start from the current state of `generator`.
    """
    if model.attention_reduction is None:
        return _unet_by_sigma(model)
    unet = variant_of(model.unet, model.attention_reduction, model.attention_reduction.patch)
    patched = _unet_by_sigma(replace(model, unet=unet))
    own, calls = torch.Generator().set_state(generator.get_state()), count()
    return lambda sigma: replace(patched(sigma), draws=CallDraws(next(calls), own))


def _unet_by_sigma(model: Model) -> Callable[[float], Model]:
    if model.self_attention is not None:
        model = replace(model, unet=variant_of(model.unet, "watched", watch))
    plain, shrink = _with_perturbed(model), model.shrink
    if shrink is None:
        return lambda _sigma: plain
    most, least = map(model.levels.percent_to_sigma, shrink.percent_range)
    shrunk = replace(model, unet=variant_of(model.unet, shrink, shrink.patch))
    shrunk = _with_perturbed(shrunk)
    return lambda sigma: shrunk if least <= sigma <= most else plain


def _with_perturbed(model: Model) -> Model:
    if not model.perturbed_attention:
        return model
    return replace(model, perturbed_unet=variant_of(model.unet, "perturbed", perturb))


def is_self_guided(model: Model) -> bool:
    """Return whether `guided_x0` may make more than one call."""
    return model.self_attention is not None or model.perturbed_attention != 0


def guided_x0(request: Denoise) -> Work[Tensor]:
    """Return the result of a model call, with the model's self-guidance added."""
    yield from _encode_hints(request)
    result: Tensor = yield request
    if not request.needs_parts:
        return result
    x0, *parts = result
    if request.model.perturbed_attention and request.conditionings[0]:
        x0 = x0 + (yield from _from_perturbed(request, parts[0]))
    if request.model.self_attention is not None and request.conditionings[1]:
        x0 = x0 + (yield from _from_blurred(request, parts[1]))
    return torch.stack([x0, parts[1]]) if request.needs_uncond else x0


def _encode_hints(request: Denoise) -> Work[None]:
    """Encode the hints of ControlNets that get latents, before the first call that needs them."""
    for fitted in chain.from_iterable(request.conditionings):
        window = fitted.window(request.x)
        for control in fitted.condition.controls:
            if control.applies_at(request.level, request.model.levels):
                yield from control.encode_hint(window)


def _from_perturbed(request: Denoise, x0_cond: Tensor) -> Work[Tensor]:
    """Return the guidance of Ahn et al. 2024 (arXiv:2403.17377), equation 14."""
    model = request.model
    perturbed = replace(model, unet=model.perturbed_unet, self_attention=None)
    x0: Tensor = yield request.with_one(request.cond, model=perturbed, x=request.x)
    return (x0_cond - x0) * model.perturbed_attention


def _from_blurred(request: Denoise, x0_uncond: Tensor) -> Work[Tensor]:
    """Return the guidance of Hong et al. 2023 (arXiv:2210.00939), equation 16."""
    guidance, attended = request.model.self_attention, request.attended
    is_whole = len(request.conditionings[1]) == 1 and request.conditionings[1][0].area is None
    if not is_whole or attended is None or guidance is None:
        raise EngineError(
            "self-attention guidance needs exactly one negative text, for the whole image"
        )
    if not guidance.can_degrade(x0_uncond):
        return torch.zeros_like(x0_uncond)
    degraded = guidance.degraded(x0_uncond, attended)
    model = replace(request.model, self_attention=None)
    x = degraded + request.x - x0_uncond
    x0: Tensor = yield request.with_one(request.uncond, model=model, x=x)
    return (degraded - x0) * guidance.scale


@dataclass(frozen=True, slots=True, eq=False)
class SamplerSchedule:
    """The name of a sampler, and the sigmas along which it steps."""

    sampler: str
    sigmas: Tensor
    """(n,) on the CPU. The sigmas fall, or rise if the schedule was flipped."""
    whole: Tensor | None = None
    """A longer schedule that ends with `sigmas`. If set, Brownian paths cover this schedule."""
    options: SamplerOptions = DEFAULT

    @property
    def row(self) -> Sampler:
        return SAMPLER_OF[self.sampler]


class _Steps:
    """Maps the sigma of a model call to the steps that the sampler has passed."""

    def __init__(self, schedule: SamplerSchedule) -> None:
        *begins, end = schedule.sigmas.tolist()
        self._sign = -1.0 if begins[0] >= end else 1.0
        self._passed = sorted(self._sign * each for each in begins)
        self._begins = None if schedule.row.own_schedule else frozenset(begins)

    def passed(self, sigma: float) -> int:
        """Return the number of steps that begin at `sigma` or earlier."""
        return bisect_right(self._passed, self._sign * sigma)

    def begins_at(self, sigma: float) -> bool:
        """Return whether a step may begin at `sigma`. True for all sigmas of an `own_schedule`."""
        return self._begins is None or sigma in self._begins


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    positive: Conditioning
    negative: Conditioning
    cfg: float
    skips_negative_below: float = 0.0
    """Below this sigma, every second call of the model leaves out the negative conditioning."""
    third_conditioning: ThirdConditioning | None = None
    """A third conditioning. None: the model's third conditioning is used."""


@dataclass(frozen=True, slots=True, eq=False)
class Refiner:
    """A second model that replaces the first model near the end of a schedule."""

    model: Model
    guidance: Guidance
    switch_at: float
    """The refiner begins after this fraction of its timesteps, counted from the largest sigma."""

    def begins_at(self, sigma: float) -> bool:
        levels = self.model.levels
        passed = levels.last_timestep - levels.timestep_near(sigma)
        return passed / (levels.last_timestep + 1) >= self.switch_at


@dataclass(frozen=True, slots=True)
class NoiseConfig:
    """The noise that sampling adds, at the start and in the steps."""

    seed: int
    adds_noise: bool = True
    """If false, no noise is added at the start, because the latent already contains noise."""
    step_seed_offset: int | None = 0
    """The offset that is added to `seed` for the independent noise of the steps. None: that noise
    is drawn from the same generator as the noise at the start.
    """
    sources: NoiseSources = ON_CPU
    scale: NoiseScale = "comfyui"
    variation: Variation = UNVARIED
    multiplier: float = 1.0
    """The factor of the noise at the start."""
    renews_kept: bool = True
    """See `KeptNoise.is_renewed`."""


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
    """Sample a latent along a schedule.

    Returns the latent at the end of the schedule, and the last estimate of the latent without
    noise. `on_sigmas_passed` is called with the number of passed sigmas. `on_estimate` is called
    with the first estimate of each step.
    """
    if not len(schedule.sigmas):
        return latent, latent
    latent = own_latent(latent, model, schedule.sigmas, schedule.row)
    clean = model.to_latent(copied(latent.samples, model.device))
    generator = torch.Generator().manual_seed(noise_config.seed)
    noise, draw = _start_noise(latent, noise_config, generator, like=clean)
    start = noised(clean, noise, schedule.sigmas[0], levels=model.levels, scale=noise_config.scale)
    if len(schedule.sigmas) == 1:
        return (one := replace(latent, samples=model.from_latent(start))), one
    sampling = _sampling(schedule, start, noise_config, draw, levels=model.levels)
    if (mask := latent.noise_mask) is not None:
        kept_noise, fitted = _mask_noise(schedule, noise, noise_config), fitted_mask(mask, clean)
        timed_mask = TimedMask.of(schedule.sigmas, model.levels, model.soft_mask)
        sampling = inpainting(
            sampling, fitted, clean, kept_noise, levels=model.levels, timed_mask=timed_mask
        )
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
    model: Model
    guidance: Guidance
    mask: Mask | None
    clean: Tensor
    needs_uncond: bool
    generator: torch.Generator

    def make(self) -> Callable[[Tensor, Tensor], Denoise]:
        """Return a function that makes requests. Raises EngineError for a text of another model."""
        model, guidance, clean = self.model, self.guidance, self.clean
        third_conditioning = guidance.third_conditioning or model.third_conditioning
        sized = partial(
            model.with_size_conditioning,
            latent=clean,
            seed=self.generator.initial_seed(),
            mask=self.mask,
        )
        cond, uncond, *more = fitted_conditionings(
            sized(guidance.positive, negative=False),
            sized(guidance.negative, negative=True),
            clean,
            model.levels,
            more=[sized(third_conditioning.conditioning, negative=True)]
            if third_conditioning
            else (),
            # As in ComfyUI, the third conditioning of a model shares nothing.
            more_share=guidance.third_conditioning is not None,
        )
        model_at = patched_by_sigma(model, self.generator)
        made = partial(
            Denoise,
            cond=cond,
            uncond=uncond,
            rule=third_conditioning.rule if third_conditioning else None,
            third_conditioning=more[0] if more else (),
            needs_uncond=self.needs_uncond,
            needs_parts=is_self_guided(model),
        )
        counted = count()

        def denoise(x: Tensor, sigma: Tensor) -> Denoise:
            skips = next(counted) % 2 == 1 and float(sigma) < guidance.skips_negative_below
            return made(model_at(float(sigma)), x, sigma, cfg=1.0 if skips else guidance.cfg)

        return denoise


def _denoise(calls: _Calls, refiner: Refiner | None) -> Callable[[Tensor, Tensor], Denoise]:
    """Return a function that makes requests of the model, or of the refiner after the switch."""
    if refiner is None:
        return calls.make()
    if refiner.model.latent_scale != calls.model.latent_scale:
        raise EngineError("the refiner is for another kind of latents than the model")
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
    """Run `sampling`. Returns its end, and the last estimate of x0 at the beginning of a step."""
    estimate, steps = start, _Steps(schedule)
    is_first = True
    try:
        x, sigma = next(sampling)
        while True:
            request = denoise(x, sigma)
            x0 = yield from guided_x0(request)
            on_sigmas_passed(steps.passed(request.level))
            # Some samplers of flow models begin slightly below a first sigma of 1.
            if is_first or steps.begins_at(request.level):
                is_first = False
                estimate = x0[0] if schedule.row.needs_uncond else x0
                on_estimate(estimate)
            x, sigma = sampling.send(x0)
    except StopIteration as stop:
        return stop.value, estimate


def _start_noise(
    latent: Latent, config: NoiseConfig, cpu_generator: torch.Generator, *, like: Tensor
) -> tuple[Tensor, Randn]:
    """Return the noise, and the function that continues its generator.

    `cpu_generator` is used if noise is drawn on the CPU. The patches of attention continue it.
    """
    draws = seeded_randn(config.sources.start, like.device)
    draw = randn_of(cpu_generator) if config.sources.start == "cpu" else draws(config.seed)
    if not config.adds_noise:
        return torch.zeros_like(like), draw
    noise = varied(start_noise(latent, draw), config.seed, config.variation, draws)
    return copied(noise, like.device).to(like) * config.multiplier, draw


def _sampling(
    schedule: SamplerSchedule,
    start: Tensor,
    config: NoiseConfig,
    draw: Randn,
    *,
    levels: NoiseLevels,
) -> Sampling:
    if config.step_seed_offset is not None:
        seed = shifted_seed(config.seed, config.step_seed_offset)
        draw = seeded_randn(config.sources.step, start.device)(seed)
    return sampling_of(
        schedule.sampler,
        start,
        schedule.sigmas,
        seed=config.seed,
        step_noise=drawn_noise(start, draw),
        path_draws=seeded_randn(config.sources.path, start.device),
        path=schedule.whole,
        options=schedule.options,
        levels=levels,
    )


def _mask_noise(schedule: SamplerSchedule, noise: Tensor, config: NoiseConfig) -> KeptNoise:
    if schedule.row.own_mask_noise:
        drawn = cpu_randn(shifted_seed(config.seed, 1))(noise.shape)
        noise = copied(drawn, noise.device).to(noise)
    return KeptNoise(noise, config.renews_kept)
