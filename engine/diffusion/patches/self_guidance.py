"""Guidance away from an estimate that the model makes with a degraded input or network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.loading.layers import PlainAttention

_BLUR_RADIUS = 4
_LEAST_CELLS = 4
_THRESHOLD = 1.0


class SelfAttentionLayer(PlainAttention):
    """A self-attention layer. It never gets texts."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: None = None,
    ) -> Tensor:
        assert encoder_hidden_states is None
        assert attention_mask is None
        return self.attend(hidden_states)

    def attend(self, hidden_states: Tensor) -> Tensor:
        """Return the layer's output, (batch, positions, width), for states of the same shape."""
        return super().forward(hidden_states)

    def projections(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, (batch, positions, width) each."""
        keys, values = self.key_and_value_inputs(hidden_states)
        return self.to_q(hidden_states), self.to_k(keys), self.to_v(values)

    def attended_values(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attended values, (batch, positions, width)."""
        parts = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (query, key, value)
        )
        return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)

    def output(self, found: Tensor) -> Tensor:
        projection, dropout = self.to_out
        projected: Tensor = dropout(projection(found))
        return projected


class ValueAttention(SelfAttentionLayer):
    """Self-attention of each position only to itself (arXiv:2403.17377, equation 15)."""

    def attend(self, hidden_states: Tensor) -> Tensor:
        _, values = self.key_and_value_inputs(hidden_states)
        return self.output(self.to_v(values))


def perturb(unet: Any) -> None:
    """Make each position in the middle block of a UNet attend only to itself."""
    for name, layer in _middle_self_attention(unet):
        unet.set_submodule(name, ValueAttention(layer))
    # `watch` may have set `watched` to the name of a layer that has now been replaced.
    unet.watched = None


class WatchedAttention(SelfAttentionLayer):
    """Self-attention that keeps its attention map until the next call."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.attended: Tensor | None = None
        """(batch, positions): the mean over all heads, summed over all queries."""

    def attend(self, hidden_states: Tensor) -> Tensor:
        keys, _ = self.key_and_value_inputs(hidden_states)
        query, key = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.to_q(hidden_states), self.to_k(keys))
        )
        query = query / math.sqrt(query.shape[-1])
        # The heads are computed one after the other, because their scores need much memory.
        sums = [
            (one @ other.transpose(-1, -2)).float().softmax(-1).sum(1)
            for one, other in zip(query.unbind(1), key.unbind(1), strict=True)
        ]
        self.attended = torch.stack(sums).mean(0)
        return super().attend(hidden_states)


def watch(unet: Any) -> None:
    """Make the first self-attention layer of the middle block keep its attention map."""
    for name, layer in _middle_self_attention(unet)[:1]:
        unet.set_submodule(name, WatchedAttention(layer))
        unet.watched = name


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """Self-attention guidance: Hong et al. 2023 (arXiv:2210.00939), algorithm 1."""

    scale: float
    blur_sigma: float

    def degraded(self, x0: Tensor, attended: Tensor) -> Tensor:
        """Return x0 (batch, channels, h, w), blurred where the model attends most.

        `attended` is (batch, positions) for a level of the UNet. The sides of the level are the
        sides of x0, divided by a whole number and rounded up.
        """
        height, width = x0.shape[2:]
        part = math.ceil(math.sqrt(height * width / attended.shape[1]))
        mask = (attended > _THRESHOLD).view(-1, 1, -(-height // part), -(-width // part))
        mask = functional.interpolate(mask.to(x0), size=(height, width))
        return self._blurred(x0) * mask + x0 * (1.0 - mask)

    def _blurred(self, x0: Tensor) -> Tensor:
        if self.blur_sigma == 0:
            return x0
        offsets = torch.arange(-_BLUR_RADIUS, _BLUR_RADIUS + 1, device=x0.device).to(x0)
        weights = (-((offsets / self.blur_sigma) ** 2) / 2).exp()
        kernel = torch.outer(weights, weights) / weights.sum() ** 2
        padded = functional.pad(x0, (_BLUR_RADIUS,) * 4, mode="reflect")
        channels = x0.shape[1]
        return functional.conv2d(padded, kernel.expand(channels, 1, -1, -1), groups=channels)

    @staticmethod
    def can_degrade(x0: Tensor) -> bool:
        """Return whether x0 is large enough to be blurred."""
        return min(x0.shape[2:]) > _LEAST_CELLS


def self_attention(unet: Any) -> list[tuple[str, Any]]:
    """Return the names and layers of self-attention, in the order in which the layers run."""
    return [
        (f"{part}.{name}", layer)
        for part in ("down_blocks", "mid_block", "up_blocks")
        for name, layer in unet.get_submodule(part).named_modules()
        if name.endswith(".attn1")
    ]


def _middle_self_attention(unet: Any) -> list[tuple[str, Any]]:
    return [each for each in self_attention(unet) if each[0].startswith("mid_block.")]
