"""Reads the files of LoRAs and of similar adapters.

The kinds are described in these papers:

- LoHa: Hyeon-Woo et al. 2021 (arXiv:2108.06098)
- LoKr, and convolutions in Tucker's form: Yeh et al. 2023 (arXiv:2309.14859)
- DoRA: Liu et al. 2024 (arXiv:2402.09353)
- OFT: Qiu et al. 2023 (arXiv:2306.07280)
- BOFT: Liu et al. 2023 (arXiv:2311.06243)

The names of a layer's tensors determine the kind of change. A change is either merged into a copy
of the weight or *added by row*: for the rows of one job, a product is added to the layer's output.
Jobs with different LoRAs can then share a call. Most LoRAs, LoHas and LoKrs can be added by row.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from engine.diffusion.adapters import Kronecker, LowRank, Update
from engine.diffusion.device_error import is_device_error
from engine.diffusion.loading.lora_layers import JoinedLayers, LayerRows, LayersByName
from engine.diffusion.loading.store import tensors_of
from engine.diffusion.loading.streaming import device_of
from engine.diffusion.loading.weights import Weights
from engine.errors import (
    CheckpointUnavailable,
    EngineError,
    is_machine_error,
    is_out_of_memory,
)

Tensors: TypeAlias = Mapping[str, Tensor]
"""The tensors of one layer in float32, by the names that this module uses."""


class TensorsDoNotFit(ValueError):
    """Raised if the shapes of an adapter's tensors do not fit each other or their layer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of change of a weight, such as LoRA."""

    title: str
    sets: tuple[frozenset[str], ...]
    """A change of this kind has all tensors of at least one of these sets."""
    difference: Callable[[Tensors, Tensor, float], Tensor]
    """A function that returns the change of a weight at a strength.

    It raises TensorsDoNotFit or RuntimeError.
    """
    optional: frozenset[str] = frozenset()

    @property
    def tensors(self) -> frozenset[str]:
        """The names of all tensors of this kind, without `alpha`."""
        return self.optional.union(*self.sets)


