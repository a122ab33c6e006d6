"""Image prompts, to which the cross-attention of a UNet attends in addition to the text.

This is section 3.2.2 of IP-Adapter (Ye et al. 2023, arXiv:2308.06721). Each layer attends once more
with the same query. The output of this attention is added to the output for the text.
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
    """The index of the layer's transformer, in the order of calls. Each transformer has one or more
    layers of cross-attention.
    """
    width: int
    """The width of the layer's keys and values."""
    text_width: int


@dataclass(frozen=True, slots=True, eq=False)
class KeysValues:
    """Keys and values to which one layer attends, (1, tokens, width of the layer) each."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ImagePrompt:
    """Keys and values by the names of layers. All other layers attend only to the text."""

    positive: Mapping[str, KeysValues]
    negative: Mapping[str, KeysValues]
    """The keys and values for the rows of the negative conditioning."""
    mask: Mask | None = None
    """(masks, height, width) of any size: the weight of the prompt at each position. Each latent of
    a batch gets one mask. If there are fewer masks than latents, the last mask is repeated.
    """
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The start and the end of the prompt, as fractions (0..1) of the timesteps."""

    def applies_at(self, sigma: float, levels: NoiseLevels) -> bool:
        start, end = (levels.percent_to_sigma(percent) for percent in self.percent_range)
        return end <= sigma <= start


class AddedAttention(NamedTuple):
    """Image prompts to which some rows of a call attend in one layer, in addition to the text."""

    rows: Tensor
    """(n,): the indices of the rows."""
    keys: Tensor
    """(n, tokens, width). `values` has the same shape."""
    values: Tensor
    mask: Tensor | None
    """(n, 1, height, width)."""
    sides: tuple[int, int]
    """The height and the width of the latents."""

    def add_to(self, output: Tensor, query: Tensor) -> None:
        """Add the attention to the image prompts to `output`, the output for the texts.

        `output` and `query` are (rows, heads, positions, width of a head).
        """
        keys, values = (
            each.unflatten(-1, (query.shape[1], -1)).transpose(1, 2)
            for each in (self.keys, self.values)
        )
        more = functional.scaled_dot_product_attention(query[self.rows], keys, values)
        if self.mask is not None:
            sides = _sides(*self.sides, query.shape[2])
            mask = functional.interpolate(self.mask, size=sides, mode="bilinear")
            more = more * mask.flatten(2)[..., None].to(more)
        output.index_add_(0, self.rows, more)


@lru_cache(maxsize=256)
def _sides(height: int, width: int, positions: int) -> tuple[int, int]:
    """Return the sides of a grid of `positions` whose proportions are nearest to the latent's."""
    wanted = math.sqrt(positions * height / width)
    found = min(
        (each for each in range(1, positions + 1) if positions % each == 0),
        key=lambda each: abs(math.log(each / wanted)),
    )
    return found, positions // found
