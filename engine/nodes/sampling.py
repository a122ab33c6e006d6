"""KSampler and KSamplerAdvanced, which make noise and sigmas themselves and sample with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import names, work
from engine.graph.cost import ConditioningShape, Estimate, LatentShape, model_shape, saturated
from engine.graph.declarations import Choice, Float, Int, Link, node
from engine.graph.limits import MAX_SCHEDULE_SIGMAS
from engine.webui.sampler_names import SAMPLER_OF

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model


SAMPLER_INPUT = Choice(tuple(kind.name for kind in names.SAMPLERS), resolve=names.sampler_alone)
SCHEDULERS = Choice(tuple(kind.name for kind in names.SCHEDULERS), resolve=names.scheduler_alone)


STEPS = Int(20, min=1, max=10_000, limit="steps", tooltip="The number of denoising steps.")
SEED = Int(
    0, min=0, max=2**64 - 1, tooltip="The seed of the noise. The same seed makes the same image."
)
CFG = Float(8.0, min=0.0, max=100.0, step=0.1, tooltip="How closely the image follows the text.")
_LATENT_COPIES = 8
"""The number of tensors of the size of the latent that a sampler keeps in memory."""
_USUAL_TOKENS = 512
"""The tokens of a text that the work of a call includes."""
_PATCH_PIXELS = 256
"""The pixels of an image that a transformer reads as one patch."""
_FILTER = 0.05
"""The work of a filter on the outputs of the layers of a UNet, as a share of the UNet call."""
_IMAGE_PROMPT = 0.005
"""The work of an image prompt of few tokens, as a share of the UNet call. It was measured on the
layers of SD 1.5 at 256 and 512 pixels."""
_IMAGE_TOKEN = 7e-5
"""The work of a token of an image prompt, as a share of the UNet call."""


def require_schedule(literals: Mapping[str, Any]) -> None:
    """Raise ValueError if the whole schedule would be too long."""
    if (sigmas := _schedule_sigmas(literals)) > MAX_SCHEDULE_SIGMAS:
        raise ValueError(
            f"steps {literals['steps']} at denoise {literals['denoise']:g} are the end of a "
            f"schedule of {sigmas:,.0f} steps, but at most {MAX_SCHEDULE_SIGMAS:,} are allowed: "
            "lower the steps, or use a denoise of 0 or a higher one"
        )


def schedule_work(inputs: Mapping[str, Any]) -> float:
    """Return the work to compute a schedule.

    With `denoise` below 1, a longer schedule is computed, and only its end is used.
    """
    return _schedule_sigmas(inputs) * work.SIGMA


def _schedule_sigmas(inputs: Mapping[str, Any]) -> float:
    return inputs["steps"] / inputs["denoise"] if inputs["denoise"] else 0.0


def sampling_estimate(inputs: Mapping[str, Any], sampler: str, steps: int) -> Estimate:
    """Return the cost to sample `latent_image` with `positive` and `negative` at `cfg`.

    Each area of one conditioning adds a kind to the other. The `model` may need more rows.
    """
    positive: ConditioningShape = inputs["positive"]
    negative: ConditioningShape = inputs["negative"]
    model = model_shape(inputs.get("model"))
    latent: LatentShape = model.sampled(inputs["latent_image"])
    kind = SAMPLER_OF[sampler]
    texts = [positive, negative]
    own_rows = [positive.rows + negative.areas, negative.rows + positive.areas]
    rows = own_rows[0] + model.more_calls * max(own_rows)
    third = model.third_conditioning
    if inputs["cfg"] != 1.0 or kind.needs_uncond or third:
        rows += own_rows[1]
    if third:
        texts.append(third)
        rows += third.rows + 2 * third.areas + positive.areas + negative.areas
    controls = model.controls + max(each.controls for each in texts)
    beside = work.CONTROL * controls + _FILTER * model.filters
    beside += work.GLIGEN * any(each.has_boxes for each in texts)
    beside += _IMAGE_PROMPT * model.image_prompts + _IMAGE_TOKEN * model.image_tokens
    more = model.more_attention * latent.width * latent.height / 1e6 / work.TOKEN_MEGAPIXELS
    tokens = max(each.tokens for each in texts) + int(more)
    beside_pixels = max(each.reference_pixels for each in texts)
    if model.traits.is_network is not None:
        # In a transformer, a token of a text passes through all layers, as a patch does.
        beside_pixels += max(0, tokens - _USUAL_TOKENS) * _PATCH_PIXELS
    attended = latent.attended_megapixels(tokens, beside_pixels)
    call = max(attended, work.LEAST_MEGAPIXELS) * (1.0 + beside)
    call *= model.traits.work.call
    taken = max(steps, kind.least_steps) if steps else 0
    return Estimate(
        (latent,),
        work=saturated(rows) * call * taken * kind.calls,
        scratch_bytes=_LATENT_COPIES * latent.size_bytes,
        rows=saturated(rows),
    )


def _k_sampler_estimate(inputs: Mapping[str, Any]) -> Estimate:
    found = sampling_estimate(inputs, inputs["sampler_name"], inputs["steps"])
    return replace(found, work=found.work + schedule_work(inputs))


def _k_sampler_advanced_estimate(inputs: Mapping[str, Any]) -> Estimate:
    end = min(inputs["end_at_step"], inputs["steps"])
    steps = max(0, end - inputs["start_at_step"])
    return sampling_estimate(inputs, inputs["sampler_name"], steps)


@node(
    "KSampler",
    inputs={
        "model": Link("MODEL", tooltip="The model that denoises the latent."),
        "seed": SEED,
        "steps": STEPS,
        "cfg": CFG,
        "sampler_name": SAMPLER_INPUT,
        "scheduler": SCHEDULERS,
        "positive": Link("CONDITIONING", tooltip="The description of the image."),
        "negative": Link(
            "CONDITIONING", tooltip="The description of things that the image should not show."
        ),
        "latent_image": Link("LATENT", tooltip="The latent to denoise."),
        "denoise": Float(
            1.0,
            min=0.0,
            max=1.0,
            tooltip="The share of the noise at the start. Below 1, some of the latent is kept.",
        ),
    },
    outputs=("LATENT",),
    category="sampling",
    steps_input="steps",
    estimate=_k_sampler_estimate,
    check=require_schedule,
)
def k_sampler(
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
) -> Work[tuple[Latent]]:
    """Denoises a latent, guided by the positive and the negative conditioning."""
    sigmas = context.sigmas(model, scheduler, steps, denoise, sampler=sampler_name)
    latent, _ = yield from context.sample(
        model,
        latent_image,
        sampler=sampler_name,
        sigmas=sigmas,
        steps=steps,
        seed=seed,
        positive=positive,
        negative=negative,
        cfg=cfg,
    )
    return (latent,)


@node(
    "KSamplerAdvanced",
    inputs={
        "model": Link("MODEL"),
        "add_noise": Choice(
            ("enable", "disable"), tooltip="Off: the latent already contains noise."
        ),
        "noise_seed": SEED,
        "steps": STEPS,
        "cfg": CFG,
        "sampler_name": SAMPLER_INPUT,
        "scheduler": SCHEDULERS,
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "latent_image": Link("LATENT"),
        "start_at_step": Int(0, min=0, max=10_000, tooltip="The first step to run."),
        "end_at_step": Int(
            10_000, min=0, max=10_000, tooltip="The sampler stops before this step."
        ),
        "return_with_leftover_noise": Choice(
            ("disable", "enable"), tooltip="Off: the last step removes all remaining noise."
        ),
    },
    outputs=("LATENT",),
    category="sampling",
    display_name="KSampler (Advanced)",
    steps_input="steps",
    steps_range=("start_at_step", "end_at_step"),
    estimate=_k_sampler_advanced_estimate,
)
def k_sampler_advanced(
    context: Context,
    *,
    model: Model,
    add_noise: str,
    noise_seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Conditioning,
    negative: Conditioning,
    latent_image: Latent,
    start_at_step: int,
    end_at_step: int,
    return_with_leftover_noise: str,
) -> Work[tuple[Latent]]:
    """Runs a range of a sampler's steps, so that several nodes can share one schedule."""
    sigmas = context.sigmas(model, scheduler, steps, 1.0, sampler=sampler_name)
    part = sigmas[start_at_step : end_at_step + 1].clone()
    if len(part) < 2:
        return (latent_image,)
    if return_with_leftover_noise == "disable":
        part[-1] = 0
    latent, _ = yield from context.sample(
        model,
        latent_image,
        sampler=sampler_name,
        sigmas=part,
        steps=max(0, min(end_at_step, steps) - start_at_step),
        seed=noise_seed,
        positive=positive,
        negative=negative,
        cfg=cfg,
        adds_noise=add_noise == "enable",
    )
    return (latent,)
