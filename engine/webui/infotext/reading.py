"""Reads the text that a WebUI writes into a PNG, and makes the request of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

_NEGATIVE = "Negative prompt:"
_FIRST_SETTING = "Steps:"
_LEAST_SETTINGS = 3
"""Lines with fewer of them belong to a prompt."""
_NAME = re.compile(r"(?:^|[,\n])[^\S\n]*+([A-Z][\w /.-]{0,60}):[ \t]*")
_END = re.compile(r"[,\n]|\Z")
_DECODER = json.JSONDecoder()

_Place: TypeAlias = tuple[str, Callable[[str], Any]]


def _whole(text: str) -> int:
    return int(float(text))


def _is_true(text: str) -> bool:
    return text.strip().casefold() in ("true", "1")


def _sigma(text: str) -> float:
    """0 stands for no bound, which a number in JSON cannot be."""
    sigma = float(text)
    return 0.0 if math.isinf(sigma) else sigma


_MEMBERS: dict[str, _Place] = {
    "Steps": ("steps", _whole),
    "Sampler": ("sampler_name", str),
    "Schedule type": ("scheduler", str),
    "CFG scale": ("cfg_scale", float),
    "Distilled CFG Scale": ("distilled_cfg_scale", float),
    "Seed": ("seed", int),
    "Model": ("sd_model_checkpoint", str),
    "Clip skip": ("clip_skip", _whole),
    "Eta": ("eta", float),
    "Denoising strength": ("denoising_strength", float),
    "Hires upscale": ("hr_scale", float),
    "Hires steps": ("hr_second_pass_steps", _whole),
    "Hires upscaler": ("hr_upscaler", str),
    "Hires sampler": ("hr_sampler_name", str),
    "Hires schedule type": ("hr_scheduler", str),
    "Hires checkpoint": ("hr_checkpoint_name", str),
    "Hires prompt": ("hr_prompt", str),
    "Hires negative prompt": ("hr_negative_prompt", str),
    "Variation seed": ("subseed", int),
    "Variation seed strength": ("subseed_strength", float),
    "Tiling": ("tiling", _is_true),
    "Refiner": ("refiner_checkpoint", str),
    "Refiner switch at": ("refiner_switch_at", float),
    "Sigma churn": ("s_churn", float),
    "Sigma tmin": ("s_tmin", float),
    "Sigma tmax": ("s_tmax", _sigma),
    "Sigma noise": ("s_noise", float),
    "NGMS": ("s_min_uncond", float),
}
"""The members of a request by their names in the text."""
_OVERRIDES: dict[str, _Place] = {
    "ENSD": ("eta_noise_seed_delta", int),
    "VAE": ("sd_vae", str),
    "SGM noise multiplier": ("sgm_noise_multiplier", _is_true),
    "Discard timestep fractions": ("enable_quantization", _is_true),
    "Emphasis": ("emphasis", str),
}
_SIZES = {
    "Size": ("width", "height"),
    "Hires resize": ("hr_resize_x", "hr_resize_y"),
    "Seed resize from": ("seed_resize_from_w", "seed_resize_from_h"),
}
_HIRES = ("Hires upscale", "Hires resize", "Hires upscaler")


@dataclass(frozen=True, slots=True)
class ReadInfotext:
    """A request, and the settings of the text that have no member in it."""

    request: dict[str, Any]
    left_out: Mapping[str, str]


def read_infotext(text: str) -> ReadInfotext:
    """The request that the text describes. Raises ValueError for a setting that is no number."""
    texts, settings = split_infotext(text)
    prompt, _, negative = texts.partition(_NEGATIVE)
    request: dict[str, Any] = {
        "compatibility": "webui",
        "prompt": prompt.strip(),
        "negative_prompt": negative.strip(),
    }
    overrides: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, value in settings.items():
        if name in _SIZES:
            sides = (_whole(side) for side in value.split("x"))
            request |= dict(zip(_SIZES[name], sides, strict=True))
        elif name in _OVERRIDES:
            member, convert = _OVERRIDES[name]
            overrides[member] = convert(value)
        elif name in _MEMBERS:
            member, convert = _MEMBERS[name]
            request[member] = convert(value)
        else:
            left_out[name] = value
    if any(name in settings for name in _HIRES):
        request["enable_hr"] = True
    if overrides:
        request["override_settings"] = overrides
    return ReadInfotext(request, left_out)


def split_infotext(text: str) -> tuple[str, dict[str, str]]:
    """The prompts, and the settings behind them, which some programs break into lines."""
    lines = text.strip().splitlines()
    starts = (place for place, line in enumerate(lines) if line.startswith(_FIRST_SETTING))
    start = max(starts, default=len(lines) - 1)
    settings = dict(_settings("\n".join(lines[start:])))
    if len(settings) < _LEAST_SETTINGS:
        return text, {}
    return "\n".join(lines[:start]), settings


def _settings(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while found := _NAME.search(text, place):
        value, place = _value_at(text, found.end())
        yield found[1], value


def _value_at(text: str, start: int) -> tuple[str, int]:
    """A value, which may be JSON, and where it ends."""
    if text.startswith(('"', "{", "["), start):
        with suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(text, start)
            return value if isinstance(value, str) else text[start:end], end
    end = _END.search(text, start).start()  # type: ignore[union-attr]  # the end is always found
    return text[start:end].strip(), end
