"""Computes the weight of a picture in each layer of a UNet for ComfyUI's weight types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

LINEAR = "linear"
_EASED: dict[str, Callable[[float], float]] = {
    "ease in": lambda position: 1 - position,
    "ease out": lambda position: position,
    "ease in-out": lambda position: 1 - abs(2 * position - 1),
    "reverse in-out": lambda position: abs(2 * position - 1),
}
"""Functions that return the weight for the position of a transformer, from 0 to 1."""
_LEAST_EASED = 0.05
_WEAK: dict[str, tuple[str, ...]] = {
    "weak input": ("input",),
    "weak output": ("output",),
    "weak middle": ("middle",),
    "strong middle": ("input", "output"),
}
"""The blocks that have a smaller weight, by weight type."""
_WEAK_SHARE = 0.2
_XL_TRANSFORMERS = 11
_OUTER = (0, 1, 2, 3, *range(9, 16))
_INNER = (6, 7, 8)
_COMPOSITION = {4: 0.25, 5: 1.0}
"""The numbers of the transformers for composition in Stable Diffusion 1, with their weights."""
_XL_COMPOSITION = {3: 1.0}
_FAINT = 0.1
_XL_FAINT = dict.fromkeys((0, 1, 2, 4, 5, 7, 8, 9, 10), _FAINT)
_STYLES: dict[str, tuple[Mapping[int, float], Mapping[int, float]]] = {
    "style transfer": (dict.fromkeys(_OUTER, 1.0), {6: 1.0}),
    "composition": ({}, {}),
    "strong style transfer": (
        dict.fromkeys((*_OUTER, *_INNER), 1.0),
        dict.fromkeys((*_XL_FAINT, 6), 1.0),
    ),
    "style and composition": (dict.fromkeys(_OUTER, 1.0), {6: 1.0}),
    "style transfer precise": (dict.fromkeys(_OUTER, 1.0), {6: 1.0}),
    "composition precise": (
        dict.fromkeys(_OUTER, 1.0) | dict.fromkeys(_INNER, _FAINT),
        _XL_FAINT | {6: 1.0},
    ),
}
"""The numbers of the transformers for style in Stable Diffusion 1 and in XL, with their weights."""
_WITHOUT_COMPOSITION = {"style transfer", "strong style transfer"}
TYPES = (LINEAR, *_EASED, *_WEAK, *_STYLES)


class Layer(Protocol):
    """A cross-attention layer, as `context.vision.cross_attentions` describes it."""

    @property
    def block(self) -> str: ...
    @property
    def transformer(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LayerWeight:
    weight: float
    is_swapped: bool = False
    """Whether only the negative conditioning attends to the picture in this layer."""


def layer_weights(weight_type: str, weight: float, layers: Sequence[Layer]) -> list[LayerWeight]:
    count = 1 + max(each.transformer for each in layers)
    if weight_type in _STYLES:
        by_transformer = _style_weights(weight_type, weight, is_xl=count == _XL_TRANSFORMERS)
        none = LayerWeight(0.0)
        return [by_transformer.get(each.transformer, none) for each in layers]
    shares = [_share(weight_type, each, count) for each in layers]
    return [LayerWeight(weight * share) for share in shares]


def _share(weight_type: str, layer: Layer, count: int) -> float:
    if weight_type in _EASED:
        eased = _EASED[weight_type](layer.transformer / count)
        return _LEAST_EASED + (1 - _LEAST_EASED) * eased
    return _WEAK_SHARE if layer.block in _WEAK.get(weight_type, ()) else 1.0


def _style_weights(weight_type: str, weight: float, *, is_xl: bool) -> dict[int, LayerWeight]:
    style = _STYLES[weight_type][is_xl]
    composition = _XL_COMPOSITION if is_xl else _COMPOSITION
    if weight_type in _WITHOUT_COMPOSITION:
        composition = {}
    is_precise = weight_type.endswith("precise")
    swaps_style = weight_type == "composition precise"
    # In this type, the composition always has full weight, and `weight` changes only the style.
    composition_weight = 1.0 if weight_type == "style and composition" else weight
    found = {
        each: LayerWeight(weight * share, is_precise and swaps_style)
        for each, share in style.items()
    }
    return found | {
        each: LayerWeight(composition_weight * share, is_precise and not swaps_style)
        for each, share in composition.items()
    }
