"""The kinds of changes of a weight, as files store them.

LoHa: Hyeon-Woo et al. 2021 (arXiv:2108.06098). LoKr, and convolutions in Tucker's form: Yeh et al.
2023 (arXiv:2309.14859). DoRA: Liu et al. 2024 (arXiv:2402.09353). OFT: Qiu et al. 2023
(arXiv:2306.07280). BOFT: Liu et al. 2023 (arXiv:2311.06243).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Tensors: TypeAlias = Mapping[str, Tensor]
"""Those of one layer in float32, by the names that they have here."""


class Unfit(ValueError):
    """The tensors cannot be multiplied, or change a weight of another size."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change."""

    title: str
    sets: tuple[frozenset[str], ...]
    """The tensors that it has: all of one of these sets."""
    difference: Callable[[Tensors, Tensor, float], Tensor]
    """What is added to a weight at a strength. Raises Unfit, RuntimeError."""
    optional: frozenset[str] = frozenset()

    @property
    def tensors(self) -> frozenset[str]:
        """All that it may have, but alpha."""
        return self.optional.union(*self.sets)


def low_rank_matrices(tensors: Tensors, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """`down` (rank, in) or with the kernel in it, and `up` (out, rank) with alpha / rank in it.

    `shape` is that of the weight. Raises Unfit, RuntimeError.
    """
    _require_low_rank(tensors, shape)
    up, down = tensors["up"].flatten(1), tensors["down"]
    if (mid := tensors.get("mid")) is not None:
        down = torch.einsum("rs...,si->ri...", mid, down.flatten(1))
    return down.reshape(len(down), *shape[1:]), _scaled(up, tensors, rank_of(tensors), 1.0)


def rank_of(tensors: Tensors) -> int:
    """The rank of a LoRA, which alpha is a multiple of."""
    return len(tensors["down"])


def _low_rank(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    _require_low_rank(tensors, weight.shape)
    up, down = tensors["up"].flatten(1), tensors["down"].flatten(1)
    if (mid := tensors.get("mid")) is not None:
        product = torch.einsum("or,rs...,si->oi...", up, mid, down)
    else:
        product = (up @ down).reshape(weight.shape)
    return _scaled(product, tensors, rank_of(tensors), strength)


def _require_low_rank(tensors: Tensors, shape: torch.Size) -> None:
    up, down = tensors["up"], tensors["down"]
    mid = tensors.get("mid")
    if mid is None:
        _require_product(up, down, shape)
        return
    _require(up.ndim >= 2, down.ndim >= 2, mid.ndim == len(shape) > 2)
    _require((len(up), down.shape[1]) == tuple(shape[:2]), mid.shape[2:] == shape[2:])
    _require(up.numel() == len(up) * len(mid), down.numel() == mid.shape[1] * down.shape[1] > 0)
    _require_core(mid, shape)


def _hadamard(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    factors = (
        _product_or_tucker(tensors, f"hada_w{n}_a", f"hada_w{n}_b", f"hada_t{n}", weight=weight)
        for n in (1, 2)
    )
    first, second = factors
    return _scaled(first * second, tensors, len(tensors["hada_w1_b"]), strength)


def _product_or_tucker(
    tensors: Tensors, first: str, second: str, core: str, *, weight: Tensor
) -> Tensor:
    a, b = tensors[first], tensors[second]
    t = tensors.get(core)
    if t is None:
        _require_product(a, b, weight.shape)
        return (a.flatten(1) @ b.flatten(1)).reshape(weight.shape)
    _require(a.ndim == b.ndim == 2, t.ndim == weight.ndim > 2)
    _require((a.shape[1], b.shape[1], *t.shape[2:]) == tuple(weight.shape))
    _require_core(t, weight.shape)
    return torch.einsum("ij...,ip,jr->pr...", t, a, b)


def hadamard_matrices(tensors: Tensors, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The same of a LoHa without a core: the product of two matrices of rank r and s has r * s."""
    halves = [tensors[f"hada_w{n}_{half}"] for n in (1, 2) for half in "ab"]
    _require_product(halves[0], halves[1], shape)
    _require_product(halves[2], halves[3], shape)
    a, b, c, d = (each.flatten(1) for each in halves)
    up = torch.einsum("or,os->ors", a, c).flatten(1)
    down = torch.einsum("ri,si->rsi", b, d).flatten(0, 1)
    return down.reshape(len(down), *shape[1:]), _scaled(up, tensors, len(b), 1.0)


def _kronecker(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    first, second = kronecker_factors(tensors, weight.shape)
    first = first.reshape(*first.shape, *[1] * (second.ndim - 2))
    product = torch.kron(first, second.contiguous())
    return product.reshape(weight.shape) * strength


def kronecker_factors(tensors: Tensors, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The matrix of blocks, and a block with alpha / rank in it. Raises Unfit, RuntimeError."""
    first, second = (_factor(tensors, name, shape) for name in ("lokr_w1", "lokr_w2"))
    _require(first.ndim == 2, 2 <= second.ndim <= len(shape))
    _require(len(first) * len(second) == shape[0])
    _require(first.numel() * second.numel() == shape.numel())
    halves = [tensors[f"{name}_b"] for name in ("lokr_w2", "lokr_w1") if name not in tensors]
    # Two whole factors have no rank that alpha could be a multiple of.
    return first, _scaled(second, tensors, len(halves[0]), 1.0) if halves else second


def _factor(tensors: Tensors, name: str, shape: torch.Size) -> Tensor:
    """A factor, whole or made of its halves, which is never larger than the weight."""
    if name in tensors:
        return tensors[name]
    a, b = tensors[f"{name}_a"], tensors[f"{name}_b"]
    if name == "lokr_w2" and (core := tensors.get("lokr_t2")) is not None:
        _require(a.ndim == b.ndim == 2, core.ndim > 2)
        _require(a.shape[1] <= shape[0], b.shape[1] <= shape[1], core.shape[2:] == shape[2:])
        _require_core(core, shape)
        return torch.einsum("ij...,ip,jr->pr...", core, a, b)
    _require(a.ndim == 2, b.ndim >= 2)
    _require(len(a) <= shape[0], math.prod(b.shape[1:]) <= math.prod(shape[1:]))
    return (a @ b.flatten(1)).reshape(len(a), *b.shape[1:])


def _rotation(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    blocks = tensors["oft_blocks"]
    _require(3 <= blocks.ndim <= 4, blocks.numel() > 0)
    _require(
        blocks.shape[-1] == blocks.shape[-2], blocks.shape[-3] * blocks.shape[-1] == len(weight)
    )
    rotations = _cayley(blocks, _alpha(tensors, 0.0) * len(weight))
    if blocks.ndim == 3:
        rows = weight.unflatten(0, tuple(blocks.shape[:2]))
        rotated = torch.einsum("knm,kn...->km...", rotations, rows).flatten(0, 1)
    else:
        rotated = _butterfly(rotations, weight)
    if (scales := tensors.get("rescale")) is not None:
        _require(scales.numel() == len(weight))
        rotated = rotated * scales.reshape(-1, *[1] * (weight.ndim - 1))
    return (rotated - weight) * strength


def _cayley(blocks: Tensor, limit: float) -> Tensor:
    """Rotations: (I + Q) / (I - Q) of skew-symmetric Q, whose norm has a limit unless that is 0."""
    skew = blocks - blocks.transpose(-1, -2)
    norm = float(skew.norm()) + 1e-8
    if 0 < limit < norm:
        skew = skew * (limit / norm)
    one = torch.eye(blocks.shape[-1], device=blocks.device)
    turned: Tensor = (one + skew) @ torch.linalg.inv(one - skew)
    return turned


def _butterfly(rotations: Tensor, weight: Tensor) -> Tensor:
    """The weight turned by one level of blocks after the other, each over rows further apart."""
    size = rotations.shape[-1]
    _require(size % 2 == 0, len(weight) % (size * 2 ** (len(rotations) - 1)) == 0)
    rotated = weight
    for level, blocks in enumerate(rotations):
        apart = 2**level * size // 2
        rows = rotated.unflatten(0, (-1, 2, apart)).transpose(1, 2).flatten(0, 2)
        rows = torch.einsum("bij,bj...->bi...", blocks, rows.unflatten(0, (-1, size)))
        rows = rows.flatten(0, 1).unflatten(0, (-1, apart, 2)).transpose(1, 2)
        rotated = rows.flatten(0, 2)
    return rotated


def given(difference: Tensor, weight: Tensor, strength: float) -> Tensor:
    """The difference itself, as a file has it."""
    _require(difference.numel() == weight.numel())
    return difference.reshape(weight.shape) * strength


def _given_weight(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    return given(tensors["diff"], weight, strength)


def _given_norm(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    return given(tensors["w_norm"], weight, strength)


def with_magnitude(difference: Tensor, weight: Tensor, magnitude: Tensor) -> Tensor:
    """The difference of a DoRA: the rows of the changed weight get these lengths, or its columns
    where there is one for each.
    """
    changed = weight + difference
    axis = 0 if magnitude.ndim < 2 or len(magnitude) == len(weight) else 1
    _require(axis < weight.ndim)
    _require(magnitude.numel() == weight.shape[axis])
    others = [at for at in range(weight.ndim) if at != axis]
    lengths = torch.linalg.vector_norm(changed, dim=others, keepdim=True)
    lengths = lengths + torch.finfo(lengths.dtype).eps
    found: Tensor = changed * (magnitude.reshape(lengths.shape) / lengths)
    return found - weight


def _require_product(up: Tensor, down: Tensor, shape: torch.Size) -> None:
    """That up @ down has the size of the weight."""
    _require(up.ndim >= 2, down.ndim >= 2, up.numel() > 0, down.numel() > 0)
    _require(len(up) == shape[0], up[0].numel() == len(down))
    _require(down[0].numel() == math.prod(shape[1:]))


def _require_core(core: Tensor, shape: torch.Size) -> None:
    """That the ranks of a core in Tucker's form are no larger than the sides of the weight.

    What is between its products would else be as large as a file of small tensors likes.
    """
    _require(core.numel() > 0, max(core.shape[:2]) <= max(shape[:2]))


def _scaled(product: Tensor, tensors: Tensors, rank: int, strength: float) -> Tensor:
    _require(rank > 0)
    return product * (strength * _alpha(tensors, rank) / rank)


def _alpha(tensors: Tensors, default: float) -> float:
    if "alpha" not in tensors:
        return default
    _require(tensors["alpha"].numel() == 1)
    return float(tensors["alpha"])


def _require(*conditions: bool) -> None:
    if not all(conditions):
        raise Unfit


def _sets(*names: Iterable[str]) -> tuple[frozenset[str], ...]:
    return tuple(map(frozenset, names))


LORA = Kind("LoRA", _sets(("down", "up")), _low_rank, frozenset({"mid"}))
LOHA = Kind(
    "LoHa",
    _sets(("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")),
    _hadamard,
    frozenset({"hada_t1", "hada_t2"}),
)
LOKR = Kind(
    "LoKr",
    _sets(
        ("lokr_w1", "lokr_w2"),
        ("lokr_w1", "lokr_w2_a", "lokr_w2_b"),
        ("lokr_w1_a", "lokr_w1_b", "lokr_w2"),
        ("lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"),
    ),
    _kronecker,
    frozenset({"lokr_t2"}),
)
KINDS = (
    LORA,
    LOHA,
    LOKR,
    Kind("OFT", _sets(("oft_blocks",)), _rotation, frozenset({"rescale"})),
    Kind("difference", _sets(("diff",)), _given_weight),
    Kind("difference of a norm", _sets(("w_norm",)), _given_norm),
)
BIASES = ("diff_b", "b_norm")
"""Differences of a bias, beside that of a weight or alone."""
MAGNITUDE = "dora_scale"
"""What makes a DoRA of another kind: see `with_magnitude`."""
