"""Z-Image (Z-Image team 2025, arXiv:2511.22699).

Text and picture are one sequence of tokens. Qwen3 encodes a text as a user's message in a chat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from diffusers import ZImageTransformer2DModel
from diffusers.models.transformers.transformer_z_image import SEQ_MULTI_OF
from tokenizers import Tokenizer
from torch import Tensor, nn, stack

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.families.model_family import Call
from engine.diffusion.families.transformer import (
    Shapes,
    TransformerFamily,
    count_of,
    padded_to_patches,
)
from engine.diffusion.families.z_image_control import ZImageControl, adding_residuals
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.samplers.noise_levels import FlowLevels, flow_levels
from engine.diffusion.text.encoding import FamilyTexts, split_at_embeddings
from engine.diffusion.text.language_models import Ids, Qwen3, encode_texts
from engine.diffusion.text.text_encoders import EncodingCache
from engine.diffusion.text.weighting import without_escapes
from engine.errors import EngineError
from engine.families.table import Z_IMAGE

CHAT = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
_MOST_CHAT_TOKENS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class ZImageTexts(FamilyTexts):
    """Encodes texts for Z-Image. Parentheses do not set weights, but are part of the text.

    As in ComfyUI, embeddings are split off after the text was put into the chat.
    """

    title = Z_IMAGE.title
    encoder: Qwen3
    tokenizer: Tokenizer
    cache: EncodingCache

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (self.encoder,)

    def with_networks(self, networks: Sequence[Any]) -> Self:
        (encoder,) = networks
        return replace(self, encoder=encoder)

    def encode(self, text: str) -> Work[Conditioning]:
        ids = self._ids(CHAT.format(text=without_escapes(text)))
        if len(ids) > _MOST_CHAT_TOKENS:
            raise EngineError(
                f"the text has {len(ids)} tokens, but at most {_MOST_CHAT_TOKENS} are allowed"
            )
        (states,) = yield from encode_texts(self.encoder, self.cache, [ids])
        return (Condition(states[None]),)

    def _ids(self, chat: str) -> Ids:
        return tuple(
            token
            for _, part in split_at_embeddings(chat)
            for token in self.tokenizer.encode(part, add_special_tokens=False).ids
        )


_SHIFT = 3.0
_MOST_TOKENS = 8192
_MOST_PATCHES = 2048
"""The largest number of patches along a side: the length of the network's tables of positions."""
_EQUAL_IN_CONTROL_NETS = ("dim", "n_heads", "n_refiner_layers")
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

    def levels(self, network: Any) -> FlowLevels:  # noqa: ARG002 - the method is inherited
        return flow_levels(_SHIFT)

    def text_width(self, network: Any) -> int:
        width: int = network.config.cap_feat_dim
        return width

    def require_own(self, network: Any, condition: Condition) -> None:
        super().require_own(network, condition)
        if (tokens := condition.tokens.shape[1]) > _MOST_TOKENS:
            raise EngineError(
                f"the text has {tokens} tokens, but Z-Image allows at most {_MOST_TOKENS}"
            )
        if condition.reference_latents:
            raise EngineError("Z-Image does not support reference latents here")

    def require_control(self, network: Any, control: Control) -> None:
        own, other = network.config, control.network.config
        if not isinstance(control, ZImageControl) or any(
            own[name] != other[name] for name in _EQUAL_IN_CONTROL_NETS
        ):
            super().require_control(network, control)

    def velocity(self, network: Any, call: Call) -> Tensor:
        x = call.x
        height, width = x.shape[2:]
        if max(height, width) > 2 * _MOST_PATCHES:
            raise EngineError(
                f"the sides of an image of Z-Image may have at most {16 * _MOST_PATCHES} pixels"
            )
        planes = padded_to_patches(x)[:, :, None]
        texts = [each.tokens[0].to(x.device, x.dtype) for each in call.conditions]
        with adding_residuals(network, call):
            found = network(list(planes), 1 - call.times, texts, return_dict=False)[0]
        # The network predicts x0 - noise, so its prediction is negated. Its time is 1 - sigma.
        return -stack(list(found))[:, :, 0, :height, :width]


def _padded(tokens: int) -> int:
    """Return the number of tokens after the network has padded them."""
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
