"""The node that samples as the WebUI does, where it differs from ComfyUI."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, LatentShape, saturated
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node
from engine.nodes.samplers.sampling import SEED, k_sampler
from engine.nodes.sides import CELL
from engine.webui.sampler_names import (
    SAMPLER_OF,
    SCHEDULER_OF,
    sampler_alone,
    scheduler_alone,
    steps_of,
)

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model
    from engine.diffusion.samplers.lookup import SamplerOptions
    from engine.diffusion.trajectory import Guidance, NoiseConfig, Refiner

SAMPLERS = Choice(tuple(SAMPLER_OF), resolve=sampler_alone)
SCHEDULERS = Choice(tuple(SCHEDULER_OF), resolve=scheduler_alone)
_TEXTS = ("positive", "negative")
_NOISE_BYTES = 6 * 16 / CELL**2
"""Of a pixel: six tensors of four channels while two noises are put together."""
_ANY_SIGMA = 1e9
TAKEN_STEPS = Int(
    0,
    min=0,
    max=10_000,
    tooltip="So many of the last steps of the schedule are taken; 0: as denoise says.",
)
_RESIZED = Int(
    0,
    min=0,
    max=4096,
    tooltip="A side in pixels; with both, noise of that size is put "
    "into the middle of the noise of the start.",
)


def _sampler_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """Of the model, or of the refiner where that takes more; and of noise of another size."""
    steps = steps_of(inputs["scheduler"], inputs["steps"])
    real = {**inputs, "steps": min(steps, inputs.get("taken_steps") or steps)}
    parts = [
        k_sampler.estimated({**real, **each})
        for each in ({}, _of_refiner(inputs, "model", *_TEXTS))
    ]
    most = max(parts, key=lambda each: each.work)
    pixels = _varied_pixels(inputs)
    return replace(
        most,
        rows=max(each.rows for each in parts),
        work=most.work + pixels / 1e6 * work.RESAMPLE,
        scratch_bytes=saturated(most.scratch_bytes + int(pixels * _NOISE_BYTES)),
    )


def _varied_pixels(inputs: Mapping[str, Any]) -> float:
    """Of all images, as far as their noise is not only that of the seed."""
    latents: LatentShape = inputs["latent_image"]
    sides = [inputs.get(f"seed_resize_from_{side}", 0) for side in "wh"]
    if all(sides):
        return latents.count * float(math.prod(sides))
    if inputs.get("subseed_strength"):
        return latents.count * float(latents.width * latents.height)
    return 0.0


@node(
    "WebUISampler",
    inputs={
        **k_sampler.inputs,
        "sampler_name": SAMPLERS,
        "scheduler": SCHEDULERS,
        "eta_noise_seed_delta": Int(
            0, min=0, max=2**32 - 1, tooltip="How far the seed of the noise in steps is from seed."
        ),
    },
    optional={
        "continues_noise": Boolean(
            False,
            tooltip="Without a delta the noise in steps goes on where that of the start ends; "
            "Brownian paths are those of the whole schedule.",
        ),
        "noise_scale": Choice(
            ("comfyui", "sigma", "unit variance"),
            tooltip="What the noise of the start is multiplied with.",
        ),
        "rounds_timesteps": Boolean(True, tooltip="The model gets whole timesteps alone."),
        "eta": Float(1.0, min=0.0, max=100.0, tooltip="How much noise the steps add."),
        "s_noise": Float(1.0, min=0.0, max=100.0, tooltip="What that noise is multiplied with."),
        "s_churn": Float(0.0, min=0.0, max=100.0, tooltip="How much noise goes before each step."),
        "s_tmin": Float(0.0, min=0.0, max=_ANY_SIGMA, tooltip="The least sigma that gets it."),
        "s_tmax": Float(0.0, min=0.0, max=_ANY_SIGMA, tooltip="The largest; 0: any."),
        "s_min_uncond": Float(
            0.0,
            min=0.0,
            max=_ANY_SIGMA,
            tooltip="Below this sigma every second call leaves the negative text out.",
        ),
        "subseed": replace(SEED, tooltip="The seed of the variation."),
        "subseed_strength": Float(
            0.0, min=0.0, max=1.0, tooltip="How far the noise of the start is towards it."
        ),
        "seed_resize_from_w": _RESIZED,
        "seed_resize_from_h": _RESIZED,
        "taken_steps": TAKEN_STEPS,
        "noise_multiplier": Float(
            1.0, min=0.0, max=10.0, tooltip="What the noise of the start is multiplied with."
        ),
        "renews_kept": Boolean(
            True, tooltip="What a mask keeps gets its noise anew in each call of the model."
        ),
        "refiner_model": Link("MODEL", tooltip="Takes the model's place near the end."),
        "refiner_positive": Link("CONDITIONING"),
        "refiner_negative": Link("CONDITIONING"),
        "refiner_switch_at": Float(
            0.8, min=0.0, max=1.0, tooltip="At this share of the timesteps."
        ),
    },
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Sampler",
    steps_input="steps",
    estimate=_sampler_estimate,
    check=k_sampler.check,
)
def webui_sampler(
    context: Context,
    *,
    model: Model,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Conditioning,
    negative: Conditioning,
    latent_image: Latent,
    denoise: float,
    rounds_timesteps: bool = True,
    continues_noise: bool = False,
    **options: Any,
) -> Work[tuple[Latent]]:
    """Denoises a latent as the WebUI does: its noise, the options of its samplers, a refiner."""
    from engine.diffusion.trajectory import Guidance, SamplerSchedule

    taken = options.get("taken_steps", 0)
    sigmas = context.sigmas(model, scheduler, steps, denoise, sampler=sampler_name, taken=taken)
    whole = None
    if continues_noise and denoise:
        total = int(steps / denoise)
        whole = context.sigmas(model, scheduler, total, 1.0, sampler=sampler_name)
    guidance = Guidance(positive, negative, cfg, options.get("s_min_uncond", 0.0))
    latent, _ = yield from context.sample_along(
        replace(model, rounds_timesteps=rounds_timesteps),
        latent_image,
        SamplerSchedule(sampler_name, sigmas, whole, _sampler_options(options)),
        steps=steps,
        guidance=guidance,
        noise=_noise_config(seed, options, continues_noise=continues_noise),
        refiner=_refiner(guidance, options, rounds_timesteps=rounds_timesteps),
    )
    return (latent,)


def _sampler_options(inputs: Mapping[str, Any]) -> SamplerOptions:
    from engine.diffusion.samplers.ancestral import Churn
    from engine.diffusion.samplers.lookup import SamplerOptions

    churn = Churn(
        inputs.get("s_churn", 0.0), inputs.get("s_tmin", 0.0), inputs.get("s_tmax", 0.0) or math.inf
    )
    return SamplerOptions(inputs.get("eta"), inputs.get("s_noise", 1.0), churn)


def _noise_config(seed: int, inputs: Mapping[str, Any], *, continues_noise: bool) -> NoiseConfig:
    from engine.diffusion.samplers.noise import Variation
    from engine.diffusion.trajectory import NoiseConfig

    delta = inputs["eta_noise_seed_delta"]
    sides = [inputs.get(f"seed_resize_from_{side}", 0) for side in "hw"]
    height, width = (side // CELL for side in sides)
    return NoiseConfig(
        seed,
        step_seed_offset=None if continues_noise and not delta else delta,
        scale=inputs.get("noise_scale", "comfyui"),
        variation=Variation(
            inputs.get("subseed", 0),
            inputs.get("subseed_strength", 0.0),
            (height, width) if height and width else None,
        ),
        multiplier=inputs.get("noise_multiplier", 1.0),
        renews_kept=inputs.get("renews_kept", True),
    )


def _of_refiner(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of the refiner, which else gets the model's."""
    return {name: inputs[f"refiner_{name}"] for name in names if f"refiner_{name}" in inputs}


def _refiner(
    guidance: Guidance, inputs: Mapping[str, Any], *, rounds_timesteps: bool
) -> Refiner | None:
    from engine.diffusion.trajectory import Refiner

    if "refiner_model" not in inputs:
        return None
    return Refiner(
        replace(inputs["refiner_model"], rounds_timesteps=rounds_timesteps),
        replace(guidance, **_of_refiner(inputs, *_TEXTS)),
        inputs.get("refiner_switch_at", 0.8),
    )
