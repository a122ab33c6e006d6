"""Reads ControlNets and T2I adapters from `.safetensors` files.

The keys of a file are those of Stable Diffusion or of diffusers, and show whether the file has a
ControlNet or a T2I adapter. The configuration is derived from the shapes of the weights; the number
of attention heads is derived from the width of the text. A ControlNet for which this number is
wrong needs a configuration: `name.config/config.json`, or `config.json` in a diffusers folder.

A T2I adapter (Mou et al. 2023, arXiv:2302.08453) computes features of a picture without a latent,
time or text. The encoder of a UNet adds these features to its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from weakref import ref

import torch
from diffusers import ControlNetModel, T2IAdapter
from diffusers.loaders.single_file_utils import (
    DIFFUSERS_TO_LDM_MAPPING,
    convert_controlnet_checkpoint,
)

from engine.diffusion.loading.layers import use_one_dnn
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.networks import require_unet
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import LoadTarget, Weights, first_line, read_json
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import CONFIG_SUFFIX, CONTROL_NETS

_PREFIX = "adapter."
_CELL_PIXELS = 8 * 8
"""The pixels in a cell of a latent. The first layer has a channel for each pixel and colour."""
_RESNETS = {True: 4, False: 2}
"""The number of residual blocks in each level, for a light adapter (True) and a full one."""
_LEVEL = re.compile(r"^body\.(\d+)\.")


def is_t2i_adapter(keys: Collection[str]) -> bool:
    """Return whether `keys` are the names of a T2I adapter's weights."""
    return any(key.removeprefix(_PREFIX).startswith("body.0.") for key in keys)


def read_t2i_adapter(weights: Weights, target: LoadTarget) -> Any:
    """Read a T2I adapter. Raises CheckpointUnavailable."""
    shapes = {key.removeprefix(_PREFIX): shape for key, shape in weights.shapes.items()}
    is_light = "conv_in.weight" not in shapes
    first = shapes.get("body.0.in_conv.weight" if is_light else "conv_in.weight", ())
    if len(first) != 4 or first[1] not in {_CELL_PIXELS, 3 * _CELL_PIXELS}:
        raise CheckpointUnavailable(
            f"{weights.name} is a T2I adapter for other models than Stable Diffusion 1, or is "
            "incomplete"
        )
    config = {
        "in_channels": first[1] // _CELL_PIXELS,
        "channels": _channels(shapes, is_light=is_light),
        "num_res_blocks": _RESNETS[is_light],
        "adapter_type": "light_adapter" if is_light else "full_adapter",
    }
    with torch.device("meta"):
        network: Any = T2IAdapter.from_config(config)
    names = _adapter_key_map(network.state_dict(), weights.shapes, is_light=is_light)
    return weights.load_into(network, names, target)


def _channels(shapes: Mapping[str, tuple[int, ...]], *, is_light: bool) -> list[int]:
    """Return the number of channels at each level."""
    widths: dict[int, int] = {}
    for name, shape in shapes.items():
        found = _LEVEL.match(name)
        if found is None:
            continue
        in_file = int(found[1])
        is_original = ".resnets." not in name and not is_light
        level = in_file // _RESNETS[False] if is_original else in_file
        if name.endswith("out_conv.weight" if is_light else "block1.weight"):
            widths[level] = shape[0]
    channels = [widths[level] for level in sorted(widths)]
    # diffusers' LightAdapter adds the last level itself, with the width of the level before.
    return channels[:-1] if is_light else channels


def _adapter_key_map(names: Collection[str], keys: Collection[str], *, is_light: bool) -> KeyMap:
    if any(".resnets." in key for key in keys):
        return {name: StoredTensor(name) for name in names}
    found = {}
    for name in names:
        key = name.removeprefix(_PREFIX)
        if is_light:
            key = key.replace(".resnets.", ".body.")
        else:
            key = re.sub(r"^body\.(\d+)\.(?:resnets\.(\d+)\.)?", _numbered, key)
        found[name] = StoredTensor(key)
    return found


