"""Weights with soft edges, for blending."""

from __future__ import annotations

import torch
from torch import Tensor


def ramp(length: int, feather: int, *, first: bool, last: bool) -> Tensor:
    """(length,) weights of 1, which rise to 1 over `feather` places at the ends that are soft."""
    weights = torch.ones(length)
    rise = (torch.arange(1, feather + 1) / max(1, feather))[:length]
    if first:
        weights[: len(rise)] *= rise
    if last:
        weights[length - len(rise) :] *= rise.flip(0)
    return weights
