"""Linear layers that oneDNN computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.loading.linear import OneDnnLinear, use_one_dnn

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
    network = nn.Sequential(nn.Linear(5, 4, bias=bias)).requires_grad_(False)
    expected = network(x)
    torch.testing.assert_close(use_one_dnn(network)(x), expected, rtol=1e-6, atol=1e-6)


def test_weights_that_are_replaced_count() -> None:
    (layer,) = use_one_dnn(nn.Sequential(nn.Linear(5, 4)).requires_grad_(False))
    layer.weight = nn.Parameter(torch.zeros(4, 5), requires_grad=False)
    assert torch.equal(layer(torch.randn(3, 5)), layer.bias.expand(3, 4))


def test_only_float32_layers_of_a_cpu_are_changed() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).half(), nn.Conv2d(3, 3, 1))
    network.append(nn.Linear(3, 2, device="meta"))
    assert [type(layer) for layer in use_one_dnn(network)] == [
        OneDnnLinear,
        nn.Linear,
        nn.Conv2d,
        nn.Linear,
    ]


def test_layers_that_are_no_plain_ones_keep_their_way() -> None:
    class Scaled(nn.Linear):
        pass

    (layer,) = use_one_dnn(nn.Sequential(Scaled(5, 4)))
    assert type(layer) is Scaled


def test_a_replaced_layer_keeps_its_place_its_parameters_and_its_mode() -> None:
    network = nn.Sequential(nn.Linear(5, 4), nn.ModuleDict({"to_q": nn.Linear(4, 3, bias=False)}))
    before = dict(network.eval().named_parameters())
    after = dict(use_one_dnn(network).named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is each for name, each in before.items())
    assert not any(module.training for module in network.modules())
