"""Z-Image: one stream of text and picture (Z-Image team 2025, arXiv:2511.22699)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffusers import ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from torch import Tensor, stack

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.families.family import Call
from engine.diffusion.families.flow_levels import FlowLevels, flow_levels
from engine.diffusion.families.transformer import (
    Shapes,
    TransformerFamily,
    count_of,
    padded_to_patches,
)
from engine.diffusion.families.z_image_texts import ZImageTexts
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.text.language_models import Qwen3
from engine.diffusion.text.text_encoders import EncodingCache
from engine.errors import EngineError
from engine.families.z_image import Z_IMAGE

_SHIFT = 3.0
_MOST_TOKENS = 8192
_MOST_PATCHES = 2048
"""Of a side. The network looks its positions up in tables of these lengths."""
_PROJECTIONS = ("to_q", "to_k", "to_v")
_RENAMED = {
    "all_final_layer.2-1.": "final_layer.",
    "all_x_embedder.2-1.": "x_embedder.",
    ".attention.norm_k.": ".attention.k_norm.",
    ".attention.norm_q.": ".attention.q_norm.",
    ".attention.to_out.0.": ".attention.out.",
}


class ZImage(TransformerFamily):
    traits = Z_IMAGE
    network = ZImageTransformer2DModel
    encoders = (Qwen3.kind,)

    def texts(self, encoders: Mapping[str, Any], cache: EncodingCache) -> ZImageTexts:
        encoder, tokenizer = encoders[Qwen3.kind]
        return ZImageTexts(encoder, tokenizer, cache)

    def config(self, shapes: Shapes) -> dict[str, Any]:
        names = ("x_embedder.weight", "all_x_embedder.2-1.weight")
        width, inputs = next(shapes[name] for name in names if name in shapes)
        norms = ("layers.0.attention.q_norm.weight", "layers.0.attention.norm_q.weight")
        (head,) = next(shapes[name] for name in norms if name in shapes)
        return {
            "in_channels": inputs // 4,
            "dim": width,
            "n_layers": count_of(shapes, "layers."),
            "n_refiner_layers": count_of(shapes, "noise_refiner."),
            "n_heads": width // head,
            "n_kv_heads": width // head,
            "cap_feat_dim": shapes["cap_embedder.1.weight"][1],
            "axes_dims": [head // 4, head * 3 // 8, head * 3 // 8],
            "axes_lens": [_MOST_TOKENS + 64, _MOST_PATCHES, _MOST_PATCHES],
        }

    def key_map(self, names: Sequence[str], shapes: Shapes) -> KeyMap:
        return {name: _stored(name, shapes) for name in names}

    def joined_tokens(self, call: Call) -> Mapping[str, Sequence[int]]:
        height, width = call.x.shape[2:]
        patches = _padded(-(-height // 2) * -(-width // 2))
        return {
            "all_x_embedder.2-1": [patches] * len(call.x),
            "cap_embedder.1": [_padded(each.tokens.shape[1]) for each in call.conditions],
        }

    def levels(self, network: Any) -> FlowLevels:  # noqa: ARG002 - Flux has two kinds
        return flow_levels(_SHIFT)

    def text_width(self, network: Any) -> int:
        width: int = network.config.cap_feat_dim
        return width

    def require_own(self, network: Any, condition: Condition) -> None:
        super().require_own(network, condition)
        if (tokens := condition.tokens.shape[1]) > _MOST_TOKENS:
            raise EngineError(f"Z-Image takes {_MOST_TOKENS} tokens at most, the text has {tokens}")

    def velocity(
        self, network: Any, x: Tensor, sigmas: Tensor, conditions: Sequence[Condition]
    ) -> Tensor:
        height, width = x.shape[2:]
        if max(height, width) > 2 * _MOST_PATCHES:
            raise EngineError(f"Z-Image takes sides of {16 * _MOST_PATCHES} pixels at most")
        planes = padded_to_patches(x)[:, :, None]
        texts = [each.tokens[0].to(x.device, x.dtype) for each in conditions]
        found = network(list(planes), 1 - sigmas, texts, return_dict=False)[0]
        # The network's time runs from noise to picture, and so does what it predicts.
        return -stack(list(found))[:, :, 0, :height, :width]


def _padded(tokens: int) -> int:
    """How many there are once the network has padded them."""
    return -(-tokens // SEQ_MULTI_OF) * SEQ_MULTI_OF


def _stored(name: str, shapes: Shapes) -> StoredTensor:
    if name in shapes:
        return StoredTensor(name)
    key = name
    for ours, theirs in _RENAMED.items():
        key = key.replace(ours, theirs)
    for third, projection in enumerate(_PROJECTIONS):
        if f".attention.{projection}." in key:
            return StoredTensor(key.replace(f".{projection}.", ".qkv."), third=third)
    return StoredTensor(key)