def _numbered(found: re.Match[str]) -> str:
    return f"body.{int(found[1]) * _RESNETS[False] + int(found[2] or 0)}."


Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of the weights, by the names that diffusers uses."""

_DIFFUSERS_NAME = "diffusion_pytorch_model."
_LDM_PREFIX = "control_model."
_CONTROL_NET_KEYS = ("zero_convs.0.0.weight", "controlnet_cond_embedding.conv_in.weight")
_UNSUPPORTED = {
    "lora_controlnet": "a ControlLoRA",
    "lllite_": "a ControlNet-LLLite",
    "task_embedding": "a union of ControlNets",
}
_DIFFERENCE = "difference"
"""A key of files in which some weights are differences from the weights of a UNet."""
_HEADS_OF_SD1 = 8
_TEXT_WIDTH_OF_SD1 = 768
_HEAD_WIDTH = 64
_TIME_EMBEDDING_WIDTH = 256


def read_control_net(path: Path, device: torch.device, *, base: Any = None) -> Any:
    """Read a ControlNet or a T2I adapter. Raises CheckpointUnavailable.

    If the file has differences, the weights of the UNet `base` are added to the differences.
    """
    weights = Weights(path)
    is_difference = _DIFFERENCE in weights.shapes
    if is_difference and base is None:
        raise CheckpointUnavailable(
            f"{path.name} contains differences to a model: load it with DiffControlNetLoader"
        )
    target = LoadTarget(device, torch.float16 if device.type == "cuda" else torch.float32)
    if is_t2i_adapter(weights.shapes):
        return read_t2i_adapter(weights, target)
    key_map = _key_map(weights)
    try:
        shapes = {name: weights.shapes[stored.key] for name, stored in key_map.items()}
        config = _config_beside(path) or config_of(shapes)
        with torch.device("meta"):
            network: Any = ControlNetModel.from_config(config)
        weights.load_into(network, key_map, target)
        if is_difference:
            _add(base, network)
    except (IndexError, KeyError, StopIteration) as error:
        raise CheckpointUnavailable(
            f"{path.name} does not have the structure of the ControlNets of Stable Diffusion 1, 2 "
            f"and XL: {first_line(error)}"
        ) from error
    if path.stem.removesuffix("_fp16").endswith("_shuffle"):
        # The residuals of a shuffle network are averaged over the picture. Only the file name shows
        # this, and not the weights.
        network.register_to_config(global_pool_conditions=True)
    return use_one_dnn(network)


def control_net_on(store: ModelStore, name: str, unet: Any) -> Any:
    """Return the network of that name. `unet` is the base of a file with differences."""
    require_unet(unet)
    path = store.models.path(CONTROL_NETS, name)
    identity = store.identity(path)

    def create() -> Any:
        store.free_for(identity[1])
        return read_control_net(path, store.device, base=unet)

    return store.get_or_create(("controlnet", identity, ref(unet)), create)


def _add(base: Any, network: Any) -> None:
    own = dict(base.named_parameters())
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if (other := own.get(name)) is not None and other.shape == weight.shape:
                weight.add_(other.to(weight))


def config_of(shapes: Shapes) -> dict[str, Any]:
    """Return diffusers' configuration of a ControlNet from the shapes of its weights."""
    levels = [f"down_blocks.{level}" for level in range(_count(shapes, "down_blocks"))]
    widths = [shapes[f"{level}.resnets.0.conv1.weight"][0] for level in levels]
    depths = [_count(shapes, f"{level}.attentions.0.transformer_blocks") for level in levels]
    middle = _count(shapes, "mid_block.attentions.0.transformer_blocks")
    texts = (shape[1] for key, shape in shapes.items() if key.endswith("attn2.to_k.weight"))
    text_width = next(texts)
    hint = "controlnet_cond_embedding"
    steps = range(1, _count(shapes, f"{hint}.blocks"), 2)
    config = {
        "in_channels": shapes["conv_in.weight"][1],
        "conditioning_channels": shapes[f"{hint}.conv_in.weight"][1],
        "conditioning_embedding_out_channels": [
            shapes[f"{hint}.conv_in.weight"][0],
            *(shapes[f"{hint}.blocks.{step}.weight"][0] for step in steps),
        ],
        "block_out_channels": widths,
        "layers_per_block": _count(shapes, "down_blocks.0.resnets"),
        "down_block_types": ["CrossAttnDownBlock2D" if n else "DownBlock2D" for n in depths],
        "mid_block_type": "UNetMidBlock2DCrossAttn" if middle else "UNetMidBlock2D",
        "transformer_layers_per_block": [max(1, n) for n in (*depths[:-1], middle)],
        "cross_attention_dim": text_width,
        "attention_head_dim": _HEADS_OF_SD1
        if text_width == _TEXT_WIDTH_OF_SD1
        else [max(1, width // _HEAD_WIDTH) for width in widths],
        "use_linear_projection": any(
            key.endswith("proj_in.weight") and len(shape) == 2 for key, shape in shapes.items()
        ),
    }
    if (text_time := shapes.get("add_embedding.linear_1.weight")) is not None:
        config |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": _TIME_EMBEDDING_WIDTH,
            "projection_class_embeddings_input_dim": text_time[1],
        }
    return config


def _count(shapes: Shapes, prefix: str) -> int:
    """Return the number of different names that follow directly after the prefix."""
    return len(
        {
            key.removeprefix(f"{prefix}.").split(".")[0]
            for key in shapes
            if key.startswith(f"{prefix}.")
        }
    )


def _key_map(weights: Weights) -> KeyMap:
    keys = {key.removeprefix(_LDM_PREFIX): StoredTensor(key) for key in weights.shapes}
    _require_control_net(weights.name, keys)
    downsamplers = (int(key.split(".")[1]) for key in keys if key.endswith(".0.op.weight"))
    layers = min(downsamplers, default=1) - 1
    # The conversion only renames the keys, so the values need not be tensors.
    key_map: dict[str, StoredTensor | None] = convert_controlnet_checkpoint(
        keys, {"layers_per_block": layers}
    )
    # The conversion leaves out the additional embedding of SDXL.
    mapping: Any = DIFFUSERS_TO_LDM_MAPPING["controlnet"]
    text_time = mapping["addition_embed_type"].items()
    key_map |= {ours: keys[theirs] for ours, theirs in text_time if theirs in keys}
    return {name: stored for name, stored in key_map.items() if stored is not None}


def _require_control_net(name: str, keys: Collection[str]) -> None:
    for prefix, kind in _UNSUPPORTED.items():
        if any(key.startswith(prefix) for key in keys):
            raise CheckpointUnavailable(f"{name} is {kind}, which is not supported yet")
    if not any(key in keys for key in _CONTROL_NET_KEYS):
        raise CheckpointUnavailable(f"{name} is not a ControlNet of Stable Diffusion 1, 2 or XL")


def _config_beside(path: Path) -> dict[str, Any] | None:
    places = [path.with_suffix(CONFIG_SUFFIX)]
    if path.name.startswith(_DIFFUSERS_NAME):
        places.append(path.parent)
    for place in places:
        if (place / "config.json").is_file():
            return read_json(place / "config.json")
    return None
