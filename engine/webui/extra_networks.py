"""`<lora:name:weight>` in a prompt: what the WebUI calls extra networks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

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


def split_networks(
    prompt: str, find: Callable[[str], str], *, skips_unknown: bool = False
) -> tuple[str, tuple[Lora, ...]]:
    """The prompt without its extra networks, and these. `find` gives the listed name of a LoRA.

    Raises PromptInvalid if a network is malformed, and unless those are skipped, if it is unknown
    or not a LoRA.
    """
    found = list(_NETWORK.finditer(prompt))
    if len(found) > _MAX_LORAS:
        raise PromptInvalid(f"it names {len(found)} LoRAs, at most {_MAX_LORAS} are taken")
    loras: list[Lora] = []
    for match in found:
        try:
            loras.append(_lora(match, find))
        except _Unknown:
            if not skips_unknown:
                raise
    return _NETWORK.sub("", prompt), tuple(loras)


class _Unknown(PromptInvalid):
    """There is no network of that kind or name."""


def _lora(match: re.Match[str], find: Callable[[str], str]) -> Lora:
    """Parse `name`, `name:strength` or `name:text encoder strength:model strength`.

    `te=` and `unet=` before a number name the strength that it is.
    """
    kind, content = match.groups()
    shown = match[0][:80]
    if kind not in ("lora", "lyco"):
        raise _Unknown(f"{shown} is not supported, only <lora:name:weight> is")
    asked, *strengths = content.split(":")
    try:
        name = find(asked.strip())
    except ValueError as error:
        raise _Unknown(f"{shown}: the LoRA {error}") from None
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
