"""The node that encodes texts as the WebUI does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from engine.batcher import Work
from engine.graph.cost import ConditioningShape, Estimate, model_shape, text_tokens
from engine.graph.declarations import Boolean, Choice, Float, Input, Int, Link, String, node
from engine.nodes.samplers.sampling import STEPS, k_sampler, require_schedule, schedule_work
from engine.nodes.text import encoding_estimate
from engine.nodes.webui.sampler import SAMPLERS, SCHEDULERS, TAKEN_STEPS
from engine.webui.prompt import Part, read_negative_prompt, read_prompt
from engine.webui.prompt_numbers import PromptInvalid
from engine.webui.values import Emphasis

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip

_SCHEDULE: dict[str, Input] = {
    "steps": STEPS,
    "sampler_name": SAMPLERS,
    "scheduler": SCHEDULERS,
    "denoise": k_sampler.inputs["denoise"],
}


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
    clip = model_shape(inputs["clip"])
    encoded = [encoding_estimate(each, clip) for each in (positive, negative)]
    return Estimate(
        tuple(each.shapes[0] for each in encoded),
        work=sum(each.work for each in encoded) + schedule_work(inputs),
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
        **_SCHEDULE,
        "steps_before": Int(
            0, min=0, max=10_000, tooltip="Steps of an earlier pass, which [a:b:step] counts too."
        ),
    },
    optional={
        "pads_texts": Boolean(
            False, tooltip="Texts that follow one another, or guide together, are of one length."
        ),
        "zeroes_empty_negative": Boolean(
            False, tooltip="SDXL gets zeros for an empty negative text."
        ),
        "makes_plain": Boolean(
            False, tooltip="Typographic and full-width characters become plain ones."
        ),
        "taken_steps": TAKEN_STEPS,
        "emphasis": Choice(get_args(Emphasis), tooltip="Whether weights keep the mean of a chunk."),
        "guidance": Float(
            0.0, min=0.0, max=100.0, tooltip="The scale that Flux.1 is told; 0: what is usual."
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
    taken_steps: int = 0,
    guidance: float = 0.0,
    **options: Any,
) -> Work[tuple[Conditioning, Conditioning]]:
    """Encodes a prompt and a negative prompt in the WebUI's syntax and with its weights.

    The schedule must be that of the sampler that the two go to.
    """
    from engine.diffusion.text.webui import TextOptions

    counted = {"steps": steps, "steps_before": steps_before}
    sigmas = context.sigmas(
        model, scheduler, steps, denoise, sampler=sampler_name, taken=taken_steps
    )
    positive, negative = yield from context.encode_webui(
        clip,
        read_prompt(text, **counted),
        read_negative_prompt(negative_text, **counted),
        sigmas=sigmas,
        options=TextOptions(**options),
    )
    return _told(positive, guidance), _told(negative, guidance)


def _told(conditioning: Conditioning, guidance: float) -> Conditioning:
    if not guidance:
        return conditioning
    return tuple(replace(each, guidance=guidance) for each in conditioning)
