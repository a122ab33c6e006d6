"""Maps the names of weights in diffusers and transformers to the keys of checkpoint files.

A checkpoint file has the keys of the latent diffusion code base (CompVis). The text encoder of
Stable Diffusion 2 and the larger text encoder of XL have the keys of open_clip.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file, and how a weight is extracted from it."""

    key: str
    third: int | None = None
    """0 for query, 1 for key, 2 for value, if the file stores these three weights as one tensor."""
    transposed: bool = False
    rows: tuple[int, int] | None = None
    """The start and the end of the extracted rows, if the tensor contains several weights."""
    swapped: bool = False
    """Whether the file stores the second half of the weight before the first half."""

    def extracted_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the shape of the weight if the tensor has `shape`, or None for a wrong `shape`."""
        if self.transposed:
            return shape[::-1] if len(shape) == 2 else None
        first, *rest = shape or (0,)
        if self.third is not None:
            return (first // 3, *rest) if first % 3 == 0 else None
        if self.rows is not None:
            start, end = self.rows
            return (end - start, *rest) if end <= first else None
        return shape if not self.swapped or first % 2 == 0 else None


KeyMap: TypeAlias = Mapping[str, StoredTensor]
"""The tensor in the file for each weight, by the weight's name in the module."""

_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
_VAE_ATTENTION = {
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
}
_OLD_VAE_ATTENTION = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
_OPEN_CLIP = {
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.final_layer_norm": "ln_final",
    "text_model.encoder.layers": "transformer.resblocks",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn": "attn",
}
_OPEN_CLIP_VISION = {
    "vision_model.embeddings.class_embedding": "class_embedding",
    "vision_model.embeddings.patch_embedding": "conv1",
    "vision_model.embeddings.position_embedding.weight": "positional_embedding",
    "vision_model.pre_layrnorm": "ln_pre",
    "vision_model.post_layernorm": "ln_post",
    "vision_model.encoder.layers": "transformer.resblocks",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "self_attn": "attn",
}
_TRANSPOSED = {
    "text_projection.weight": "text_projection",
    "visual_projection.weight": "proj",
}
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_PROJECTION = re.compile(r"\.([qkv]_proj)\.(weight|bias)$")


def identity_map(names: Iterable[str]) -> KeyMap:
    """Return the key map of a file whose keys are the names in the module."""
    return {name: StoredTensor(name) for name in names}


def unet(names: Iterable[str], config: Mapping[str, Any], prefix: str = "") -> KeyMap:
    """Return the key map of a UNet in a single file. The UNet's keys begin with `prefix`."""
    found = unet_names(names, config)
    return {name: StoredTensor(f"{prefix}{key}") for name, key in found.items()}


def unet_names(names: Iterable[str], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys in a single file, by the names of a UNet's weights or modules."""
    blocks = _unet_blocks(config)
    found = {}
    for name in names:
        block = max(
            (each for each in blocks if f"{name}.".startswith(f"{each}.")), key=len, default=""
        )
        if not block:
            continue
        rest = name.removeprefix(block)
        if ".resnets." in block and rest:
            layer, dot, end = rest[1:].partition(".")
            rest = f".{_RESNET[layer]}{dot}{end}"
        found[name] = blocks[block] + rest
    return found


def _unet_blocks(config: Mapping[str, Any]) -> dict[str, str]:
    blocks = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "add_embedding.linear_1": "label_emb.0.0",
        "add_embedding.linear_2": "label_emb.0.2",
        "class_embedding.linear_1": "label_emb.0.0",
        "class_embedding.linear_2": "label_emb.0.2",
        "conv_in": "input_blocks.0.0",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
        "mid_block.resnets.0": "middle_block.0",
        "mid_block.attentions.0": "middle_block.1",
        "mid_block.resnets.1": "middle_block.2",
    }
    depth = config["layers_per_block"] + 1
    for level, up_type in enumerate(config["up_block_types"]):
        for layer in range(depth):
            down, up = 1 + level * depth + layer, level * depth + layer
            blocks[f"down_blocks.{level}.resnets.{layer}"] = f"input_blocks.{down}.0"
            blocks[f"down_blocks.{level}.attentions.{layer}"] = f"input_blocks.{down}.1"
            blocks[f"up_blocks.{level}.resnets.{layer}"] = f"output_blocks.{up}.0"
            blocks[f"up_blocks.{level}.attentions.{layer}"] = f"output_blocks.{up}.1"
        down_end, up_end = (level + 1) * depth, level * depth + depth - 1
        after = 2 if "CrossAttn" in up_type else 1
        blocks[f"down_blocks.{level}.downsamplers.0.conv"] = f"input_blocks.{down_end}.0.op"
        blocks[f"up_blocks.{level}.upsamplers.0.conv"] = f"output_blocks.{up_end}.{after}.conv"
    return blocks


