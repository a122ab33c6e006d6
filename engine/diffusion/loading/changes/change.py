"""What a file has for one of its layers, told by the names of its tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from torch import Tensor

from engine.diffusion.loading.changes.kinds import (
    BIASES,
    KINDS,
    LORA,
    MAGNITUDE,
    Kind,
    Tensors,
    given,
    with_magnitude,
)

Part: TypeAlias = Literal["weight", "bias"]
_MATRIX = re.compile(
    r"[._](?:lora\.|lora_linear_layer\.|lora_)(down|up|mid|A|B)(?:\.default)?(?:\.weight)?$"
)
_MATRICES = {"A": "down", "B": "up"}
_OTHERS = {"alpha", MAGNITUDE, *BIASES}.union(*(kind.tensors - LORA.tensors for kind in KINDS))
_OTHER = re.compile(rf"\.({'|'.join(sorted(_OTHERS))})$")
_PEFT_MAGNITUDE = re.compile(r"\.lora_magnitude_vector(?:\.default)?(?:\.weight)?$")
_OLD_ATTENTION = re.compile(r"\.processor\.to_(q|k|v|out)$")


@dataclass(frozen=True, slots=True)
class Change:
    """The keys of a layer's tensors, by the names of `kinds`."""

    layer: str
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Kind | None:
        """How it changes the weight; None if it does not."""
        return next((each for each in KINDS if each.tensors & self.keys.keys()), None)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What it changes."""
        has_bias = not self.keys.keys().isdisjoint(BIASES)
        return (*(("weight",) if self.kind else ()), *(("bias",) if has_bias else ()))

    @property
    def missing(self) -> set[str]:
        """The tensors without which the others are of no use."""
        found = self.kind
        lacks = [each - self.keys.keys() for each in found.sets] if found else []
        return set(min(lacks, key=len, default=()))

    @property
    def title(self) -> str:
        """Its kind, for people."""
        if self.kind is None:
            return "difference of a bias"
        return "DoRA" if MAGNITUDE in self.keys else self.kind.title

    def difference(self, part: Part, tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
        """What is added to the weight, or to the bias. Raises Unfit, RuntimeError."""
        if part == "bias" or self.kind is None:
            name = next(each for each in BIASES if each in tensors)
            return given(tensors[name], weight, strength)
        if MAGNITUDE not in tensors:
            return self.kind.difference(tensors, weight, strength)
        magnitude = tensors[MAGNITUDE]
        if _PEFT_MAGNITUDE.search(self.keys[MAGNITUDE]):
            magnitude = magnitude.flatten()  # of the rows, whatever its shape
        whole = self.kind.difference(tensors, weight, 1.0)
        return with_magnitude(whole, weight, magnitude) * strength


def part_of(key: str) -> tuple[str, str] | None:
    """The layer that a tensor belongs to, and its name there; None for an unknown one."""
    if found := _MATRIX.search(key):
        return _current(key[: found.start()]), _MATRICES.get(found[1], found[1])
    if found := _OTHER.search(key):
        return _current(key[: found.start()]), found[1]
    if found := _PEFT_MAGNITUDE.search(key):
        return _current(key[: found.start()]), MAGNITUDE
    return None


def _current(layer: str) -> str:
    """The name of a layer, which may have the form of an old version of diffusers."""
    name = _OLD_ATTENTION.sub(lambda at: f".to_{at[1]}", layer)
    return f"{name}.0" if name.endswith(".to_out") else name
