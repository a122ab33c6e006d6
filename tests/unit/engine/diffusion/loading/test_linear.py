"""Linear layers through oneDNN."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.loading.linear import OneDnnLinear, by_one_dnn

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5),
        torch.randn(7, 5),
        torch.randn(2, 3, 5),
        torch.randn(5, 3, 2).movedim(0, -1),
        torch.randn(6, 5)[::2],
        torch.randn(1, 5).expand(4, 5),
        torch.randn(0, 5),
    ],
    ids=["vector", "rows", "batch", "strided", "every second", "expanded", "none"],
)
def test_the_answer_is_that_of_torch(x: Tensor, bias: bool) -> None:
    layer = nn.Linear(5, 4, bias=bias).requires_grad_(False)
    expected = layer(x)
    torch.testing.assert_close(by_one_dnn(layer)(x), expected, rtol=1e-6, atol=1e-6)


def test_weights_that_are_replaced_count() -> None:
    layer = by_one_dnn(nn.Linear(5, 4).requires_grad_(False))
    layer.weight = nn.Parameter(torch.zeros(4, 5), requires_grad=False)
    assert torch.equal(layer(torch.randn(3, 5)), layer.bias.expand(3, 4))


def test_only_float32_layers_of_a_cpu_are_changed() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).half(), nn.Conv2d(3, 3, 1))
    network.append(nn.Linear(3, 2, device="meta"))
    assert [type(layer) for layer in by_one_dnn(network)] == [
        OneDnnLinear,
        nn.Linear,
        nn.Conv2d,
        nn.Linear,
    ]


def test_layers_that_are_no_plain_ones_keep_their_way() -> None:
    class Scaled(nn.Linear):
        pass

    assert type(by_one_dnn(Scaled(5, 4))) is Scaled
