"""Edges of drawn images."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.errors import EngineError
from tests.support.engine.bodies import outputs_of


def canny_edges(images: Tensor, *, low: float, high: float) -> Tensor:
    (found,) = outputs_of("Canny", image=images, low_threshold=low, high_threshold=high)
    edges: Tensor = found[..., 0]
    return edges


def square() -> Tensor:
    images = torch.zeros(1, 24, 32, 3)
    images[:, 8:16, 8:24] = 1.0
    return images


def test_a_square_has_a_thin_closed_edge() -> None:
    (edges,) = canny_edges(square(), low=0.2, high=0.6)
    assert set(edges.unique().tolist()) == {0.0, 1.0}
    assert 32 <= int(edges.sum()) <= 64
    assert not edges[11:13, 11:21].any()
    assert not edges[:5].any()
    assert edges[12, 6:10].any()


def test_a_plain_image_has_none() -> None:
    assert not canny_edges(torch.full((2, 9, 9, 3), 0.5), low=0.01, high=0.02).any()


def test_a_weak_edge_counts_where_a_strong_one_goes_on_in_it() -> None:
    image = torch.zeros(1, 24, 40, 3)
    image[:, 12:] = torch.linspace(1.0, 0.3, 40)[:, None]
    (both,) = canny_edges(image, low=0.3, high=1.5)
    (strong,) = canny_edges(image, low=1.4, high=1.5)
    assert both[:, 36].any()
    assert strong[:, 4].any()
    assert not strong[:, 36].any()
    weak = image.clamp(max=0.4)
    assert not canny_edges(weak, low=0.3, high=1.5).any()


def test_a_tiny_image_is_an_error() -> None:
    with pytest.raises(EngineError, match="2 x 9 pixels is too small"):
        canny_edges(torch.zeros(1, 9, 2, 3), low=0.1, high=0.2)
