"""Reads ControlNets and T2I adapters from `.safetensors` files.

The keys of a file are those of Stable Diffusion, XLabs or diffusers, and show what the file has.
The configuration is derived from the shapes of the weights; the number of attention heads of a
network for UNets is derived from the width of the text. If this number is wrong, the network needs
a configuration: `name.config/config.json`, or `config.json` in a diffusers folder.

A T2I adapter (Mou et al. 2023, arXiv:2302.08453) computes features of a picture without a latent,
time or text. The encoder of a UNet adds these features to its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from weakref import ref

import torch
from diffusers import ControlNetModel, FluxControlNetModel, T2IAdapter, ZImageControlNetModel
from diffusers.loaders.single_file_utils import (
    DIFFUSERS_TO_LDM_MAPPING,
    convert_controlnet_checkpoint,
)

from engine.diffusion.conditioning.union_control_net import union_key, union_of
from engine.diffusion.families.flux import Flux
from engine.diffusion.families.z_image import ZImage
from engine.diffusion.families.z_image_control import control_net_config, share_untrained_blocks
from engine.diffusion.loading.layers import use_one_dnn
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.networks import configuration_checked, require_unet
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import LoadTarget, Weights, first_line
from engine.errors import CheckpointUnavailable
from engine.families.control_nets import (
    LDM_PREFIX,
    T2I_PREFIX,
    ControlKind,
    ControlTraits,
    control_traits,
    patch_traits,
)
from engine.graph.models_folder import CONFIG_SUFFIX, CONTROL_NETS, read_json

_CELL_PIXELS = 8 * 8
"""The pixels in a cell of a latent. The first layer has a channel for each pixel and colour."""
_RESNETS = {True: 4, False: 2}
"""The number of residual blocks in each level, for a light adapter (True) and a full one."""
_LEVEL = re.compile(r"^body\.(\d+)\.")


def read_t2i_adapter(weights: Weights, target: LoadTarget) -> Any:
    """Read a T2I adapter. Raises CheckpointUnavailable."""
    shapes = {key.removeprefix(T2I_PREFIX): shape for key, shape in weights.shapes.items()}
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
        key = name.removeprefix(T2I_PREFIX)
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
    traits = control_traits(path.name, weights.shapes)
    is_flux = traits.kind in {ControlKind.FLUX, ControlKind.XLABS}
    half = torch.bfloat16 if is_flux else torch.float16  # Flux.1 overflows in float16.
    target = LoadTarget(device, half if device.type == "cuda" else torch.float32)
    if is_flux:
        return _read_flux_control_net(weights, traits, target)
    if traits.kind is ControlKind.T2I_ADAPTER:
        return read_t2i_adapter(weights, target)
    key_map = _key_map(weights)
    try:
        shapes = {name: weights.shapes[stored.key] for name, stored in key_map.items()}
        config = _config_beside(path) or config_of(shapes)
        with torch.device("meta"):
            if types := traits.union_types:
                network: Any = union_of(config, types, shapes["task_embedding"][1])
                key_map = {name: key_map[union_key(name)] for name in network.state_dict()}
            else:
                network = ControlNetModel.from_config(config)
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


_XLABS_NAMES = {
    "controlnet_x_embedder": "pos_embed_input",
    "input_hint_block.conv_in": "input_hint_block.0",
    **{f"input_hint_block.blocks.{at}": f"input_hint_block.{2 * at + 2}" for at in range(6)},
    "input_hint_block.conv_out": "input_hint_block.14",
}
_XLABS_CONFIG = {"conditioning_embedding_channels": 16, "patch_size": 2}


class _FluxControlNet(FluxControlNetModel):
    """A ControlNet of Flux.1. Unlike in diffusers, a union may be called without a type."""

    def forward(self, *args: Any, controlnet_mode: Any = None, **inputs: Any) -> Any:
        # diffusers refuses a union without a type unless this flag is off.
        self.union = controlnet_mode is not None
        parent: Any = super()
        return parent.forward(*args, controlnet_mode=controlnet_mode, **inputs)


def _read_flux_control_net(weights: Weights, traits: ControlTraits, target: LoadTarget) -> Any:
    """Read a ControlNet of Flux.1. Raises CheckpointUnavailable."""
    shapes, family = weights.shapes, Flux()
    is_xlabs = traits.kind is ControlKind.XLABS
    with configuration_checked(weights.name), torch.device("meta"), warnings.catch_warnings():
        # diffusers warns that its own `FluxPosEmbed` is deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        # `Flux.config` reads `out_channels` from the last layer, which a ControlNet lacks.
        config = family.config({**shapes, "proj_out.weight": (0,)})
        del config["out_channels"]
        config["num_mode"] = traits.union_types or None
        make: Any = _FluxControlNet.from_config
        network: Any = make(config | (_XLABS_CONFIG if is_xlabs else {}))
        key_map = {name: _flux_key(name, family, shapes) for name in network.state_dict()}
    return use_one_dnn(weights.load_into(network, key_map, target))


def read_model_patch(path: Path, device: torch.device) -> Any:
    """Read a ControlNet of Z-Image. Raises CheckpointUnavailable."""
    weights = Weights(path)
    patch_traits(path.name, weights.shapes)
    with configuration_checked(weights.name), torch.device("meta"):
        make: Any = ZImageControlNetModel.from_config
        network: Any = make(control_net_config(weights.shapes))
    key_map = ZImage().key_map(list(network.state_dict()), weights.shapes)
    # Z-Image overflows in float16.
    target = LoadTarget(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    network = weights.load_into(network, key_map, target)
    share_untrained_blocks(network)
    return use_one_dnn(network)


def _flux_key(name: str, family: Flux, shapes: Shapes) -> StoredTensor:
    stem, _, end = name.rpartition(".")
    if name not in shapes and stem in _XLABS_NAMES:
        return StoredTensor(f"{_XLABS_NAMES[stem]}.{end}")
    if name.startswith("controlnet_"):
        return StoredTensor(name)
    return family.key_map([name], shapes)[name]


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
    keys = {key.removeprefix(LDM_PREFIX): StoredTensor(key) for key in weights.shapes}
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


def _config_beside(path: Path) -> dict[str, Any] | None:
    places = [path.with_suffix(CONFIG_SUFFIX)]
    if path.name.startswith(_DIFFUSERS_NAME):
        places.append(path.parent)
    for place in places:
        if (place / "config.json").is_file():
            return read_json(place / "config.json")
    return None
