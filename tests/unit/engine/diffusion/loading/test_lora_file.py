"""Files of LoRAs: kinds against dense computations, and damaged or hostile ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from scipy.linalg import block_diag
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.loading.lora_file import Change, LoraFile, TensorsDoNotFit, row_size
from engine.diffusion.loading.lora_layers import LayerRows
from engine.errors import CheckpointUnavailable, EngineError
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import TINY

OUT, IN, RANK, ALPHA, STRENGTH = 12, 8, 3, 2.0, 0.7
KERNEL = (3, 3)
MANY = 10**6
Array = NDArray[np.float64]
Weights = dict[str, Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 97 * seed))


def difference(tensors: Weights, weight: Tensor, strength: float = STRENGTH) -> Array:
    change = Change("layer", {name: f"layer.{name}" for name in tensors})
    assert change.parts == ("weight",)
    assert change.missing == set()
    found = change.difference("weight", tensors, weight, strength)
    assert found.shape == weight.shape
    return array(found)


def array(tensor: Tensor) -> Array:
    return tensor.double().numpy()


def tucker(core: Tensor, first: Tensor, second: Tensor) -> Array:
    """(out, in, height, width) of a core (r, s, height, width) with (r, out) and (s, in)."""
    core_, first_, second_ = array(core), array(first), array(second)
    found = np.zeros((first_.shape[1], second_.shape[1], *core_.shape[2:]))
    for r in range(len(core_)):
        for s in range(core_.shape[1]):
            outer = np.outer(first_[r], second_[s])
            found += outer[:, :, None, None] * core_[r, s]
    return found


def test_a_lora_is_a_sum_of_outer_products() -> None:
    up, down = drawn(OUT, RANK), drawn(RANK, IN)
    expected = sum(np.outer(array(up[:, r]), array(down[r])) for r in range(RANK))
    tensors = {"up": up, "down": down, "alpha": torch.tensor(ALPHA)}
    found = difference(tensors, drawn(OUT, IN))
    assert np.allclose(found, STRENGTH * ALPHA / RANK * expected, atol=1e-5)


def loha(rows: int = OUT, columns: int = IN, rank: int = RANK) -> Weights:
    return {
        f"hada_w{n}_{half}": drawn(*shape, seed=n)
        for n in (1, 2)
        for half, shape in (("a", (rows, rank)), ("b", (rank, columns)))
    }


def test_a_loha_multiplies_two_products_element_by_element() -> None:
    halves = loha()
    a, b, c, d = (array(halves[f"hada_w{n}_{half}"]) for n in (1, 2) for half in "ab")
    expected = np.array(
        [[(a[o] @ b[:, i]) * (c[o] @ d[:, i]) for i in range(IN)] for o in range(OUT)]
    )
    found = difference({**halves, "alpha": torch.tensor(ALPHA)}, drawn(OUT, IN))
    assert np.allclose(found, STRENGTH * ALPHA / RANK * expected, atol=1e-4)


def test_a_convolution_of_a_loha_may_be_in_tuckers_form() -> None:
    tensors = {f"hada_t{n}": drawn(RANK, RANK, *KERNEL, seed=n) for n in (1, 2)}
    for n in (1, 2):
        tensors[f"hada_w{n}_a"] = drawn(RANK, OUT, seed=n)
        tensors[f"hada_w{n}_b"] = drawn(RANK, IN, seed=n)
    products = [
        tucker(tensors[f"hada_t{n}"], tensors[f"hada_w{n}_a"], tensors[f"hada_w{n}_b"])
        for n in (1, 2)
    ]
    found = difference(tensors, drawn(OUT, IN, *KERNEL))
    assert np.allclose(found, STRENGTH * products[0] * products[1], atol=1e-3)


@pytest.mark.parametrize("halves", ["", "1", "2", "12"])
def test_a_lokr_puts_a_scaled_block_at_each_place_of_a_grid(halves: str) -> None:
    tensors: Weights = {}
    factors = []
    for n, (rows, columns) in (("1", (3, 2)), ("2", (4, 4))):
        if n in halves:
            a, b = drawn(rows, RANK, seed=int(n)), drawn(RANK, columns, seed=int(n))
            tensors |= {f"lokr_w{n}_a": a, f"lokr_w{n}_b": b}
            factors.append(array(a) @ array(b))
        else:
            tensors[f"lokr_w{n}"] = drawn(rows, columns, seed=int(n))
            factors.append(array(tensors[f"lokr_w{n}"]))
    expected = np.block([[one * factors[1] for one in row] for row in factors[0]])
    # Only a factor of low rank gives alpha a meaning.
    scale = STRENGTH * (ALPHA / RANK if halves else 1.0)
    found = difference({**tensors, "alpha": torch.tensor(ALPHA)}, drawn(OUT, IN))
    assert np.allclose(found, scale * expected, atol=1e-4)


def test_a_convolution_of_a_lokr_may_be_in_tuckers_form() -> None:
    tensors = {
        "lokr_w1": drawn(3, 2),
        "lokr_w2_a": drawn(RANK, 4),
        "lokr_w2_b": drawn(RANK, 4, seed=1),
        "lokr_t2": drawn(RANK, RANK, *KERNEL),
        "alpha": torch.tensor(ALPHA),
    }
    block = tucker(tensors["lokr_t2"], tensors["lokr_w2_a"], tensors["lokr_w2_b"])
    expected = np.zeros((OUT, IN, *KERNEL))
    for (row, column), one in np.ndenumerate(array(tensors["lokr_w1"])):
        expected[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] = one * block
    found = difference(tensors, drawn(OUT, IN, *KERNEL))
    assert np.allclose(found, STRENGTH * ALPHA / RANK * expected, atol=1e-4)


def cayley(block: Array) -> Array:
    skew = block - block.T
    one = np.eye(len(block))
    found: Array = np.linalg.solve((one - skew).T, (one + skew).T).T
    return found


@pytest.mark.parametrize("shape", [(OUT, IN), (OUT, IN, *KERNEL)])
def test_an_oft_turns_blocks_of_rows(shape: tuple[int, ...]) -> None:
    blocks, weight = drawn(3, 4, 4) * 0.3, drawn(*shape)
    turned = block_diag(*map(cayley, array(blocks))).T @ array(weight).reshape(OUT, -1)
    found = difference({"oft_blocks": blocks}, weight)
    assert np.allclose(found, STRENGTH * (turned.reshape(shape) - array(weight)), atol=1e-4)
    whole = array(weight) + difference({"oft_blocks": blocks}, weight, 1.0)
    lengths = [np.linalg.norm(each.reshape(3, 4, -1), axis=1) for each in (whole, array(weight))]
    assert np.allclose(*lengths, atol=1e-4)


def test_an_oft_may_scale_rows_and_be_kept_from_turning_far() -> None:
    blocks, weight, scales = drawn(3, 4, 4), drawn(OUT, IN), drawn(OUT, 1)
    tensors = {"oft_blocks": blocks, "rescale": scales, "alpha": torch.tensor(0.05)}
    skew = array(blocks) - array(blocks).transpose(0, 2, 1)
    kept = skew * (0.05 * OUT / np.linalg.norm(skew))
    turned = block_diag(*(cayley(each / 2) for each in kept)).T @ array(weight)
    found = difference(tensors, weight, 1.0)
    assert np.allclose(found, array(scales) * turned - array(weight), atol=1e-4)


def test_a_boft_turns_rows_that_are_ever_further_apart() -> None:
    levels, weight = drawn(2, 4, 4, 4) * 0.3, drawn(16, IN)
    turned = array(weight)
    for level, blocks in enumerate(array(levels)):
        apart = 2**level * 2
        places = np.arange(16).reshape(-1, 2, apart).transpose(0, 2, 1).reshape(-1)
        mixed = block_diag(*map(cayley, blocks)) @ turned[places]
        turned = np.empty_like(turned)
        turned[places] = mixed
    found = difference({"oft_blocks": levels}, weight)
    assert np.allclose(found, STRENGTH * (turned - array(weight)), atol=1e-4)


@pytest.mark.parametrize(
    ("key", "shape", "axis"),
    [
        ("dora_scale", (OUT, 1), 1),
        ("dora_scale", (1, IN), 0),
        ("lora_magnitude_vector", (OUT,), 1),
        ("lora_magnitude_vector.weight", (1, OUT), 1),
    ],
)
def test_a_dora_gives_lengths(key: str, shape: tuple[int, ...], axis: int) -> None:
    up, down, weight = drawn(OUT, RANK), drawn(RANK, IN), drawn(OUT, IN)
    magnitude = drawn(*shape).abs()
    names = {"up": "lora_B.weight", "down": "lora_A.weight", "dora_scale": key}
    change = Change("layer", {name: f"layer.{at}" for name, at in names.items()})
    tensors = {"up": up, "down": down, "dora_scale": magnitude}
    changed = array(weight) + array(up) @ array(down)
    lengths = np.linalg.norm(changed, axis=axis, keepdims=True)
    expected = changed * (array(magnitude).reshape(lengths.shape) / lengths) - array(weight)
    found = change.difference("weight", tensors, weight, STRENGTH)
    assert np.allclose(array(found), STRENGTH * expected, atol=1e-4)


def test_a_loha_may_be_a_dora_too() -> None:
    tensors, weight = loha(), drawn(OUT, IN)
    plain = array(weight) + difference(tensors, weight, 1.0)
    lengths = np.linalg.norm(plain, axis=1, keepdims=True)
    found = difference({**tensors, "dora_scale": torch.ones(OUT, 1)}, weight, 1.0)
    assert np.allclose(found, plain / lengths - array(weight), atol=1e-4)


@pytest.mark.parametrize("name", ["diff", "w_norm"])
def test_a_difference_is_added_as_it_is(name: str) -> None:
    weight = drawn(OUT)
    assert np.allclose(difference({name: weight}, weight), STRENGTH * array(weight))


@pytest.mark.parametrize(
    "shapes",
    [
        {"up": (OUT, 2), "down": (3, IN)},
        {"up": (OUT,), "down": (1, IN)},
        {"up": (OUT, 0), "down": (0, IN)},
        {"up": (OUT, 2, 1, 1), "down": (2, IN, 1, 1), "mid": (2, 2, 3, 3)},
        {"up": (OUT, 2), "down": (2, IN), "alpha": (2,)},
        {"up": (OUT, 2), "down": (2, IN), "dora_scale": (5, 1)},
        {"hada_w1_a": (OUT, 2), "hada_w1_b": (2, IN), "hada_w2_a": (OUT, 2), "hada_w2_b": (3, IN)},
        {"hada_w1_a": (OUT, 0), "hada_w1_b": (0, IN), "hada_w2_a": (OUT, 1), "hada_w2_b": (1, IN)},
        {"lokr_w1": (3, 2), "lokr_w2": (4, 5)},
        {"lokr_w1": (3, 2), "lokr_w2_a": (4, 0), "lokr_w2_b": (0, 4)},
        {"lokr_w1": (2,), "lokr_w2": (4, 4)},
        {"lokr_w1": (3, 2), "lokr_w2_a": (MANY, 1), "lokr_w2_b": (1, MANY)},
        {"hada_w1_a": (MANY, 1), "hada_w1_b": (1, MANY), "hada_w2_a": (9, 1), "hada_w2_b": (1, 9)},
        {"lokr_w1": (4, 2), "lokr_w2": (3, 2, 2)},
        {"lokr_w1": (3, 2), "lokr_w2_a": (4, 2), "lokr_w2_b": (1, 4)},
        {"oft_blocks": (3, 4, 5)},
        {"oft_blocks": (12,)},
        {"oft_blocks": (0, 3, 4, 4)},
        {"oft_blocks": (2, 4, 4)},
        {"oft_blocks": (9, 4, 3, 3)},
        {"oft_blocks": (3, 4, 4), "rescale": (5,)},
        {"diff": (OUT, IN, 2)},
    ],
    ids=str,
)
def test_tensors_of_wrong_sizes_are_unfit(shapes: Mapping[str, Any]) -> None:
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    with pytest.raises((TensorsDoNotFit, RuntimeError)):
        difference(tensors, drawn(OUT, IN))


@pytest.mark.parametrize(
    "shapes",
    [
        {"up": (OUT, 1), "down": (MANY, IN), "mid": (1, MANY, *KERNEL)},
        {"up": (OUT, 99), "down": (1, IN), "mid": (99, 1, *KERNEL)},
        {"hada_w1_a": (1, OUT), "hada_w1_b": (MANY, IN), "hada_t1": (1, MANY, *KERNEL)}
        | {"hada_w2_a": (OUT, 1), "hada_w2_b": (1, IN * 9)},
        {"lokr_w1": (1, 1), "lokr_w2_a": (1, OUT)}
        | {"lokr_w2_b": (MANY, IN), "lokr_t2": (1, MANY, *KERNEL)},
    ],
    ids=str,
)
def test_no_core_has_larger_ranks_than_the_weight_has_sides(shapes: Mapping[str, Any]) -> None:
    tensors = {name: torch.ones(1).expand(shape) for name, shape in shapes.items()}
    with pytest.raises(TensorsDoNotFit):
        difference(tensors, drawn(OUT, IN, *KERNEL))


LINEAR, CONVOLUTION = torch.Size((64, 32)), torch.Size((64, 32, 3, 3))


def size_of(shapes: Mapping[str, tuple[int, ...]], weight: torch.Size) -> int | None:
    change = Change("layer", {name: f"layer.{name}" for name in shapes})
    return row_size(change, shapes, weight, (LayerRows("layer"),))


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [((8, 4), (8, 8), 96), ((4, 4), (16, 8), 144), ((1, 32), (64, 1), None)],
)
def test_a_lokr_whose_halfway_is_as_large_as_the_weight_is_merged(
    first: tuple[int, int], second: tuple[int, int], size: int | None
) -> None:
    assert size_of({"lokr_w1": first, "lokr_w2": second}, LINEAR) == size


def test_the_rank_of_a_core_counts() -> None:
    shapes = {"up": (64, 16, 1, 1), "down": (2, 32, 1, 1), "mid": (16, 2, 3, 3)}
    assert size_of(shapes, CONVOLUTION) == 16 * (64 + 32 * 9)


_LINEAR = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
_NORM = "unet.mid_block.attentions.0.transformer_blocks.0.norm1"
_SIDE = 64
_PAIR = {"lora_A.weight": torch.ones(2, _SIDE), "lora_B.weight": torch.ones(_SIDE, 2)}
_LOHA = loha(_SIDE, _SIDE, rank=2)  # so low that it is added by row
_LOKR = {"lokr_w1": torch.ones(8, 8), "lokr_w2": torch.ones(8, 8)}
_EMPTY = {"lokr_w2_a": torch.ones(8, 0), "lokr_w2_b": torch.ones(0, 8)}
Apply = Callable[..., Networks]


@pytest.fixture
def apply(tiny_root: Path, tmp_path: Path) -> Apply:
    (tmp_path / "checkpoints").symlink_to(tiny_root / "checkpoints")
    (tmp_path / "loras").mkdir()
    store = store_of(tmp_path)
    model = load_checkpoint(store, TINY).model

    def apply(tensors: Mapping[str, Tensor], layer: str = _LINEAR) -> Networks:
        own = {f"{layer}.{key}".lstrip("."): each.clone() for key, each in tensors.items()}
        save_file(own, tmp_path / "loras" / "bad.safetensors")
        networks = Networks(model.unet, model.family)
        return with_lora(store, "bad.safetensors", networks, unet_strength=1.0, text_strength=0.0)

    return apply


@pytest.mark.parametrize(
    ("tensors", "layer"),
    [
        ({"lokr_w1": torch.ones(8, 8)} | _EMPTY, _LINEAR),
        ({"lora_A.weight": torch.ones(2, 64), "lora_B.weight": torch.ones(64, 3)}, _LINEAR),
        ({"lora_A.weight": torch.ones(64, 2), "lora_B.weight": torch.ones(2, 64)}, _LINEAR),
        ({"lora_A.weight": torch.ones(4096), "lora_B.weight": torch.ones(1)}, _LINEAR),
        ({"lora_A.weight": torch.ones(0, 64), "lora_B.weight": torch.ones(64, 0)}, _LINEAR),
        ({"oft_blocks": torch.ones(0, 8, 8, 8)}, _LINEAR),
        ({"oft_blocks": torch.tensor(1.0)}, _LINEAR),
        ({**_PAIR, "alpha": torch.ones(0)}, _LINEAR),
        ({**_PAIR, "dora_scale": torch.tensor(1.0)}, _LINEAR),
        ({**_PAIR, "lora_A.weight": torch.ones(2, 1), "dora_scale": torch.ones(3, 1)}, _NORM),
    ],
    ids=lambda each: (
        each if isinstance(each, str) else str({k: [*t.shape] for k, t in each.items()})
    ),
)
def test_what_does_not_fit_says_so(tensors: dict[str, Tensor], layer: str, apply: Apply) -> None:
    with pytest.raises(EngineError, match=r"^bad.safetensors: .* does not fit this"):
        apply(tensors, layer)


def test_halves_beside_a_whole_factor_mean_nothing(apply: Apply) -> None:
    apply({**_LOKR, "lokr_w2_b": torch.tensor(1.0), "alpha": torch.tensor(1.0)})


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [_PAIR, _LOHA, {**_PAIR, "dora_scale": torch.ones(_SIDE, 1)}])
def test_an_alpha_must_be_a_number(number: float, kind: dict[str, Tensor], apply: Apply) -> None:
    apply({**kind, "alpha": torch.tensor(1.0)})
    with pytest.raises(
        CheckpointUnavailable, match=r"^bad.safetensors: .*to_q makes weights that are not finite"
    ):
        apply({**kind, "alpha": torch.tensor(number)})


@pytest.mark.parametrize("kind", [_PAIR, _LOHA, _LOKR, {"diff": torch.ones(_SIDE, _SIDE)}])
def test_tensors_of_other_than_numbers_are_refused(kind: dict[str, Tensor], apply: Apply) -> None:
    for key, tensor in kind.items():
        damaged = tensor.clone()
        damaged.view(-1)[3] = torch.nan
        with pytest.raises(CheckpointUnavailable, match="damaged or far too large"):
            apply({**kind, key: damaged})


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: an illegal memory access"), RuntimeError("can't start new thread")],
)
def test_errors_of_the_device_and_the_machine_are_not_told_as_the_files(
    error: Exception, apply: Apply, tmp_path: Path
) -> None:
    apply(_PAIR)
    file = LoraFile(tmp_path / "loras" / "bad.safetensors")
    (change,) = file.layers.values()
    with pytest.raises(type(error)) as raised, file.fitting(change, torch.Size((1, 1))):
        raise error
    assert raised.value is error


def test_names_and_headers_of_any_length_make_short_sentences(apply: Apply, tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnavailable, match="is damaged") as lacking:
        apply({"lora_A.weight": torch.ones(2, 2)}, "x" * 10_000)
    assert len(str(lacking.value)) < 600
    header: dict[str, Any] = {"a": {"dtype": "x" * 10_000, "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "loras" / "long.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(CheckpointUnavailable, match="is damaged") as lying:
        LoraFile(path)
    assert len(str(lying.value)) < 600


def test_a_layer_under_several_names_is_merged(apply: Apply, tmp_path: Path) -> None:
    (one,) = apply(_PAIR).adapters
    assert one.adapter.layers.keys() == {_LINEAR.removeprefix("unet.")}
    names = (_LINEAR, _LINEAR.replace("unet", "diffusion_model"))
    own = {f"{name}.{key}": each.clone() for name in names for key, each in _PAIR.items()}
    assert apply(own, "").adapters == ()