def vae(names: Iterable[str], config: Mapping[str, Any], prefix: str = "") -> KeyMap:
    """Return the key map of a VAE in a single file."""
    top = len(config["block_out_channels"]) - 1
    return {name: StoredTensor(f"{prefix}{_vae_key(name, top)}") for name in names}


def _vae_key(name: str, top: int) -> str:
    new = re.sub(r"encoder\.down_blocks\.(\d)\.resnets\.(\d)", r"encoder.down.\1.block.\2", name)
    new = re.sub(r"encoder\.down_blocks\.(\d)\.downsamplers\.0", r"encoder.down.\1.downsample", new)
    new = re.sub(
        r"decoder\.up_blocks\.(\d)\.resnets\.(\d)",
        lambda at: f"decoder.up.{top - int(at[1])}.block.{at[2]}",
        new,
    )
    new = re.sub(
        r"decoder\.up_blocks\.(\d)\.upsamplers\.0",
        lambda at: f"decoder.up.{top - int(at[1])}.upsample",
        new,
    )
    new = re.sub(r"mid_block\.resnets\.(\d)", lambda at: f"mid.block_{int(at[1]) + 1}", new)
    new = new.replace("mid_block.attentions.0", "mid.attn_1")
    new = new.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
    for ours, theirs in _VAE_ATTENTION.items():
        new = new.replace(f"attn_1.{ours}", f"attn_1.{theirs}")
    return new


def diffusers_vae(names: Iterable[str], keys: Collection[str]) -> KeyMap:
    """Return the key map of a VAE that diffusers wrote, possibly an old version of diffusers."""
    found = {}
    for name in names:
        key = name
        if name not in keys:
            for new, old in _OLD_VAE_ATTENTION.items():
                key = key.replace(f".{new}.", f".{old}.")
        found[name] = StoredTensor(key)
    return found


def clip(names: Iterable[str], keys: Collection[str], prefix: str = "") -> KeyMap:
    """Return the key map of a text encoder in transformers' layout. `text_model.` is optional."""
    found = {}
    for name in names:
        key = f"{prefix}{name}"
        found[name] = StoredTensor(
            key if key in keys else f"{prefix}{name.removeprefix('text_model.')}"
        )
    return found


def open_clip(names: Iterable[str], prefix: str) -> KeyMap:
    """Return the key map of a text encoder in open_clip's layout."""
    return _open_clip(names, prefix, _OPEN_CLIP)


def open_clip_vision(names: Iterable[str], prefix: str) -> KeyMap:
    """Return the key map of a vision encoder in open_clip's layout. OpenAI's layout is the same."""
    return _open_clip(names, prefix, _OPEN_CLIP_VISION)


def _open_clip(names: Iterable[str], prefix: str, replaced: Mapping[str, str]) -> KeyMap:
    found = {}
    for name in names:
        key = name
        for ours, theirs in replaced.items():
            key = key.replace(ours, theirs)
        if name in _TRANSPOSED:
            found[name] = StoredTensor(f"{prefix}{_TRANSPOSED[name]}", transposed=True)
        elif at := _PROJECTION.search(key):
            whole = f"{prefix}{key[: at.start()]}.in_proj_{at[2]}"
            found[name] = StoredTensor(whole, third=_PROJECTIONS.index(at[1]))
        else:
            found[name] = StoredTensor(f"{prefix}{key}")
    return found
