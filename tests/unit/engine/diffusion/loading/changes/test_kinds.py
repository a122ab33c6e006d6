"""Each kind of change beside a dense computation of its own; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import block_diag
from torch import Tensor

from engine.diffusion.loading.changes.change import Change
from engine.diffusion.loading.changes.kinds import Unfit

OUT, IN, RANK, ALPHA, STRENGTH = 12, 8, 3, 2.0, 0.7
KERNEL = (3, 3)
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


def test_a_convolution_of_a_lora_may_be_in_tuckers_form() -> None:
    up, down = drawn(OUT, RANK, 1, 1), drawn(RANK, IN, 1, 1)
    mid = drawn(RANK, RANK, *KERNEL)
    expected = tucker(mid, up[:, :, 0, 0].T, down[:, :, 0, 0])
    found = difference({"up": up, "down": down, "mid": mid}, drawn(OUT, IN, *KERNEL))
    assert np.allclose(found, STRENGTH * expected, atol=1e-4)


def test_a_loha_multiplies_two_products_element_by_element() -> None:
    halves = {
        f"hada_w{n}_{half}": drawn(*shape, seed=n)
        for n in (1, 2)
        for half, shape in (("a", (OUT, RANK)), ("b", (RANK, IN)))
    }
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
def test_a_dora_gives_rows_or_columns_their_lengths(
    key: str, shape: tuple[int, ...], axis: int
) -> None:
    up, down, weight = drawn(OUT, RANK), drawn(RANK, IN), drawn(OUT, IN)
    magnitude = drawn(*shape).abs()
    names = {
        "up": "layer.lora_B.weight",
        "down": "layer.lora_A.weight",
        "dora_scale": f"layer.{key}",
    }
    change = Change("layer", names)
    tensors = {"up": up, "down": down, "dora_scale": magnitude}
    changed = array(weight) + array(up) @ array(down)
    lengths = np.linalg.norm(changed, axis=axis, keepdims=True)
    expected = changed * (array(magnitude).reshape(lengths.shape) / lengths) - array(weight)
    found = change.difference("weight", tensors, weight, STRENGTH)
    assert np.allclose(array(found), STRENGTH * expected, atol=1e-4)


def test_a_loha_may_be_a_dora_too() -> None:
    tensors = {
        f"hada_w{n}_{half}": drawn(*shape, seed=n)
        for n in (1, 2)
        for half, shape in (("a", (OUT, RANK)), ("b", (RANK, IN)))
    }
    weight = drawn(OUT, IN)
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
        {"lokr_w1": (3, 2), "lokr_w2_a": (10**6, 1), "lokr_w2_b": (1, 10**6)},
        {
            "hada_w1_a": (10**6, 1),
            "hada_w1_b": (1, 10**6),
            "hada_w2_a": (9, 1),
            "hada_w2_b": (1, 9),
        },
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
    with pytest.raises((Unfit, RuntimeError)):
        difference(tensors, drawn(OUT, IN))


@pytest.mark.parametrize(
    "shapes",
    [
        {"up": (OUT, 1), "down": (10**6, IN), "mid": (1, 10**6, *KERNEL)},
        {"up": (OUT, 99), "down": (1, IN), "mid": (99, 1, *KERNEL)},
        {
            "hada_w1_a": (1, OUT),
            "hada_w1_b": (10**6, IN),
            "hada_t1": (1, 10**6, *KERNEL),
            "hada_w2_a": (OUT, 1),
            "hada_w2_b": (1, IN * 9),
        },
        {
            "lokr_w1": (1, 1),
            "lokr_w2_a": (1, OUT),
            "lokr_w2_b": (10**6, IN),
            "lokr_t2": (1, 10**6, *KERNEL),
        },
    ],
    ids=str,
)
def test_no_core_has_larger_ranks_than_the_weight_has_sides(shapes: Mapping[str, Any]) -> None:
    tensors = {name: torch.ones(1).expand(shape) for name, shape in shapes.items()}
    with pytest.raises(Unfit):
        difference(tensors, drawn(OUT, IN, *KERNEL))
