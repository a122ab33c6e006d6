"""Reads the generation texts of other programs, and writes them in the form of the WebUI.

These programs are NovelAI, Civitai, InvokeAI, Fooocus, Easy Diffusion, SwarmUI and ComfyUI. Forge
and SD.Next write the form of the WebUI themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any, TypeAlias

from PIL import Image
from PIL.ExifTags import IFD, Base

from engine.webui.graph_texts import GraphReader
from engine.webui.infotext import settings_text
from engine.webui.parameters import requests_nothing
from engine.webui.sampler_names import SAMPLER_OF, SCHEDULER_OF, sampler, scheduler

_PARAMETERS = "parameters"
_UNICODE, _ASCII = b"UNICODE\0", b"ASCII\0\0\0"
"""The bytes in front of a user comment in EXIF, which declare its encoding."""
_GRAPH_TAGS = (Base.ImageDescription, Base.Make, Base.Model)
"""The tags of EXIF in which ComfyUI stores its texts, as `prompt:{…}` and `workflow:{…}`."""
_Size: TypeAlias = tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class GenerationText:
    text: str
    """The text in the form of the WebUI; empty if there is none."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The values that `text` does not have, by their names in the original."""


def image_texts(image: Image.Image) -> dict[str, str]:
    """Return the texts in an open image, by name. The user comment in its EXIF is `parameters`."""
    found = {str(name): str(text) for name, text in image.info.items() if isinstance(text, str)}
    try:
        exif = _exif(image)
        comment = user_comment(image)
    except Exception:  # noqa: BLE001 - Pillow raises all kinds of errors for damaged EXIF data.
        return found
    for text in map(exif.get, _GRAPH_TAGS):
        name, _, graph = text.partition(":") if isinstance(text, str) else ("", "", "")
        if name.casefold() in ("prompt", "workflow"):
            found[name.casefold()] = graph.strip("\0")
    return {**found, _PARAMETERS: comment} if comment else found


def _exif(image: Image.Image) -> Image.Exif:
    """Return the EXIF data of an open image. Unlike `getexif`, this decodes no pixels."""
    exif = Image.Exif()
    exif.load(image.info.get("exif", b""))
    return exif


def user_comment(image: Image.Image) -> str | None:
    """Return the user comment in the EXIF of an open image, or the comment of a JPEG."""
    comment = _exif(image).get_ifd(IFD.Exif).get(Base.UserComment) or image.info.get("comment")
    if not isinstance(comment, bytes):
        return None
    if not comment.startswith(_UNICODE):
        return comment.removeprefix(_ASCII).decode("utf-8", "replace").strip("\0")
    text = comment.removeprefix(_UNICODE)
    is_little_endian = text[1::2].count(0) > text[::2].count(0)
    return text.decode("utf-16-le" if is_little_endian else "utf-16-be", "replace").strip("\0")


def generation_text(texts: Mapping[str, str], size: _Size = None) -> GenerationText:
    """Return the generation text among the texts of an image, in the form of the WebUI.

    A text of an unknown program is returned unchanged. `size` is the width and height of the image.
    It is used if the original has no size. Raises ValueError if a text is nested too deeply or has
    a number that is too large.
    """
    try:
        return _generation_text(texts, size)
    except (OverflowError, RecursionError) as error:
        raise ValueError("a text is nested too deeply or has too large a number") from error


def _generation_text(texts: Mapping[str, str], size: _Size) -> GenerationText:
    comment = _object(texts.get("Comment")) or {}
    if texts.get("Software") == "NovelAI" and "steps" in comment:
        described = texts.get("Description") or comment.get("prompt")
        return _of_novelai({**comment, "prompt": described}, size)
    written = texts.get(_PARAMETERS, "")
    if written and _object(written) is None:
        return _of_lines(written) or GenerationText(written)
    for name in (_PARAMETERS, "invokeai_metadata", "sd-metadata", "prompt"):
        data = _object(texts.get(name))
        if data and (found := _of_object(data, size)):
            return found
    if "Dream" in texts and (found := _of_dream(texts["Dream"])):
        return found
    if {_key(name) for name in texts} & _OF_EASY_DIFFUSION:
        return _of_members(texts, size)
    return GenerationText(written)


