"""Image prompts: what the cross-attention of a UNet attends to beside the text.

IP-Adapter: Ye et al. 2023 (arXiv:2308.06721), section 3.2.2: with the query of the text's attention
each layer attends once more, and the output is added to that of the text's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import Mask
from engine.diffusion.samplers.noise_levels import NoiseLevels


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """A cross-attention layer of a UNet."""

    name: str
    block: Literal["input", "middle", "output"]
    transformer: int
    """The number of its transformer, in the order in which they are called. Each has one layer of
    cross-attention or more."""
    width: int
    """That of its keys and values."""
    text_width: int


@dataclass(frozen=True, slots=True, eq=False)
class KeysValues:
    """What one layer attends to, (1, tokens, width of the layer) each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ImagePrompt:
    """Keys and values by the names of layers. Others attend to the text alone."""

    positive: Mapping[str, KeysValues]
    negative: Mapping[str, KeysValues]
    """For the rows of the negative conditioning."""
    mask: Mask | None = None
    """(masks, height, width) of any size: how much its output counts in each place. The latents of
    a batch take one each, and those that are left the last."""
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The percent (0..1) of the timesteps where it starts and ends."""

    def applies_at(self, sigma: float, levels: NoiseLevels) -> bool:
        start, end = (levels.percent_to_sigma(percent) for percent in self.percent_range)
        return end <= sigma <= start


class AddedAttention(NamedTuple):
    """What some rows of a call attend to in one layer, beside the text."""

    rows: Tensor
    """(n,), their indices."""
    keys: Tensor
    """(n, tokens, width), and `values` too."""
    values: Tensor
    mask: Tensor | None
    """(n, 1, height, width)."""
    sides: tuple[int, int]
    """The height and the width of the latents."""

    def add_to(self, found: Tensor, query: Tensor) -> None:
        """Add to the output of attention. Both are (rows, heads, places, width of a head)."""
        keys, values = (
            each.unflatten(-1, (query.shape[1], -1)).transpose(1, 2)
            for each in (self.keys, self.values)
        )
        more = functional.scaled_dot_product_attention(query[self.rows], keys, values)
        if self.mask is not None:
            sides = _sides(*self.sides, query.shape[2])
            mask = functional.interpolate(self.mask, size=sides, mode="bilinear")
            more = more * mask.flatten(2)[..., None].to(more)
        found.index_add_(0, self.rows, more)


@lru_cache(maxsize=256)
def _sides(height: int, width: int, places: int) -> tuple[int, int]:
    """The sides of so many places that are nearest to the proportions of the latent."""
    wanted = math.sqrt(places * height / width)
    found = min(
        (each for each in range(1, places + 1) if places % each == 0),
        key=lambda each: abs(math.log(each / wanted)),
    )
    return found, places // found
