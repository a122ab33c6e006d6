"""Nodes that work as the WebUI does, where it differs from ComfyUI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph.cost import ConditioningShape, Estimate, text_tokens
from engine.graph.declarations import Choice, Int, Link, String, node
from engine.nodes.latent import latent_upscale
from engine.nodes.sampling import k_sampler, require_schedule, schedule_work
from engine.nodes.text import encoding_estimate
from engine.webui.prompt import Part, read_negative_prompt, read_prompt
from engine.webui.prompt_numbers import PromptInvalid

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip

_METHODS = Choice(
    (
        "bilinear",
        "bilinear antialiased",
        "bicubic",
        "bicubic antialiased",
        "nearest",
        "nearest-exact",
    )
)
_SCHEDULE = ("steps", "sampler_name", "scheduler", "denoise")


def _check(literals: Mapping[str, Any]) -> None:
    require_schedule(literals)
    counted = {"steps": literals["steps"], "steps_before": literals["steps_before"]}
    for name, read in (("text", read_prompt), ("negative_text", read_negative_prompt)):
        try:
            read(literals[name], **counted)
        except PromptInvalid as error:
            raise PromptInvalid(f"{name}: {error}") from error


def _encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    counted = {"steps": inputs["steps"], "steps_before": inputs["steps_before"]}
    parts = read_prompt(inputs["text"], **counted)
    negative = _conditioning(read_negative_prompt(inputs["negative_text"], **counted))
    positive = _conditioning(parts)
    if sum(part.weight for part in parts) != 1.0:
        positive = positive.combined(negative)
    encoded = [encoding_estimate(each) for each in (positive, negative)]
    return Estimate(
        (positive, negative), work=sum(each.work for each in encoded) + schedule_work(inputs)
    )


def _conditioning(parts: Sequence[Part]) -> ConditioningShape:
    """The conditioning of the texts that AND joins. Of its stretches the model gets one a step."""
    tokens = [
        sum(text_tokens("".join(words for words, _ in section)) for section in stretch.sections)
        for part in parts
        for stretch in part.stretches
    ]
    return ConditioningShape(rows=len(parts), tokens=max(tokens), texts=len(tokens))


@node(
    "WebUITextEncode",
    inputs={
        "clip": Link("CLIP"),
        "model": Link("MODEL", tooltip="The model that is to be guided."),
        "text": String(multiline=True, tooltip="What the image should show."),
        "negative_text": String(multiline=True, tooltip="What it should not show."),
        **{name: k_sampler.inputs[name] for name in _SCHEDULE},
        "steps_before": Int(
            0, min=0, max=10_000, tooltip="Steps of an earlier pass, which [a:b:step] counts too."
        ),
    },
    outputs=("CONDITIONING", "CONDITIONING"),
    category="darkroom",
    display_name="WebUI Text Encode",
    check=_check,
    estimate=_encode_estimate,
)
def webui_text_encode(
    context: Context,
    *,
    clip: Clip,
    model: Model,
    text: str,
    negative_text: str,
    steps: int,
    steps_before: int,
    sampler_name: str,
    scheduler: str,
    denoise: float,
) -> Work[tuple[Conditioning, Conditioning]]:
    """Encodes a prompt and a negative prompt in the WebUI's syntax and with its weights.

    The schedule must be that of the sampler that the two go to.
    """
    counted = {"steps": steps, "steps_before": steps_before}
    return (
        yield from context.encode_webui(
            clip,
            read_prompt(text, **counted),
            read_negative_prompt(negative_text, **counted),
            sigmas=context.sigmas(model, scheduler, steps, denoise, sampler=sampler_name),
        )
    )


@node(
    "WebUISampler",
    inputs={
        **k_sampler.inputs,
        "eta_noise_seed_delta": Int(
            0, min=0, max=2**32 - 1, tooltip="How far the seed of the noise in steps is from seed."
        ),
    },
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Sampler",
    steps_input="steps",
    estimate=k_sampler.estimate,
    check=k_sampler.check,
)
def webui_sampler(
    context: Context, eta_noise_seed_delta: int, **inputs: Any
) -> Work[tuple[Latent]]:
    """Denoises a latent; the noise that the sampler adds on its way has a seed of its own."""
    latents: tuple[Latent] = yield from k_sampler.body(
        context, **inputs, step_seed_offset=eta_noise_seed_delta
    )
    return latents


@node(
    "WebUILatentUpscale",
    inputs={**latent_upscale.inputs, "upscale_method": _METHODS},
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Upscale",
    pixel_inputs=latent_upscale.pixel_inputs,
    estimate=latent_upscale.estimate,
)
def webui_latent_upscale(context: Context, **inputs: Any) -> tuple[Latent]:
    """Brings latents to the size of images of `width` x `height` pixels, by the WebUI's methods."""
    latents: tuple[Latent] = latent_upscale.body(context, **inputs)
    return latents