def _object(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object in a text, or None."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text or "")
        return found if isinstance(found, dict) else None
    return None


def _of_object(data: dict[str, Any], size: _Size) -> GenerationText | None:
    """Read a JSON object. Return None for an object of an unknown program."""
    extra = data.get("extra")
    for holder in (data, extra if isinstance(extra, dict) else {}):
        civitai = holder.get("extraMetadata")
        if isinstance(civitai, str) and (members := _object(civitai)):
            return _of_members(members, size)
    if isinstance(swarm := data.get("sui_image_params"), dict):
        return _of_members(swarm, size)
    inner = data.get("prompt")
    for graph in (data, _object(inner) if isinstance(inner, str) else inner):
        if isinstance(graph, dict) and _is_graph(graph):
            reader = GraphReader(graph)
            settings = reader.settings()
            return _written(settings, size, left_out=reader.unread())
    if isinstance(image := data.get("image"), dict):
        return _of_members({"model": data.get("model_weights"), **image}, size)
    if "uc" in data and "scale" in data:
        return _of_novelai(data, size)
    return _of_members(data, size) if {_key(name) for name in data} & _PROMPT_KEYS else None


def _is_graph(data: Mapping[str, Any]) -> bool:
    return any(isinstance(node, dict) and "class_type" in node for node in data.values())


_PROMPT, _NEGATIVE, _LORAS = "prompt", "negative prompt", "loras"
_SAMPLER, _SCHEDULE, _CLIP_SKIP, _SIZE = "Sampler", "Schedule type", "Clip skip", "Size"
_MODEL, _VAE, _REFINER = "Model", "VAE", "Refiner"
_SETTINGS = (
    *("Steps", _SAMPLER, _SCHEDULE, "CFG scale", "Distilled CFG Scale", "Seed", _SIZE, _MODEL),
    *(_VAE, _REFINER, "Refiner switch at", _CLIP_SKIP, "ENSD"),
)
"""The settings in the order of the text."""
_PROMPT_KEYS = {"prompt", "positiveprompt"}
_OF_EASY_DIFFUSION = {"numinferencesteps", "guidancescale"}
_SETTING_OF = {
    **dict.fromkeys(_PROMPT_KEYS, _PROMPT),
    **dict.fromkeys(("negativeprompt", "negative", "uc"), _NEGATIVE),
    **dict.fromkeys(("steps", "numinferencesteps"), "Steps"),
    **dict.fromkeys(("sampler", "samplername"), _SAMPLER),
    **dict.fromkeys(("scheduler", "schedulername", "noiseschedule"), _SCHEDULE),
    **dict.fromkeys(("cfgscale", "guidancescale", "scale", "cfg"), "CFG scale"),
    **dict.fromkeys(
        ("distilledguidancescale", "fluxguidancescale", "guidance"), "Distilled CFG Scale"
    ),
    "seed": "Seed",
    **dict.fromkeys(
        (
            *("model", "basemodel", "basemodelname"),
            *("usestablediffusionmodel", "stablediffusionmodel"),
        ),
        _MODEL,
    ),
    **dict.fromkeys(("vae", "usevaemodel", "vaemodel"), _VAE),
    "refinermodel": _REFINER,
    "refinerswitch": "Refiner switch at",
    **dict.fromkeys(("clipskip", "clipstopatlayer"), _CLIP_SKIP),
}
"""The settings by the keys of members."""
_SIZE_KEYS = {"width", "height", "resolution", "size"}
_LORA_KEYS = {
    *("loras", "loraweights", "useloramodel", "loramodel", "loraalpha", "lorastrength"),
    *(f"lora{joined}{number}" for joined in ("", "combined") for number in range(1, 10)),
}
_NO_FILE = ("default (model)", "default", "automatic")


def _key(name: str) -> str:
    """Return a key that is equal for `negative_prompt`, `negativePrompt` and `Negative Prompt`."""
    return re.sub(r"[ _-]", "", name.casefold())


def _of_members(data: Mapping[str, Any], size: _Size) -> GenerationText:
    """Read the members of a program that stores each value by its name."""
    members = {_key(name): value for name, value in data.items() if not requests_nothing(value)}
    found: dict[str, Any] = {}
    for key, value in members.items():
        if setting := _SETTING_OF.get(key):
            found.setdefault(setting, value)
    if _SAMPLER not in found and _SCHEDULE in found:  # InvokeAI calls a sampler a scheduler.
        found[_SAMPLER] = found.pop(_SCHEDULE)
    skipped = found.get(_CLIP_SKIP)
    if isinstance(skipped, int):  # SwarmUI counts from the end, InvokeAI counts skipped layers.
        found[_CLIP_SKIP] = abs(skipped) + ("positiveprompt" in members or skipped is True)
    loras = list(_loras(members))
    read = {*_SETTING_OF, *_SIZE_KEYS, *(_LORA_KEYS if loras else ())}
    left_out = {name: value for name, value in data.items() if _key(name) not in read}
    return _written({**found, _LORAS: loras}, _size(members) or size, left_out=left_out)


def _of_novelai(data: Mapping[str, Any], size: _Size) -> GenerationText:
    """Read the members of NovelAI, with the settings that the WebUI assumes for its models."""
    if data.get("noise_schedule") in ("native", None):
        data = {name: value for name, value in data.items() if name != "noise_schedule"}
    found = {_SETTING_OF.get(_key(name), ""): value for name, value in data.items()}
    known, _ = _sampler_labels(found.get(_SAMPLER))
    assumed = {_SAMPLER: known or "Euler a", _CLIP_SKIP: 2, "ENSD": 31337}
    read = {*_SETTING_OF, *(_SIZE_KEYS if size else ())}
    left_out = {name: value for name, value in data.items() if _key(name) not in read}
    if not known:
        left_out["sampler"] = found.get(_SAMPLER)
    return _written({**found, **assumed}, size or _size(data), left_out=left_out)


def _of_lines(text: str) -> GenerationText | None:
    """Read the text file of Easy Diffusion, which has a member on each line."""
    lines = (line.partition(":") for line in text.splitlines())
    members = {name: value.strip() for name, _, value in lines if value}
    is_read = {"prompt", "guidancescale"} <= {_key(name) for name in members}
    return _of_members(members, None) if is_read else None


_DREAM = re.compile(r'"(?P<prompt>.*)"(?P<flags>[^"]*)', re.DOTALL)
_FLAG = re.compile(r"-(\w) ?(\S+)")
_MEMBER_OF_FLAG = {
    "s": "steps",
    "S": "seed",
    "W": "width",
    "H": "height",
    "C": "cfg_scale",
    "A": "sampler",
}


def _of_dream(text: str) -> GenerationText | None:
    """Read the command that early versions of InvokeAI stored."""
    if (found := _DREAM.match(text)) is None:
        return None
    flags = dict(_FLAG.findall(found["flags"]))
    members = {_MEMBER_OF_FLAG.get(flag, f"-{flag}"): value for flag, value in flags.items()}
    return _of_members({"prompt": [{"prompt": found["prompt"]}], **members}, None)


def _loras(members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the weight of each LoRA."""
    listed = _listed(members.get("loras", members.get("useloramodel", members.get("loramodel"))))
    weights = _listed(
        members.get("loraweights", members.get("loraalpha", members.get("lorastrength")))
    )
    for position, lora in enumerate(listed):
        model, weight = lora, weights[position] if position < len(weights) else 1
        if isinstance(lora, list) and len(lora) > 1:
            model, weight = lora[:2]
        elif isinstance(lora, dict):
            model, weight = lora.get("model") or lora.get("lora"), lora.get("weight", 1)
        if (name := _stem(_file_name(model))) and isinstance(weight, str | int | float):
            yield name, weight
    for key in sorted(members.keys() & _LORA_KEYS) if not listed else ():
        if isinstance(text := members[key], str) and " : " in text:
            name, _, weight = text.rpartition(" : ")
            yield _stem(name) or name, weight


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _size(members: Mapping[str, Any]) -> _Size:
    """Return the width and height; None if they are not two numbers."""
    sides: list[Any] = [members.get("width"), members.get("height")]
    if joined := members.get("resolution", members.get("size")):
        sides = re.findall(r"\d+", str(joined))
    with suppress(TypeError, ValueError):
        width, height = map(int, sides)
        return width, height
    return None


def _written(
    found: Mapping[str, Any], size: _Size, *, left_out: Mapping[str, Any]
) -> GenerationText:
    """Write the settings that were found. Those without a usable value are left out, too."""
    settings: dict[str, Any] = {}
    others = dict(left_out)
    own_size = size and f"{size[0]}x{size[1]}"
    for name, value in {**found, _SIZE: found.get(_SIZE) or own_size}.items():
        if name not in _SETTINGS or requests_nothing(value):
            continue
        shown = _stem(_file_name(value)) if name in (_MODEL, _REFINER) else value
        shown = _file_name(value) if name == _VAE else shown
        if isinstance(shown, str | int | float):
            settings[name] = str(shown)
        elif shown is not None:
            others[name] = value
    label, joined = _sampler_labels(settings.get(_SAMPLER))
    schedule = _schedule_label(settings.get(_SCHEDULE)) or joined
    settings |= {_SAMPLER: label} if label else {}
    settings |= {_SCHEDULE: schedule} if schedule else {}
    prompt, negative = _prompts(found.get(_PROMPT), found.get(_NEGATIVE))
    tags = [f"<lora:{name}:{weight}>" for name, weight in found.get(_LORAS, ())]
    ordered = {name: settings[name] for name in _SETTINGS if settings.get(name)}
    text = settings_text(" ".join([prompt, *tags]).strip(), negative, ordered)
    shown_others = {str(k): str(v) for k, v in others.items() if not requests_nothing(v)}
    return GenerationText(text, shown_others)


def _prompts(prompt: Any, negative: Any) -> tuple[str, str]:
    """Return both prompts. Early versions of InvokeAI have the negative prompt in brackets."""
    if isinstance(prompt, list):
        parts = [part.get("prompt") if isinstance(part, dict) else part for part in prompt]
        joined = " ".join(part for part in parts if isinstance(part, str))
        in_brackets = ", ".join(re.findall(r"\[([^\[\]]*)\]", joined))
        # A run of spaces is read from its first space only. From each space it would take long.
        prompt = re.sub(r"(?<!\s)\s*+\[[^\[\]]*\]", "", joined)
        negative = negative or in_brackets
    texts = [text if isinstance(text, str) else "" for text in (prompt, negative)]
    return texts[0], texts[1]


def _file_name(value: Any) -> str | None:
    """Return the name of a model, which may be in an object; None if it is not a file."""
    if isinstance(value, dict):
        value = value.get("name") or value.get("model_name")
    if not isinstance(value, str) or requests_nothing(value) or value.casefold() in _NO_FILE:
        return None
    return PureWindowsPath(value).name


def _stem(name: str | None) -> str | None:
    return name and re.sub(r"\.(safetensors|ckpt|pt|pth|sft|gguf)$", "", name)


_OTHER_SAMPLERS = {
    "kdpm_2": "dpm_2",
    "kdpm_2_a": "dpm_2_ancestral",
    "dpmpp_2s": "dpmpp_2s_ancestral",
    "ddim_v3": "ddim",
}
"""The names of samplers in other programs that differ from those of the WebUI and ComfyUI."""


def _sampler_labels(spelling: Any) -> tuple[str | None, str | None]:
    """Return the labels of the sampler and of the schedule that its name contains, if any.

    InvokeAI marks the Karras schedule by `_k`, and ComfyUI marks noise of the device by `_gpu`.
    """
    text = str(spelling)
    is_karras = text.endswith("_k")
    short = text.removesuffix("_k").removesuffix("_gpu").removeprefix("k_")
    spaced = short.replace("_", " ")
    for name in (text, short, f"k_{short}", spaced, _OTHER_SAMPLERS.get(short, "")):
        with suppress(ValueError):
            known, joined = sampler(name)
            joined = "karras" if is_karras else joined
            return SAMPLER_OF[known].label, joined and SCHEDULER_OF[joined].label
    return None, None


def _schedule_label(spelling: str | None) -> str | None:
    with suppress(ValueError):
        if spelling and (known := scheduler(spelling)):
            return SCHEDULER_OF[known].label
    return spelling
