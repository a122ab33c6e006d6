"""The text that the WebUI writes into a PNG as `parameters`, for the tools that read it."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from engine.graph import names
from engine.webui.compiler import Compiled
from engine.webui.parameters import DiffusionParameters
from engine.webui.passes import Pass

_SEPARATORS = (",", ":", "\n")


def infotext(parameters: DiffusionParameters, compiled: Compiled, index: int, version: str) -> str:
    """The prompts and settings of one image. `version` is the version of Darkroom."""
    first = compiled.passes[0]
    settings = {
        "Steps": first.steps,
        "Sampler": names.SAMPLER_OF[first.sampler].label,
        "Schedule type": _schedule_label(parameters.sampler_name, parameters.scheduler),
        "CFG scale": f"{parameters.cfg_scale:g}",
        "Seed": compiled.seeds[index],
        "Size": f"{first.width}x{first.height}",
        "Model": _stem(first.checkpoint),
        "VAE": first.vae,
        **_second_pass(parameters, compiled.passes),
        "Clip skip": parameters.stops_at_layer if parameters.stops_at_layer > 1 else None,
        "ENSD": parameters.override_settings.eta_noise_seed_delta or None,
        "Version": f"Darkroom {version}",
    }
    lines = [parameters.prompt]
    if parameters.negative_prompt:
        lines.append(f"Negative prompt: {parameters.negative_prompt}")
    shown = (f"{name}: {_quoted(value)}" for name, value in settings.items() if value is not None)
    return "\n".join([*lines, ", ".join(shown)]).strip()


def _second_pass(parameters: DiffusionParameters, passes: tuple[Pass, ...]) -> dict[str, Any]:
    if len(passes) == 1:
        return {}
    first, second = passes
    is_resized = bool(parameters.hr_resize_x or parameters.hr_resize_y)
    resized = f"{parameters.hr_resize_x}x{parameters.hr_resize_y}"
    is_other_model = second.checkpoint != first.checkpoint
    sampler = names.SAMPLER_OF[second.sampler].label
    return {
        "Denoising strength": f"{parameters.denoising_strength:g}",
        "Hires prompt": parameters.hr_prompt or None,
        "Hires negative prompt": parameters.hr_negative_prompt or None,
        "Hires upscale": None if is_resized else f"{parameters.hr_scale:g}",
        "Hires resize": resized if is_resized else None,
        "Hires steps": parameters.hr_second_pass_steps or None,
        "Hires upscaler": parameters.hr_upscaler or "Latent",
        "Hires checkpoint": _stem(second.checkpoint) if is_other_model else None,
        "Hires sampler": sampler if second.sampler != first.sampler else None,
        "Hires schedule type": _schedule_label(second.sampler, parameters.hr_scheduler)
        if parameters.hr_scheduler
        else None,
    }


def _schedule_label(sampler: str, scheduler: str) -> str:
    """The label of the scheduler that was asked for; "Automatic" if the sampler chooses it."""
    _, joined = names.sampler(sampler)
    asked = names.scheduler(scheduler) or joined
    labels = {row.name: row.label for row in names.SCHEDULERS}
    return labels[asked] if asked else names.AUTOMATIC


def _stem(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".safetensors")


def _quoted(value: Any) -> str:
    """The value as text; as a JSON string if it contains a separator."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(c in text for c in _SEPARATORS) else text
