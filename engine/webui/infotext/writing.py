"""The text that the WebUI writes into a PNG as `parameters`, for the tools that read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from engine.graph import names
from engine.webui.compiler import Compiled
from engine.webui.infotext.hashes import NO_HASHES, NetworkHashes
from engine.webui.parameters import DiffusionParameters
from engine.webui.passes import Pass
from engine.webui.sampler_names import SAMPLER_OF, SCHEDULER_OF

_SEPARATORS = (",", ":", "\n")


def infotext(
    parameters: DiffusionParameters,
    compiled: Compiled,
    index: int,
    version: str,
    *,
    hashes: NetworkHashes = NO_HASHES,
) -> str:
    """The prompts and settings of one image. `version` is the version of Darkroom."""
    first = compiled.passes[0]
    settings = {
        "Steps": first.steps,
        "Sampler": SAMPLER_OF[first.sampler].label,
        "Schedule type": _schedule_label(parameters, first, parameters.sampler_name),
        "CFG scale": f"{parameters.cfg_scale:g}",
        "Distilled CFG Scale": _number(parameters.distilled_cfg_scale or None),
        "Seed": compiled.seeds[index],
        "Size": f"{first.width}x{first.height}",
        "Model": _stem(first.checkpoint),
        "VAE": first.vae,
        **_start(parameters, first),
        **_second_pass(parameters, compiled.passes),
        "Clip skip": parameters.stops_at_layer if parameters.stops_at_layer > 1 else None,
        "ENSD": parameters.override_settings.eta_noise_seed_delta or None,
        **(_webui_settings(parameters, compiled, index) if _is_webui(parameters) else {}),
        "Lora hashes": _listed(hashes.loras),
        "TI hashes": _listed(hashes.embeddings),
        "Version": f"Darkroom {version}",
    }
    lines = [parameters.prompt]
    if parameters.negative_prompt:
        lines.append(f"Negative prompt: {parameters.negative_prompt}")
    shown = (f"{name}: {_quoted(value)}" for name, value in settings.items() if value is not None)
    return "\n".join([*lines, ", ".join(shown)]).strip()


def _start(parameters: DiffusionParameters, first: Pass) -> dict[str, Any]:
    """What is said of img2img and inpainting."""
    if not first.is_from_images:
        return {}
    found: dict[str, Any] = {"Denoising strength": f"{parameters.denoising_strength:g}"}
    if parameters.noise_multiplier != 1.0:
        found["Noise multiplier"] = f"{parameters.noise_multiplier:g}"
    if parameters.mask is None or not _is_webui(parameters):
        return found
    across, down = parameters.blurs
    only_masked, content = parameters.is_only_masked, parameters.masked_content
    return found | {
        "Mask mode": "Inpaint not masked" if parameters.inpainting_mask_invert else None,
        "Mask blur": (across if across == down else f"{across}x{down}") if across or down else None,
        "Inpaint area": "Only masked" if only_masked else None,
        "Masked area padding": parameters.inpaint_full_res_padding if only_masked else None,
        "Masked content": None if content == "original" else content,
    }


def _second_pass(parameters: DiffusionParameters, passes: tuple[Pass, ...]) -> dict[str, Any]:
    if len(passes) == 1:
        return {}
    first, second = passes
    is_resized = bool(parameters.hr_resize_x or parameters.hr_resize_y)
    resized = f"{parameters.hr_resize_x}x{parameters.hr_resize_y}"
    is_other_model = second.checkpoint != first.checkpoint
    sampler = SAMPLER_OF[second.sampler].label
    is_other_way = (second.sampler, second.scheduler) != (first.sampler, first.scheduler)
    is_told = parameters.hr_scheduler or (_is_webui(parameters) and is_other_way)
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
        "Hires schedule type": _schedule_label(
            parameters, second, second.sampler, parameters.hr_scheduler
        )
        if is_told
        else None,
    }


def _is_webui(parameters: DiffusionParameters) -> bool:
    return parameters.compatibility == "webui"


def _listed(hashes: Mapping[str, str]) -> str | None:
    return ", ".join(f"{name}: {found}" for name, found in hashes.items()) or None


def _webui_settings(
    parameters: DiffusionParameters, compiled: Compiled, index: int
) -> dict[str, Any]:
    """What a WebUI must be told that it makes the same picture."""
    settings = parameters.override_settings
    size, refiner = parameters.noise_size, compiled.passes[-1].refiner
    return {
        **(_variation(parameters, index) if parameters.varies else {}),
        "Seed resize from": f"{size[0]}x{size[1]}" if size else None,
        "Tiling": True if parameters.tiling else None,
        "Refiner": _stem(refiner) if refiner else None,
        "Refiner switch at": f"{parameters.refiner_switch_at:g}" if refiner else None,
        **{
            name: f"{value:g}"
            for name, value, usual in (
                ("Sigma churn", parameters.s_churn, 0.0),
                ("Sigma tmin", parameters.s_tmin, 0.0),
                ("Sigma tmax", parameters.s_tmax, 0.0),
                ("Sigma noise", parameters.s_noise, 1.0),
                ("NGMS", parameters.s_min_uncond, 0.0),
            )
            if value != usual
        },
        "Eta": _number(parameters.eta),
        "RNG": "CPU",
        "SGM noise multiplier": True if settings.sgm_noise_multiplier else None,
        "Discard timestep fractions": True if settings.enable_quantization else None,
        "Emphasis": None if settings.emphasis == "Original" else settings.emphasis,
    }


def _variation(parameters: DiffusionParameters, index: int) -> dict[str, Any]:
    return {
        "Variation seed": parameters.subseed_of(index),
        "Variation seed strength": f"{parameters.subseed_strength:g}",
    }


def _schedule_label(
    parameters: DiffusionParameters, pass_: Pass, sampler: str, scheduler: str | None = None
) -> str:
    """The label of the scheduler; "Automatic" in ComfyUI's sense where the sampler chooses it."""
    if _is_webui(parameters):
        return SCHEDULER_OF[pass_.scheduler].label
    _, joined = names.sampler(sampler)
    asked = names.scheduler(scheduler or parameters.scheduler) or joined
    return names.SCHEDULER_OF[asked].label if asked else names.AUTOMATIC


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _stem(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".safetensors")


def _quoted(value: Any) -> str:
    """The value as text; as a JSON string if it contains a separator."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(c in text for c in _SEPARATORS) else text
