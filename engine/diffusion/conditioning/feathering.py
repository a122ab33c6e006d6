"""Soft edges, for what is blended."""

from __future__ import annotations

import torch
from torch import Tensor


def ramp(length: int, feather: int, *, first: bool, last: bool) -> Tensor:
    """1, rising to it over `feather` places at the ends that are to be soft."""
    share = torch.ones(length)
    rise = (torch.arange(1, feather + 1) / max(1, feather))[:length]
    if first:
        share[: len(rise)] *= rise
    if last:
        share[length - len(rise) :] *= rise.flip(0)
    return share
