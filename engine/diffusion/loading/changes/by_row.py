"""Changes that need not be merged, because what they add to a layer's output is cheap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.diffusion.adapters import Kronecker, LowRank, Update
from engine.diffusion.loading.changes.change import Change
from engine.diffusion.loading.changes.kinds import (
    LOHA,
    LOKR,
    LORA,
    Tensors,
    hadamard_matrices,
    kronecker_factors,
    low_rank_matrices,
)
from engine.diffusion.loading.changes.layers import Place, Places

_SIMPLE: Mapping[str, frozenset[str]] = {
    LORA.title: LORA.tensors,
    LOHA.title: LOHA.sets[0],
    LOKR.title: LOKR.tensors - LOKR.optional,
}
"""What a change of each kind may have, beside alpha, to be added by row."""

_MOST_BETWEEN = 2
"""What is between the two products of a Kronecker product may be so many times as wide as the
layer. Some factors that are small make it as large as the weight, for each token of a call."""


def row_size(
    change: Change, shapes: Mapping[str, Sequence[int]], weight: torch.Size, places: Places
) -> int | None:
    """How many numbers it keeps in memory if it is added by row; None if it has to be merged.

    By the `shapes` of its tensors, which may be wrong.
    """
    kind = change.kind
    if kind is None or not change.keys.keys() <= _SIMPLE.get(kind.title, frozenset()) | {"alpha"}:
        return None
    own = {name: (*shapes[name], 1, 1) for name in change.keys}
    if kind is LORA:
        return own.get("mid", own["down"])[0] * _sides(weight)
    if kind is LOHA:
        return own["hada_w1_b"][0] * own["hada_w2_b"][0] * _sides(weight)
    rows, columns = (own[name][side] for side, name in enumerate(_of_factor(own, "lokr_w2")))
    if len(weight) > 2 or not all(_is_aligned(place, rows) for place in places):
        return None
    first = [own[name][side] for side, name in enumerate(_of_factor(own, "lokr_w1"))]
    if first[1] * rows > _MOST_BETWEEN * max(weight):
        return None
    return rows * columns + math.prod(first)


def _sides(weight: torch.Size) -> int:
    return weight[0] + math.prod(weight[1:])


def _of_factor(names: Mapping[str, object], factor: str) -> tuple[str, str]:
    """The tensors that have its rows and its columns."""
    return (factor, factor) if factor in names else (f"{factor}_a", f"{factor}_b")


def _is_aligned(place: Place, rows: int) -> bool:
    """Whether its rows are whole blocks of a Kronecker product."""
    return not place.swapped and all(rows and end % rows == 0 for end in place.rows or (0,))


def row_updates(
    change: Change, tensors: Tensors, weights: Sequence[Tensor], places: Places
) -> list[Update]:
    """What is added by row to the output of each of its places, whose weights these are.

    Raises Unfit, RuntimeError.
    """
    shape = torch.Size((sum(map(len, weights)), *weights[0].shape[1:]))
    dtype = weights[0].dtype
    if change.kind is LOKR:
        first, second = kronecker_factors(tensors, shape)
        second = second.to(dtype, copy=True)
        spans = [_blocks(place, len(second)) for place in places]
        return [Kronecker(first[span].to(dtype, copy=True), second) for span in spans]
    make = hadamard_matrices if change.kind is LOHA else low_rank_matrices
    down, up = make(tensors, shape)
    down = down.to(dtype, copy=True)
    return [LowRank(down, place.own(up).to(dtype, copy=True)) for place in places]


def _blocks(place: Place, rows: int) -> slice:
    return slice(None) if place.rows is None else slice(*(end // rows for end in place.rows))
