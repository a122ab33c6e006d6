"""A union of ControlNets for UNets: one network for several types of pictures.

The network is ControlNetPlus (https://github.com/xinsir6/ControlNetPlus). The type of the picture
is added to the time embedding and, through a small transformer, to the encoded picture. As in
ComfyUI, and unlike in diffusers' `ControlNetUnionModel`, this transformer gets only the picture.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import ControlNetModel
from diffusers.models.controlnets.controlnet import ControlNetConditioningEmbedding
from diffusers.models.controlnets.controlnet_union import ResidualAttentionBlock
from diffusers.models.embeddings import TimestepEmbedding, Timesteps
from torch import Tensor, nn

_HEADS = 8
_TYPE_WIDTH = 256


class _TypeEmbedding(nn.Module):
    """Embeds the types of rows, (rows, types) of 0 or 1, for the time embedding."""

    def __init__(self, types: int, width: int) -> None:
        super().__init__()
        self.proj = Timesteps(_TYPE_WIDTH, flip_sin_to_cos=True, downscale_freq_shift=0)
        self.embedding = TimestepEmbedding(_TYPE_WIDTH * types, width)

    def forward(self, types: Tensor) -> Tensor:
        waves = self.proj(types.flatten()).reshape(len(types), -1)
        found: Tensor = self.embedding(waves.to(next(self.parameters())))
        return found


class _TypedHintEmbedding(nn.Module):
    """Encodes the pictures of rows, and adds their types."""

    def __init__(self, hint: ControlNetConditioningEmbedding, types: int, width: int) -> None:
        super().__init__()
        self.hint = hint
        self.task_embedding = nn.Parameter(torch.empty(types, width))
        self.transformer_layes = nn.ModuleList([ResidualAttentionBlock(width, _HEADS)])
        self.spatial_ch_projs = nn.Linear(width, width)
        self.types: Tensor | None = None
        """The types of the rows of the next call, (rows, types) of 0 or 1. A row may have none."""

    def forward(self, pictures: Tensor) -> Tensor:
        assert self.types is not None
        encoded: Tensor = self.hint(pictures)
        # The first axis has the only token of each row.
        token = (encoded.mean((2, 3)) + self.types @ self.task_embedding)[None]
        for layer in self.transformer_layes:
            token = layer(token)
        has_type = self.types.sum(1, keepdim=True)
        added: Tensor = self.spatial_ch_projs(token[0]) * has_type
        return encoded + added[:, :, None, None]


class UnionControlNet(ControlNetModel):
    """A ControlNet that also gets the type of its picture. `union_of` makes it."""

    def forward(self, *args: Any, class_labels: Tensor, **inputs: Any) -> Any:
        """Return the residuals. `class_labels` are the types of the rows, (rows, types)."""
        union: Any = self
        union.controlnet_cond_embedding.types = class_labels
        forward: Any = ControlNetModel.forward
        return forward(self, *args, class_labels=class_labels, **inputs)


def union_of(config: dict[str, Any], types: int, hint_width: int) -> Any:
    """Return a union of `types` types. `hint_width` is the width of an encoded picture."""
    make: Any = UnionControlNet.from_config
    network: Any = make(config)
    network.register_to_config(num_mode=types)
    network.class_embedding = _TypeEmbedding(types, network.config.block_out_channels[0] * 4)
    hint = network.controlnet_cond_embedding
    network.controlnet_cond_embedding = _TypedHintEmbedding(hint, types, hint_width)
    return network


def union_key(name: str) -> str:
    """Return the key in a file for a weight of a `UnionControlNet`."""
    for ours, theirs in (
        ("class_embedding.embedding.", "control_add_embedding."),
        ("controlnet_cond_embedding.hint.", "controlnet_cond_embedding."),
        ("controlnet_cond_embedding.", ""),
    ):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name
