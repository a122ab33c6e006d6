"""`<lora:name:weight>` in a prompt: what the WebUI calls extra networks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.webui.model_names import listed_name
from engine.webui.prompt_numbers import PromptInvalid, number_of

_NETWORK = re.compile(r"<(\w++):([^<>]++)>")
_MAX_LORAS = 16
_MAX_STRENGTH = 100.0
_STRENGTH_NAMES = ("te", "unet")


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA by its listed name, and its strengths for the model and for the text encoder."""

    name: str
    strength_model: float
    strength_clip: float


def split_networks(prompt: str, known: Sequence[str]) -> tuple[str, tuple[Lora, ...]]:
    """The prompt without its extra networks, and these. `known` are the listed LoRAs.

    Raises PromptInvalid if a network is unknown, malformed or not a LoRA.
    """
    found = list(_NETWORK.finditer(prompt))
    if len(found) > _MAX_LORAS:
        raise PromptInvalid(f"it names {len(found)} LoRAs, at most {_MAX_LORAS} are taken")
    return _NETWORK.sub("", prompt), tuple(_lora(match, known) for match in found)


def _lora(match: re.Match[str], known: Sequence[str]) -> Lora:
    """Parse `name`, `name:strength` or `name:text encoder strength:model strength`.

    `te=` and `unet=` before a number name the strength that it is.
    """
    kind, content = match.groups()
    shown = match[0][:80]
    if kind not in ("lora", "lyco"):
        raise PromptInvalid(f"{shown} is not supported, only <lora:name:weight> is")
    asked, *strengths = content.split(":")
    try:
        name = listed_name(asked.strip(), known)
    except ValueError as error:
        raise PromptInvalid(f"{shown}: the LoRA {error}") from None
    given: dict[str, float] = {}
    for place, strength in enumerate(strengths):
        key, is_named, number = strength.rpartition("=")
        key = key.strip() if is_named else next(iter(_STRENGTH_NAMES[place : place + 1]), "")
        if key not in _STRENGTH_NAMES:
            raise PromptInvalid(f"{shown}: {strength[:40]!r} is not understood")
        given[key] = _strength(number, shown)
    clip = given.get("te", 1.0)
    return Lora(name, given.get("unet", clip), clip)


def _strength(number: str, shown: str) -> float:
    try:
        strength = number_of(number)
    except PromptInvalid as error:
        raise PromptInvalid(f"{shown}: {error}") from None
    if not abs(strength) <= _MAX_STRENGTH:
        raise PromptInvalid(f"{shown}: a weight is beyond {_MAX_STRENGTH:g}")
    return strength
