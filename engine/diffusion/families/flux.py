"""Flux.1 (Labs et al. 2025, arXiv:2506.15742).

In the first blocks, text and picture are two streams. In the later blocks, they are one stream.
A text is encoded as the hidden states of T5 and the pooled vector of CLIP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from diffusers import FluxTransformer2DModel
from tokenizers import Tokenizer
from torch import Tensor, nn

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.families.transformer import (
    Shapes,
    TransformerFamily,
    count_of,
    padded_texts,
    padded_to_patches,
)
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.samplers.noise_levels import FlowLevels, flow_levels
from engine.diffusion.text.encoding import Clip, FamilyTexts, chunks_of, encode, weigh_from_empty
from engine.diffusion.text.language_models import T5, Ids, encode_texts
from engine.diffusion.text.text_encoders import EncodingCache
from engine.diffusion.text.weighting import weighted_segments
from engine.errors import EngineError
from engine.families.table import FLUX

_END, _PAD = 1, 0
_LEAST_TOKENS = 256
"""A shorter text is padded to this number of tokens. Attention includes this padding."""
_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class FluxTexts(FamilyTexts):
    title = FLUX.title
    clip: Clip
    encoder: T5
    tokenizer: Tokenizer
    cache: EncodingCache

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (*self.clip.networks, self.encoder)

    def with_networks(self, networks: Sequence[Any]) -> Self:
        *clip, encoder = networks
        return replace(self, clip=self.clip.with_networks(clip), encoder=encoder)

    def encode(self, text: str) -> Work[Conditioning]:
        return self.encode_pair(text, text)

    def encode_pair(self, first: str, second: str) -> Work[Conditioning]:
        """Return the conditioning of the text `first` for CLIP and the text `second` for T5."""
        chunks = chunks_of(first, self.clip.tokenizer, self.clip.embeddings)
        (condition,) = yield from encode(self.clip, chunks)
        states = yield from self._states(second)
        return (replace(condition, tokens=states[None]),)

    def _states(self, text: str) -> Work[Tensor]:
        ids, weights = self._weighted(text)
        if all(weight == 1.0 for weight in weights):
            (states,) = yield from encode_texts(self.encoder, self.cache, [ids])
            return states
        empty: Ids = (_END, *[_PAD] * (len(ids) - 1))
        states, nothing = yield from encode_texts(self.encoder, self.cache, [ids, empty])
        return weigh_from_empty(states, states.new_tensor(weights)[:, None], nothing)

    def _weighted(self, text: str) -> tuple[Ids, list[float]]:
        """Return the tokens of a text and their weights, with the end token and the padding."""
        ids: list[int] = []
        weights: list[float] = []
        for segment, weight in weighted_segments(text):
            own = self.tokenizer.encode(segment, add_special_tokens=False).ids
            ids += own
            weights += [weight] * len(own)
        ids.append(_END)
        if len(ids) > _MOST_TOKENS:
            raise EngineError(
                f"the text has {len(ids)} tokens, but at most {_MOST_TOKENS} are allowed"
            )
        ids += [_PAD] * (_LEAST_TOKENS - len(ids))
        return tuple(ids), weights + [1.0] * (len(ids) - len(weights))


LEVELS = 10_000
"""The number of noise levels of the dev model that schedules can use."""
CLIP_L = "clip_l"
_DEV_MU = 1.15
_GUIDANCE = 3.5
_MLP_RATIO = 4
_DOUBLE = {
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.norm_q.weight": "img_attn.norm.query_norm.scale",
    "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
    "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
    "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
}
_SINGLE = {
    "norm.linear": "modulation.lin",
    "attn.norm_q.weight": "norm.query_norm.scale",
    "attn.norm_k.weight": "norm.key_norm.scale",
    "proj_out": "linear2",
}
_TOP = {
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "context_embedder": "txt_in",
    "x_embedder": "img_in",
    "proj_out": "final_layer.linear",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
}
_SHAPES = {
    "x_embedder.weight": "img_in.weight",
    "context_embedder.weight": "txt_in.weight",
    "time_text_embed.text_embedder.linear_1.weight": "vector_in.in_layer.weight",
    "transformer_blocks.0.attn.norm_q.weight": "double_blocks.0.img_attn.norm.query_norm.scale",
}
_PROJECTIONS = {
    f"attn.{name}": (stream, third)
    for stream, names in (
        ("img", ("to_q", "to_k", "to_v")),
        ("txt", ("add_q_proj", "add_k_proj", "add_v_proj")),
    )
    for third, name in enumerate(names)
}
_JOINED = {"attn.to_q": (0, 1), "attn.to_k": (1, 2), "attn.to_v": (2, 3)}
_BLOCK = re.compile(r"(single_)?transformer_blocks\.(\d+)\.(.+)$")


class Flux(TransformerFamily):
    """Flux.1 dev, which has a guidance scale as an input, and schnell, which does not."""

    traits = FLUX
    network = FluxTransformer2DModel
    encoders = (CLIP_L, T5.kind)

    def texts(self, encoders: Mapping[str, Any], cache: EncodingCache) -> FluxTexts:
        encoder, tokenizer = encoders[T5.kind]
        return FluxTexts(encoders[CLIP_L], encoder, tokenizer, cache)

    def config(self, shapes: Shapes) -> dict[str, Any]:
        known = {ours: shapes.get(ours, shapes.get(theirs, ())) for ours, theirs in _SHAPES.items()}
        width, inputs = known["x_embedder.weight"]
        (head,) = known["transformer_blocks.0.attn.norm_q.weight"]
        return {
            "in_channels": inputs,
            "num_layers": count_of(shapes, "transformer_blocks.")
            or count_of(shapes, "double_blocks."),
            "num_single_layers": count_of(shapes, "single_transformer_blocks.")
            or count_of(shapes, "single_blocks."),
            "attention_head_dim": head,
            "num_attention_heads": width // head,
            "joint_attention_dim": known["context_embedder.weight"][1],
            "pooled_projection_dim": known["time_text_embed.text_embedder.linear_1.weight"][1],
            "guidance_embeds": any("guidance_" in key for key in shapes),
            "axes_dims_rope": [head // 8, head * 7 // 16, head * 7 // 16],
        }

    def key_map(self, names: Sequence[str], shapes: Shapes) -> KeyMap:
        return {name: _stored(name, shapes) for name in names}

    def file_keys(self, network: Any, names: Sequence[str]) -> KeyMap:
        joined = ((3 + _MLP_RATIO) * network.inner_dim,)
        blocks = range(len(network.single_transformer_blocks))
        return self.key_map(names, {f"single_blocks.{at}.linear1.weight": joined for at in blocks})

    def levels(self, network: Any) -> FlowLevels:
        if network.config.guidance_embeds:
            return flow_levels(math.exp(_DEV_MU), LEVELS)
        return flow_levels(1.0)

    def text_width(self, network: Any) -> int:
        width: int = network.config.joint_attention_dim
        return width

    def require_own(self, network: Any, condition: Condition) -> None:
        super().require_own(network, condition)
        pooled, own = condition.pooled, network.config.pooled_projection_dim
        if pooled is None or pooled.shape[-1] != own:
            raise EngineError(f"Flux.1 needs a text of CLIP with a pooled vector of {own}")

    def velocity(
        self, network: Any, x: Tensor, sigmas: Tensor, conditions: Sequence[Condition]
    ) -> Tensor:
        planes = padded_to_patches(x)
        down, across = (side // 2 for side in planes.shape[2:])
        texts, own = padded_texts([each.tokens[0] for each in conditions])
        texts, own = texts.to(x.device, x.dtype), own.to(x.device)
        mask = None
        if not bool(own.all()):
            mask = torch.cat([own, own.new_ones(len(x), down * across)], dim=1)[:, None, None]
        pooled = torch.cat([_pooled(each) for each in conditions]).to(x.device, x.dtype)
        scales = [_GUIDANCE if each.guidance is None else each.guidance for each in conditions]
        found: Tensor = network(
            _patches(planes),
            texts,
            pooled,
            sigmas,
            img_ids=_positions(down, across).to(x.device),
            txt_ids=torch.zeros(texts.shape[1], 3, device=x.device),
            guidance=sigmas.new_tensor(scales) if network.config.guidance_embeds else None,
            joint_attention_kwargs=None if mask is None else {"attention_mask": mask},
            return_dict=False,
        )[0]
        whole: Tensor = found.unflatten(1, (down, across)).unflatten(3, (-1, 2, 2))
        whole = whole.permute(0, 3, 1, 4, 2, 5).reshape(planes.shape)
        return whole[:, :, : x.shape[2], : x.shape[3]]


def _pooled(condition: Condition) -> Tensor:
    assert condition.pooled is not None  # `require_own` has checked this.
    return condition.pooled


def _patches(planes: Tensor) -> Tensor:
    """Return the patches of 2 x 2 cells as (rows, patches, 4 * channels)."""
    cells: Tensor = planes.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _positions(down: int, across: int) -> Tensor:
    """Return (patches, 3): for each patch, 0, its row and its column."""
    rows, columns = torch.meshgrid(torch.arange(down), torch.arange(across), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3).float()


def _stored(name: str, shapes: Shapes) -> StoredTensor:
    if name in shapes:
        return StoredTensor(name)
    found = _BLOCK.match(name)
    if found is None:
        stem, _, end = name.rpartition(".")
        # In the file, shift comes before scale. In the network, scale comes before shift.
        return StoredTensor(f"{_TOP[stem]}.{end}", swapped=stem == "norm_out.linear")
    is_single, at, rest = found.groups()
    if is_single:
        return _in_single(f"single_blocks.{at}", rest, shapes)
    return _in_double(f"double_blocks.{at}", rest)


def _in_double(block: str, rest: str) -> StoredTensor:
    if rest in _DOUBLE:
        return StoredTensor(f"{block}.{_DOUBLE[rest]}")
    stem, _, end = rest.rpartition(".")
    if stem in _PROJECTIONS:
        stream, third = _PROJECTIONS[stem]
        return StoredTensor(f"{block}.{stream}_attn.qkv.{end}", third=third)
    return StoredTensor(f"{block}.{_DOUBLE[stem]}.{end}")


def _in_single(block: str, rest: str, shapes: Shapes) -> StoredTensor:
    if rest in _SINGLE:
        return StoredTensor(f"{block}.{_SINGLE[rest]}")
    stem, _, end = rest.rpartition(".")
    if stem in _SINGLE:
        return StoredTensor(f"{block}.{_SINGLE[stem]}.{end}")
    # One tensor has query, key, value and the first layer of the perceptron, in this order.
    key = f"{block}.linear1.{end}"
    width = shapes[key][0] // (3 + _MLP_RATIO)
    first, last = _JOINED.get(stem, (3, 3 + _MLP_RATIO))
    return StoredTensor(key, rows=(first * width, last * width))
