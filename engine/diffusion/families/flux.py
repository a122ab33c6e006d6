"""Flux.1 (Labs et al. 2025, arXiv:2506.15742).

In the first blocks, text and picture are two streams. In the later blocks, they are one stream.
A text is encoded as the hidden states of T5 and the pooled vector of CLIP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from diffusers import FluxControlNetModel, FluxTransformer2DModel
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from engine.batcher import Work
from engine.diffusion.conditioning.condition import ConcatImage, Condition, Conditioning
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.families.flux_control import (
    exact_times,
    flux_residuals,
    pooled_of,
    positions_of,
)
from engine.diffusion.families.model_family import Call
from engine.diffusion.families.transformer import (
    Shapes,
    TransformerFamily,
    count_of,
    padded_texts,
    padded_to_patches,
    patches_of,
)
from engine.diffusion.host_copies import copied
from engine.diffusion.images.latents import PIXELS_PER_LATENT, Mask, repeated_to
from engine.diffusion.images.resampling import resampled
from engine.diffusion.inpainting import fitted_image, fitted_mask, require_channels, spread
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.samplers.noise_levels import FLUX_LEVELS, FlowLevels, flow_levels
from engine.diffusion.text.encoding import (
    Clip,
    FamilyTexts,
    chunks_of,
    encode,
    split_at_embeddings,
    weigh_from_empty,
)
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

    def embeddings_left_out(self, text: str) -> list[str]:
        return self.clip.embeddings_left_out(text)

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
            for _, part in split_at_embeddings(segment):
                own = self.tokenizer.encode(part, add_special_tokens=False).ids
                ids += own
                weights += [weight] * len(own)
        ids.append(_END)
        if len(ids) > _MOST_TOKENS:
            raise EngineError(
                f"the text has {len(ids)} tokens, but at most {_MOST_TOKENS} are allowed"
            )
        ids += [_PAD] * (_LEAST_TOKENS - len(ids))
        return tuple(ids), weights + [1.0] * (len(ids) - len(weights))


CLIP_L = "clip_l"
_DEV_MU = 1.15
_PATCH_CELLS = 4
"""The number of cells of a patch."""
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
    "proj_out.weight": "final_layer.linear.weight",
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
_SHARED_SIZES = (
    "joint_attention_dim",
    "pooled_projection_dim",
    "attention_head_dim",
    "num_attention_heads",
)
_BLOCK = re.compile(r"(single_)?transformer_blocks\.(\d+)\.(.+)$")


class Flux(TransformerFamily):
    """Flux.1 dev, which has a guidance scale as an input, and schnell, which does not.

    Kontext is a dev that also attends to reference latents. Fill gets a picture and a mask in
    further input channels, and the models for edges and depth get a picture there.
    """

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
            "out_channels": known["proj_out.weight"][0],
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
            return flow_levels(math.exp(_DEV_MU), FLUX_LEVELS)
        return flow_levels(1.0)

    def text_width(self, network: Any) -> int:
        width: int = network.config.joint_attention_dim
        return width

    def require_own(self, network: Any, condition: Condition) -> None:
        super().require_own(network, condition)
        pooled, own = condition.pooled, network.config.pooled_projection_dim
        if pooled is None or pooled.shape[-1] != own:
            raise EngineError(f"Flux.1 needs a text of CLIP with a pooled vector of {own}")

    def with_pictures(
        self,
        network: Any,
        condition: Condition,
        *,
        clean: Tensor,
        mask: Mask | None,
        scaled: Callable[[Tensor], Tensor],
    ) -> Condition:
        channels, references = clean.shape[1], condition.reference_latents
        extra_channels = network.config.in_channels // _PATCH_CELLS - channels
        if not extra_channels:
            for each in references:
                if each.shape[1] != channels:
                    raise EngineError(
                        f"a reference latent has {each.shape[1]} channels, but Flux.1 needs "
                        f"{channels}: encode the picture with the VAE of the model"
                    )
            own = (repeated_to(each.to(clean), len(clean)) for each in references)
            return replace(condition, references=tuple(map(scaled, own)))
        if references:
            raise EngineError(
                "this Flux.1 gets pictures in further input channels and takes no reference latents"
            )
        image = condition.concat_image
        require_channels(image, channels, self.traits.title)
        samples = torch.zeros_like(clean) if image is None else fitted_image(image.samples, clean)
        found = scaled(samples)
        if extra_channels > channels:
            found = torch.cat([found, _mask_channels(image, clean, mask)], dim=1)
        return replace(condition, concat_latent=found)

    def row_sharing(self, condition: Condition) -> Hashable:
        """Rows share a call only if their reference latents have equal sizes and positions.

        A mask of attention with biases is large, so all rows of a call with biases have the same.
        """
        sizes = tuple(tuple(each.shape[2:]) for each in condition.references)
        biases = condition.attention_biases
        length = condition.tokens.shape[1] if biases else 0
        return sizes, condition.reference_method if sizes else "", biases, length

    def require_control(self, network: Any, control: Control) -> None:
        own, other = network.config, control.network.config
        is_own = isinstance(control.network, FluxControlNetModel)
        if not is_own or any(own[name] != other[name] for name in _SHARED_SIZES):
            super().require_control(network, control)

    def velocity(self, network: Any, call: Call) -> Tensor:
        x, sigmas, conditions = call.x, call.times, call.conditions
        planes = padded_to_patches(call.inputs)
        down, across = (side // 2 for side in planes.shape[2:])
        parts, positions = [patches_of(planes)], [positions_of(down, across)]
        method = conditions[0].reference_method  # `row_sharing` makes it equal for all rows.
        for each, place in zip(
            call.references, reference_places(x, call.references, method), strict=True
        ):
            padded = padded_to_patches(each)
            parts.append(patches_of(padded))
            sides = (side // 2 for side in padded.shape[2:])
            positions.append(positions_of(*sides) + torch.tensor(place, dtype=torch.float32))
        patches, ids = torch.cat(parts, dim=1), torch.cat(positions)
        texts, is_token = padded_texts([each.tokens[0] for each in conditions])
        texts = texts.to(x.device, x.dtype)
        mask = _attention_mask(conditions, is_token, texts, patches)
        pooled = pooled_of(conditions).to(x.device, x.dtype)
        with exact_times(network, sigmas, conditions) as guidance:
            found: Tensor = network(
                patches,
                texts,
                pooled,
                sigmas,
                img_ids=copied(ids, x.device),
                txt_ids=torch.zeros(texts.shape[1], 3, device=x.device),
                guidance=guidance,
                joint_attention_kwargs=None if mask is None else {"attention_mask": mask},
                return_dict=False,
                **flux_residuals(network, call, self.latent),
            )[0]
        own_patches: Tensor = found[:, : down * across].mT
        whole = functional.pixel_shuffle(own_patches.unflatten(2, (down, across)), 2)
        return whole[:, :, : x.shape[2], : x.shape[3]]


def _attention_mask(
    conditions: Sequence[Condition], is_token: Tensor | None, texts: Tensor, patches: Tensor
) -> Tensor | None:
    """Return the mask of attention, or None if it changes nothing.

    The mask is (rows, 1, 1, keys), and with biases (1, 1, queries, keys). `is_token` (rows, tokens)
    is false at the padding of the texts. `texts` and `patches` are those of the rows.
    """
    if biases := conditions[0].attention_biases:
        # `row_sharing` makes biases and the lengths of texts equal for all rows.
        length = texts.shape[1]
        keys = length + patches.shape[1]
        found = patches.new_zeros(1, 1, keys, keys)
        for start, stop, bias in biases:
            found[..., :start, start:stop] = bias
            found[..., length:, start:stop] = bias
        return found
    if is_token is None:
        return None
    is_token = is_token.to(patches.device)
    return torch.cat([is_token, is_token.new_ones(patches.shape[:2])], dim=1)[:, None, None]


def reference_places(
    x: Tensor, references: Sequence[Tensor], method: str
) -> list[tuple[int, int, int]]:
    """Return the position of the first patch of each reference latent: index, row and column.

    The sampled latent `x` has the index 0. The methods are those of ComfyUI:

    - offset: all references have the index 1. Each is placed below the others or to their right.
    - index_timestep_zero: like offset for Flux.1.
    - index: each has an index of its own.
    - uxo: all have the index 0. Each is placed below and to the right of the latent and the others
      (Wu et al. 2025, arXiv:2504.02160).
    """
    found: list[tuple[int, int, int]] = []
    bottom = right = 0
    for number, each in enumerate(references, 1):
        height, width = each.shape[2:]
        match method:
            case "index":
                found.append((number, 0, 0))
            case "uxo":
                top, left = (-(-side // 2) * 2 for side in x.shape[2:])
                found.append((0, _patches_across(top + bottom), _patches_across(left + right)))
                bottom, right = bottom + height, right + width
            case _:
                is_tall = height + bottom > width + right
                top, left = (0, right) if is_tall else (bottom, 0)
                found.append((1, _patches_across(top), _patches_across(left)))
                bottom, right = max(bottom, height + top), max(right, width + left)
    return found


def _patches_across(cells: int) -> int:
    """Return the number of patches that cover so many cells."""
    return (cells + 1) // 2


def _mask_channels(image: ConcatImage | None, clean: Tensor, mask: Mask | None) -> Tensor:
    """Return the mask as channels of a latent, (batch, 64, h, w): the 8 x 8 pixels of each cell.

    Without a mask, the network paints everywhere.
    """
    if image is not None and image.mask is not None:
        planes = image.mask.reshape(-1, 1, *image.mask.shape[-2:]).to(clean)
    elif mask is not None:
        planes = fitted_mask(mask, clean)
    else:
        planes = torch.ones_like(clean[:1, :1])
    height, width = (PIXELS_PER_LATENT * side for side in clean.shape[2:])
    planes = resampled(planes, width, height, method="bilinear", crop="center")
    return spread(functional.pixel_unshuffle(planes, PIXELS_PER_LATENT), len(clean))


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