def low_rank_matrices(tensors: Tensors, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return `down` (rank, in), or (rank, in, height, width), and `up` (out, rank).

    `up` is multiplied by alpha / rank. `shape` is the shape of the weight. Raises TensorsDoNotFit,
    RuntimeError.
    """
    _require_low_rank(tensors, shape)
    up, down = tensors["up"].flatten(1), tensors["down"]
    if (mid := tensors.get("mid")) is not None:
        down = torch.einsum("rs...,si->ri...", mid, down.flatten(1))
    return down.reshape(len(down), *shape[1:]), _scaled(up, tensors, rank_of(tensors), 1.0)


def rank_of(tensors: Tensors) -> int:
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
    """Return `down` and `up`, as in `low_rank_matrices`, for a LoHa without cores.

    If the two products of the LoHa have the ranks r and s, `down` and `up` have the rank r * s.
    """
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
    """Return the factors of a Kronecker product. The second is multiplied by alpha / rank.

    Raises TensorsDoNotFit, RuntimeError.
    """
    first, second = (_factor(tensors, name, shape) for name in ("lokr_w1", "lokr_w2"))
    _require(first.ndim == 2, 2 <= second.ndim <= len(shape))
    _require(len(first) * len(second) == shape[0])
    _require(first.numel() * second.numel() == shape.numel())
    halves = [tensors[f"{name}_b"] for name in ("lokr_w2", "lokr_w1") if name not in tensors]
    # If both factors are stored whole, there is no rank, so alpha has no effect.
    return first, _scaled(second, tensors, len(halves[0]), 1.0) if halves else second


def _factor(tensors: Tensors, name: str, shape: torch.Size) -> Tensor:
    """Return a factor.

    Raises TensorsDoNotFit if a product of matrices would be larger than the weight.
    """
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
    """Return the rotations (I + Q) / (I - Q), where Q is a block minus its transpose.

    A `limit` above 0 is the largest norm of all Q together.
    """
    skew = blocks - blocks.transpose(-1, -2)
    norm = float(skew.norm()) + 1e-8
    if 0 < limit < norm:
        skew = skew * (limit / norm)
    one = torch.eye(blocks.shape[-1], device=blocks.device)
    turned: Tensor = (one + skew) @ torch.linalg.inv(one - skew)
    return turned


def _butterfly(rotations: Tensor, weight: Tensor) -> Tensor:
    """Return the weight, rotated by each level of blocks in turn.

    A block of the level k rotates size / 2 neighbouring rows together with the rows that come
    2^k * size / 2 rows after them.
    """
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


def stored_difference(difference: Tensor, weight: Tensor, strength: float) -> Tensor:
    """Return the difference that a file stores, times `strength`."""
    _require(difference.numel() == weight.numel())
    return difference.reshape(weight.shape) * strength


def _weight_difference(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    return stored_difference(tensors["diff"], weight, strength)


def _norm_difference(tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
    return stored_difference(tensors["w_norm"], weight, strength)


def with_magnitude(difference: Tensor, weight: Tensor, magnitude: Tensor) -> Tensor:
    """Return the difference of a DoRA, which scales the changed rows to the lengths in `magnitude`.

    If `magnitude` has one length for each column, the columns are scaled instead.
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
    """Raise TensorsDoNotFit if up @ down would not have the size of the weight."""
    _require(up.ndim >= 2, down.ndim >= 2, up.numel() > 0, down.numel() > 0)
    _require(len(up) == shape[0], up[0].numel() == len(down))
    _require(down[0].numel() == math.prod(shape[1:]))


def _require_core(core: Tensor, shape: torch.Size) -> None:
    """Raise TensorsDoNotFit if a rank of a Tucker core exceeds the longer side of the weight.

    Without this limit, small tensors in a file could cause an intermediate result of any size.
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
        raise TensorsDoNotFit


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
    Kind("difference", _sets(("diff",)), _weight_difference),
    Kind("difference of a norm", _sets(("w_norm",)), _norm_difference),
)
BIASES = ("diff_b", "b_norm")
"""The names of a tensor that is added to a bias. A layer may have no other tensor."""
MAGNITUDE = "dora_scale"
"""The name of the tensor that turns a change of any kind into a DoRA."""


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
    """The tensors that change one layer: their keys in the file, by names of this module."""

    layer: str
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Kind | None:
        """The kind of change of the weight, or None if the weight does not change."""
        return next((each for each in KINDS if each.tensors & self.keys.keys()), None)

    @property
    def parts(self) -> tuple[Part, ...]:
        has_bias = not self.keys.keys().isdisjoint(BIASES)
        return (*(("weight",) if self.kind else ()), *(("bias",) if has_bias else ()))

    @property
    def missing(self) -> set[str]:
        """The names of the required tensors that the file does not have."""
        found = self.kind
        lacks = [each - self.keys.keys() for each in found.sets] if found else []
        return set(min(lacks, key=len, default=()))

    @property
    def title(self) -> str:
        if self.kind is None:
            return "difference of a bias"
        return "DoRA" if MAGNITUDE in self.keys else self.kind.title

    def difference(self, part: Part, tensors: Tensors, weight: Tensor, strength: float) -> Tensor:
        """Return the change of the weight or of the bias. Raises TensorsDoNotFit, RuntimeError."""
        if part == "bias" or self.kind is None:
            name = next(each for each in BIASES if each in tensors)
            return stored_difference(tensors[name], weight, strength)
        if MAGNITUDE not in tensors:
            return self.kind.difference(tensors, weight, strength)
        magnitude = tensors[MAGNITUDE]
        if _PEFT_MAGNITUDE.search(self.keys[MAGNITUDE]):
            # peft stores one length for each row, in a tensor of any shape.
            magnitude = magnitude.flatten()
        whole = self.kind.difference(tensors, weight, 1.0)
        return with_magnitude(whole, weight, magnitude) * strength


def layer_and_tensor(key: str) -> tuple[str, str] | None:
    """Return the layer and the name of the tensor with this key, or None for an unknown key."""
    if found := _MATRIX.search(key):
        return _current(key[: found.start()]), _MATRICES.get(found[1], found[1])
    if found := _OTHER.search(key):
        return _current(key[: found.start()]), found[1]
    if found := _PEFT_MAGNITUDE.search(key):
        return _current(key[: found.start()]), MAGNITUDE
    return None


def _current(layer: str) -> str:
    """Replace a layer's name from an old version of diffusers by the current name."""
    name = _OLD_ATTENTION.sub(lambda at: f".to_{at[1]}", layer)
    return f"{name}.0" if name.endswith(".to_out") else name


_BY_ROW: Mapping[str, frozenset[str]] = {
    LORA.title: LORA.tensors,
    LOHA.title: LOHA.sets[0],
    LOKR.title: LOKR.tensors - LOKR.optional,
}
"""A change with other tensors than these and `alpha` is merged. The keys are titles of kinds."""

_MOST_INTERMEDIATE = 2
"""The largest width of a Kronecker product's intermediate result, in widths of the layer.

Without this limit, the intermediate result for each token could be as large as the weight.
"""


def row_size(
    change: Change, shapes: Mapping[str, Sequence[int]], weight: torch.Size, joined: JoinedLayers
) -> int | None:
    """Return the number of elements that a change keeps in memory if it is added by row.

    Returns None if the change must be merged. `shapes` are the shapes of the file's tensors, which
    may not fit the weight.
    """
    kind = change.kind
    if kind is None or not change.keys.keys() <= _BY_ROW.get(kind.title, frozenset()) | {"alpha"}:
        return None
    own = {name: (*shapes[name], 1, 1) for name in change.keys}
    if kind is LORA:
        return own.get("mid", own["down"])[0] * _sides(weight)
    if kind is LOHA:
        return own["hada_w1_b"][0] * own["hada_w2_b"][0] * _sides(weight)
    rows, columns = (own[name][side] for side, name in enumerate(_of_factor(own, "lokr_w2")))
    if len(weight) > 2 or not all(_is_aligned(layer_rows, rows) for layer_rows in joined):
        return None
    first = [own[name][side] for side, name in enumerate(_of_factor(own, "lokr_w1"))]
    if first[1] * rows > _MOST_INTERMEDIATE * max(weight):
        return None
    return rows * columns + math.prod(first)


def _sides(weight: torch.Size) -> int:
    return weight[0] + math.prod(weight[1:])


def _of_factor(names: Mapping[str, object], factor: str) -> tuple[str, str]:
    """Return the name of the tensor with a factor's rows, and of the tensor with its columns."""
    return (factor, factor) if factor in names else (f"{factor}_a", f"{factor}_b")


def _is_aligned(layer_rows: LayerRows, rows: int) -> bool:
    """Return whether the rows of a layer are whole blocks of a Kronecker product."""
    return not layer_rows.swapped and all(
        rows and end % rows == 0 for end in layer_rows.rows or (0,)
    )


def row_updates(
    change: Change, tensors: Tensors, weights: Sequence[Tensor], joined: JoinedLayers
) -> list[Update]:
    """Return the update of each layer in `joined`. `weights` has the weight of each layer.

    Raises TensorsDoNotFit, RuntimeError.
    """
    shape = torch.Size((sum(map(len, weights)), *weights[0].shape[1:]))
    dtype = weights[0].dtype
    if change.kind is LOKR:
        first, second = kronecker_factors(tensors, shape)
        second = second.to(dtype, copy=True)
        spans = [_blocks(layer_rows, len(second)) for layer_rows in joined]
        return [Kronecker(first[span].to(dtype, copy=True), second) for span in spans]
    make = hadamard_matrices if change.kind is LOHA else low_rank_matrices
    down, up = make(tensors, shape)
    down = down.to(dtype, copy=True)
    return [LowRank(down, layer_rows.own(up).to(dtype, copy=True)) for layer_rows in joined]


def _blocks(layer_rows: LayerRows, rows: int) -> slice:
    if layer_rows.rows is None:
        return slice(None)
    return slice(*(end // rows for end in layer_rows.rows))


_FOREIGN = {
    ".a1.weight": "a GLoRA",
    ".on_input": "an IA3",
    ".oft_R": "an OFT that turns the inputs of layers",
    ".boft_R": "a BOFT that turns the inputs of layers",
    ".vera_lambda_": "a VeRA",
}
_SHOWN_CHARS = 120
Read: TypeAlias = Callable[[Change, torch.device], Tensors]


class LoraFile:
    """The layers that a LoRA file changes. Raises CheckpointUnavailable for an unusable file."""

    def __init__(self, path: Path) -> None:
        self._weights = Weights(path)
        self.name = self._weights.name
        self.layers: dict[str, Change] = {}
        for key in self._weights.shapes:
            self._refuse_foreign(key)
            if found := layer_and_tensor(key):
                layer, name = found
                self.layers.setdefault(layer, Change(layer)).keys[name] = key
        self.layers = {layer: each for layer, each in self.layers.items() if each.parts}
        if not self.layers:
            raise CheckpointUnavailable(
                f"{path.name} is not a LoRA: it has no pair of up and down, and no other known "
                "change of layers"
            )
        for change in self.layers.values():
            self._require_whole(change)

    def changes(self, known: LayersByName) -> list[tuple[Change, JoinedLayers]]:
        """Return the changes of the layers in `known`, with the layers of the network."""
        return [(each, known[name]) for name, each in self.layers.items() if name in known]

    def row_sizes(self, known: LayersByName, module: nn.Module) -> Counter[str] | None:
        """Return the number of elements in the row updates of each layer of the network.

        Returns None if a change must be merged.
        """
        sizes: Counter[str] = Counter()
        for change, joined in self.changes(known):
            shapes = {name: self._weights.shapes[key] for name, key in change.keys.items()}
            size = row_size(change, shapes, _shape(_weights(module, joined)), joined)
            # A file may change a layer under several names. The product for each name would make
            # the call slower for all jobs that share it.
            if size is None or any(layer_rows.layer in sizes for layer_rows in joined):
                return None
            # The layers share one matrix, so together they need `size` elements.
            sizes += Counter({layer_rows.layer: size // len(joined) for layer_rows in joined})
        return sizes

    def row_updates(self, known: LayersByName, module: nn.Module) -> Iterator[tuple[str, Update]]:
        """Yield the name of each layer in the network and an update of the layer's output."""
        with self.opened() as read:
            for change, joined in self.changes(known):
                weights = _weights(module, joined)
                tensors = read(change, device_of(module))
                with self.fitting(change, _shape(weights)):
                    updates = row_updates(change, tensors, weights, joined)
                self.require_finite(change, tensors_of(updates))
                for layer_rows, update in zip(joined, updates, strict=True):
                    yield layer_rows.layer, update

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Within this context, the yielded function reads a change's tensors in float32."""
        with self._weights.opened() as read:

            def tensors(change: Change, device: torch.device) -> Tensors:
                return {
                    name: read(key).to(device, torch.float32) for name, key in change.keys.items()
                }

            yield tensors

    @contextmanager
    def fitting(self, change: Change, shape: torch.Size) -> Iterator[None]:
        """Raise EngineError if a change does not fit a weight of this shape."""
        try:
            yield
        except (TensorsDoNotFit, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError) or is_out_of_memory(error):
                raise
            if is_device_error(error) or is_machine_error(error):
                raise
            shapes = {name: str(self._weights.shapes[key]) for name, key in change.keys.items()}
            own = [f"{name} {_shown(each)}" for name, each in shapes.items()]
            raise EngineError(
                f"{self.name}: the {change.title} of {_shown(change.layer)} does not fit this "
                f"model: it has {', '.join(own)}, but the weight is {tuple(shape)}"
            ) from error

    def require_finite(self, change: Change, made: Iterable[Tensor]) -> None:
        """Raise CheckpointUnavailable if the result of a change is not finite."""
        if not all(bool(each.isfinite().all()) for each in made):
            raise CheckpointUnavailable(
                f"{self.name}: the {change.title} of {_shown(change.layer)} makes weights that are "
                "not finite: its alpha or its other tensors are damaged or far too large"
            )

    def _refuse_foreign(self, key: str) -> None:
        for mark, kind in _FOREIGN.items():
            if mark in key:
                raise CheckpointUnavailable(
                    f"{self.name} is {kind}, which is not supported; supported are LoRA, LoHa, "
                    "LoKr, DoRA and OFT"
                )

    def _require_whole(self, change: Change) -> None:
        if missing := change.missing:
            raise CheckpointUnavailable(
                f"{self.name} is damaged: {_shown(change.layer)} has "
                f"{', '.join(sorted(change.keys))}, but lacks {' and '.join(sorted(missing))}"
            )


def _shown(text: str) -> str:
    """Shorten a name for a message. A name in a file may be as long as the header of the file."""
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _weights(module: nn.Module, joined: JoinedLayers) -> list[Tensor]:
    return [module.get_parameter(f"{layer_rows.layer}.weight") for layer_rows in joined]


def _shape(weights: list[Tensor]) -> torch.Size:
    """Return the shape of the weight in the file, which has the rows of all these weights."""
    return torch.Size((sum(map(len, weights)), *weights[0].shape[1:]))
