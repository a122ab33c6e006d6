"""Writes and reads the text that the WebUI stores in an image as `parameters`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeAlias

from engine.errors import ParametersInvalid
from engine.graph import names
from engine.graph.models_folder import ModelsFolder
from engine.webui.compiler import Compiled
from engine.webui.model_names import NO_HASHES, NetworkHashes, network_hashes
from engine.webui.parameters import DiffusionParameters, parse_parameters
from engine.webui.passes import Pass
from engine.webui.sampler_names import SAMPLER_OF, SCHEDULER_OF, noise_options

_SEED, _VARIATION_SEED = "Seed", "Variation seed"
_SEPARATORS = (",", ":", "\n")
_NO_SEPARATORS = str.maketrans("", "", ",:")


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """The settings that describe a compiled request, in the order of the text."""

    settings: tuple[tuple[str, str], ...]
    """The names and values of the settings of the first image."""
    seeds: tuple[int, ...]
    variation_seeds: tuple[int, ...] = ()
    """The variation seed of each image, if the request varies its images."""

    def describe(
        self,
        request: Mapping[str, Any],
        graph: Mapping[str, Any],
        models: ModelsFolder | None,
        version: str,
    ) -> Callable[[int], str]:
        """Return a function that takes the index of an image and returns the text of that image.

        `graph` is the compiled graph of the `request`, and `version` is the version of Darkroom.
        Without `models`, the texts have no hashes.
        """
        inputs = [node["inputs"] for node in graph.values()]
        loras = {each["lora_name"] for each in inputs if "lora_name" in each}
        names = ("text", "negative_text")
        texts = {each[name] for each in inputs for name in names if name in each}
        hashes = network_hashes(models, loras, texts) if models else NO_HASHES
        prompts = request.get("prompt", ""), request.get("negative_prompt", "")
        return lambda index: infotext(prompts, self, index, version, hashes=hashes)


def image_settings(parameters: DiffusionParameters, compiled: Compiled) -> ImageSettings:
    first = compiled.passes[0]
    settings = {
        "Steps": first.steps,
        "Sampler": SAMPLER_OF[first.sampler].label,
        "Schedule type": _schedule_label(parameters, first, parameters.sampler_name),
        "CFG scale": f"{parameters.cfg_scale:g}",
        "Distilled CFG Scale": _number(parameters.distilled_cfg_scale or None),
        _SEED: compiled.seeds[0],
        "Size": f"{first.width}x{first.height}",
        "Model": _stem(first.checkpoint),
        "VAE": first.vae,
        **_start(parameters, first),
        **_second_pass(parameters, compiled.passes),
        "Clip skip": parameters.stops_at_layer if parameters.stops_at_layer > 1 else None,
        "ENSD": parameters.override_settings.eta_noise_seed_delta or None,
        **(_webui_settings(parameters, compiled) if _is_webui(parameters) else {}),
    }
    images = range(len(compiled.seeds))
    return ImageSettings(
        tuple([(name, str(value)) for name, value in settings.items() if value is not None]),
        compiled.seeds,
        tuple(map(parameters.subseed_of, images)) if _VARIATION_SEED in settings else (),
    )


def infotext(
    prompts: tuple[str, str],
    described: ImageSettings,
    index: int,
    version: str,
    *,
    hashes: NetworkHashes = NO_HASHES,
) -> str:
    """Return the text of one image.

    `prompts` are the prompt and the negative prompt of the request. `version` is the version of
    Darkroom.
    """
    prompt, negative_prompt = prompts
    settings: dict[str, str] = {**dict(described.settings), _SEED: str(described.seeds[index])}
    if described.variation_seeds:
        settings[_VARIATION_SEED] = str(described.variation_seeds[index])
    if loras := _listed(hashes.loras):
        settings["Lora hashes"] = loras
    if embeddings := _listed(hashes.embeddings):
        settings["TI hashes"] = embeddings
    settings["Version"] = f"Darkroom {version}"
    return settings_text(prompt, negative_prompt, settings)


def settings_text(prompt: str, negative_prompt: str, settings: Mapping[str, str]) -> str:
    """Return the text of an image with these prompts and settings."""
    lines = [prompt]
    if negative_prompt:
        lines.append(f"Negative prompt: {negative_prompt}")
    shown = (f"{name}: {_quoted(value)}" for name, value in settings.items())
    return "\n".join([*lines, ", ".join(shown)]).strip()


def _start(parameters: DiffusionParameters, first: Pass) -> dict[str, Any]:
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
    is_other_sampler = (second.sampler, second.scheduler) != (first.sampler, first.scheduler)
    shows_schedule = parameters.hr_scheduler or (_is_webui(parameters) and is_other_sampler)
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
        if shows_schedule
        else None,
    }


def _is_webui(parameters: DiffusionParameters) -> bool:
    return parameters.compatibility == "webui"


def _listed(hashes: Mapping[str, str]) -> str | None:
    """Return names with hashes, without the separators of the list in the names."""
    shown = {name.translate(_NO_SEPARATORS): found for name, found in hashes.items()}
    return ", ".join(f"{name}: {found}" for name, found in shown.items()) or None


def _webui_settings(parameters: DiffusionParameters, compiled: Compiled) -> dict[str, Any]:
    """Return the settings that a WebUI needs to reproduce the image."""
    settings = parameters.override_settings
    size, refiner = parameters.noise_size, compiled.passes[-1].refiner
    samplers = [SAMPLER_OF[each.sampler] for each in compiled.passes]
    listed = {"s_min_uncond", *(name for each in samplers for name in noise_options(each))}
    return {
        **(_variation(parameters) if parameters.varies else {}),
        "Seed resize from": f"{size[0]}x{size[1]}" if size else None,
        "Tiling": True if parameters.tiling else None,
        "Refiner": _stem(refiner) if refiner else None,
        "Refiner switch at": f"{parameters.refiner_switch_at:g}" if refiner else None,
        **{
            name: f"{value:g}"
            for name, member, usual in (
                ("Sigma churn", "s_churn", 0.0),
                ("Sigma tmin", "s_tmin", 0.0),
                ("Sigma tmax", "s_tmax", 0.0),
                ("Sigma noise", "s_noise", 1.0),
                ("NGMS", "s_min_uncond", 0.0),
            )
            if member in listed and (value := getattr(parameters, member)) != usual
        },
        "Eta": _number(parameters.eta),
        "RNG": None if settings.randn_source == "GPU" else settings.randn_source,
        "SGM noise multiplier": True if settings.sgm_noise_multiplier else None,
        "Discard timestep fractions": True if settings.enable_quantization else None,
        "Emphasis": None if settings.emphasis == "Original" else settings.emphasis,
    }


def _variation(parameters: DiffusionParameters) -> dict[str, Any]:
    return {
        _VARIATION_SEED: parameters.subseed_of(0),
        "Variation seed strength": f"{parameters.subseed_strength:g}",
    }


def _schedule_label(
    parameters: DiffusionParameters, pass_: Pass, sampler: str, scheduler: str | None = None
) -> str:
    if _is_webui(parameters):
        return SCHEDULER_OF[pass_.scheduler].label
    _, joined = names.sampler(sampler)
    asked = names.scheduler(scheduler or parameters.scheduler) or joined
    return names.SCHEDULER_OF[asked].label if asked else names.AUTOMATIC


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


def _stem(name: str) -> str:
    return PurePosixPath(name).name.removesuffix(".safetensors")


def _quoted(text: str) -> str:
    """Return the text, or a JSON string of it if it contains a separator."""
    return json.dumps(text, ensure_ascii=False) if any(c in text for c in _SEPARATORS) else text


_NEGATIVE = "Negative prompt:"
_FIRST_SETTING = "Steps:"
_LEAST_SETTINGS = 3
"""The smallest number of settings in a text. Lines with fewer settings belong to a prompt."""
_NAME = re.compile(r"(?:^|[,\n])[^\S\n]*+([A-Z][\w /.-]{0,60}):[ \t]*")
_END = re.compile(r"[,\n]|\Z")
_DECODER = json.JSONDecoder()

_Member: TypeAlias = tuple[str, Callable[[str], Any]]


def _whole(text: str) -> int:
    return int(float(text))


def _is_true(text: str) -> bool:
    return text.strip().casefold() in ("true", "1")


def _vae(text: str) -> str:
    """Return the name of the VAE. Fooocus writes "Default (model)" for that of the checkpoint."""
    return "" if text == "Default (model)" else text


def _sigma(text: str) -> float:
    """Return the number, or 0 instead of infinity, which JSON does not have. 0 means no limit."""
    sigma = float(text)
    return 0.0 if math.isinf(sigma) else sigma


_MEMBERS: dict[str, _Member] = {
    "Steps": ("steps", _whole),
    "Sampler": ("sampler_name", str),
    "Schedule type": ("scheduler", str),
    "Sampler sigma": ("scheduler", str),
    "CFG scale": ("cfg_scale", float),
    "Distilled CFG Scale": ("distilled_cfg_scale", float),
    "Seed": ("seed", int),
    "Model": ("sd_model_checkpoint", str),
    "Clip skip": ("clip_skip", _whole),
    "Eta": ("eta", float),
    "Denoising strength": ("denoising_strength", float),
    "Hires strength": ("denoising_strength", float),
    "Hires upscale": ("hr_scale", float),
    "Hires scale": ("hr_scale", float),
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
"""The members of a request by their names in the text. SD.Next has some names of its own."""
_OVERRIDES: dict[str, _Member] = {
    "ENSD": ("eta_noise_seed_delta", int),
    "VAE": ("sd_vae", _vae),
    "SGM noise multiplier": ("sgm_noise_multiplier", _is_true),
    "Discard timestep fractions": ("enable_quantization", _is_true),
    "Emphasis": ("emphasis", str),
    "RNG": ("randn_source", str),
}
_SIZES = {
    "Size": ("width", "height"),
    "Hires resize": ("hr_resize_x", "hr_resize_y"),
    "Seed resize from": ("seed_resize_from_w", "seed_resize_from_h"),
}
_HIRES = ("Hires upscale", "Hires resize", "Hires upscaler")
_OF_SETTINGS = "override_settings."


@dataclass(frozen=True, slots=True)
class ReadInfotext:
    """A request, and the settings of the text that the request does not have.

    These are settings without a member, and settings with a value that no request may have.
    """

    request: dict[str, Any]
    left_out: Mapping[str, str]


def read_infotext(text: str) -> ReadInfotext:
    """Return the request that the text describes."""
    texts, settings = split_infotext(text)
    prompt, _, negative = texts.partition(_NEGATIVE)
    prompts = {"prompt": prompt.strip(), "negative_prompt": negative.strip()}
    read = {name: _members_of(name, value) for name, value in settings.items()}
    while wrong := _wrong_settings(_request(prompts, read), read):
        read |= {name: {} for name in wrong}
    left_out = {name: value for name, value in settings.items() if not read[name]}
    return ReadInfotext(_request(prompts, read), left_out)


def _members_of(setting: str, value: str) -> dict[str, Any]:
    """Return the members of a setting; none for an unknown setting or a wrong number.

    The name of an override setting begins with `override_settings.`.
    """
    with suppress(ValueError, OverflowError):
        if setting in _SIZES:
            return dict(zip(_SIZES[setting], map(_whole, value.split("x")), strict=True))
        if setting in _OVERRIDES:
            member, convert = _OVERRIDES[setting]
            return {f"{_OF_SETTINGS}{member}": convert(value)}
        if setting in _MEMBERS:
            member, convert = _MEMBERS[setting]
            return {member: convert(value)}
    return {}


def _request(prompts: Mapping[str, str], read: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    request: dict[str, Any] = {"compatibility": "webui", **prompts}
    overrides: dict[str, Any] = {}
    for members in read.values():
        for name, value in members.items():
            if name.startswith(_OF_SETTINGS):
                overrides[name.removeprefix(_OF_SETTINGS)] = value
            else:
                request[name] = value
    if any(read.get(name) for name in _HIRES):
        request["enable_hr"] = True
    if overrides:
        request["override_settings"] = overrides
    return request


def _wrong_settings(request: Any, read: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the settings whose values a request may not have."""
    try:
        parse_parameters(request)
    except ParametersInvalid as error:
        fields = {each.field for each in error.fields}
        return [name for name, members in read.items() if fields & members.keys()]
    return []


def split_infotext(text: str) -> tuple[str, dict[str, str]]:
    """Return the prompts, and the settings that follow on one or more lines."""
    lines = text.strip().splitlines()
    starts = (position for position, line in enumerate(lines) if line.startswith(_FIRST_SETTING))
    start = max(starts, default=len(lines) - 1)
    settings = dict(_settings("\n".join(lines[start:])))
    if len(settings) < _LEAST_SETTINGS:
        return text, {}
    return "\n".join(lines[:start]), settings


def _settings(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while found := _NAME.search(text, position):
        value, position = _value_at(text, found.end())
        yield found[1], value


def _value_at(text: str, start: int) -> tuple[str, int]:
    """Return the value at `start`, which may be JSON, and the position of its end."""
    if text.startswith(('"', "{", "["), start):
        with suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(text, start)
            return value if isinstance(value, str) else text[start:end], end
    end = _END.search(text, start).start()  # type: ignore[union-attr]  # the end is always found
    return text[start:end].strip(), end
