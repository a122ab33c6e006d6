"""Reads the files of IP-Adapter in the layout in which they are published.

`image_proj.*` converts the output of a CLIP vision model to tokens. `ip_adapter.<n>.to_k_ip` and
`to_v_ip` compute keys and values from the tokens. n is the number of an attention layer of the
UNet. Every second attention layer is cross-attention.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.embeddings import ImageProjection, IPAdapterPlusImageProjection
from torch import Tensor, nn

from engine.diffusion.loading.weights import read_tensors
from engine.errors import EngineError

_PROJECTION, _LAYERS = "image_proj.", "ip_adapter."
_LAYER = re.compile(r"(\d+)\.to_([kv])_ip\.weight")
_HEAD_WIDTH = 64
_RESAMPLER_NAMES = {
    "0.norm1.": "ln0.",
    "0.norm2.": "ln1.",
    "0.to_q.": "attn.to_q.",
    "0.to_out.": "attn.to_out.0.",
    "1.0.": "ff.0.",
    "1.1.": "ff.1.net.0.proj.",
    "1.3.": "ff.1.net.2.",
}
"""The name of each part of a layer in the file, and its name in diffusers."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    name: str
    projection: nn.Module
    to_keys: tuple[Tensor, ...]
    """For each cross-attention layer, a matrix (width of the layer, width of a token)."""
    to_values: tuple[Tensor, ...]
    is_plus: bool
    """Whether the adapter uses the states of a picture's patches instead of its embedding."""
    vision_width: int
    """The width of the CLIP vision output that the adapter uses."""


def read_adapter(path: Path, device: torch.device) -> Adapter:
    """Read the file of an IP-Adapter. Raises EngineError if the file is not supported."""
    # On a CPU, half precision is slow.
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    tensors = {name: each.to(device, dtype) for name, each in read_tensors(path).items()}
    own = _part(tensors, _PROJECTION)
    keys, values = _layers(_part(tensors, _LAYERS), path.name)
    try:
        if "latents" in own:
            projection, width = _resampler(own)
        elif "proj.weight" in own:
            projection, width = _plain(own)
        else:
            raise EngineError(f"{path.name} is an IP-Adapter of an unsupported kind")
    except (LookupError, RuntimeError) as error:
        raise EngineError(f"{path.name} is damaged: {str(error).splitlines()[0]}") from error
    return Adapter(path.name, projection, keys, values, "latents" in own, width)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    own = (name for name in tensors if name.startswith(prefix))
    return {name.removeprefix(prefix): tensors[name] for name in own}


def _layers(own: Mapping[str, Tensor], name: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    if any("_lora." in key for key in own):
        raise EngineError(f"{name} is a FaceID adapter, which needs a face detector")
    found: dict[str, dict[int, Tensor]] = {"k": {}, "v": {}}
    for key, tensor in own.items():
        if match := _LAYER.fullmatch(key):
            found[match[2]][int(match[1])] = tensor
    keys, values = found["k"], found["v"]
    if not keys or keys.keys() != values.keys():
        raise EngineError(f"{name} is not an IP-Adapter: it has no pairs of to_k_ip and to_v_ip")
    numbers = sorted(keys)
    return tuple(keys[each] for each in numbers), tuple(values[each] for each in numbers)


def _plain(own: Mapping[str, Tensor]) -> tuple[nn.Module, int]:
    rows, width = own["proj.weight"].shape
    token_width = len(own["norm.weight"])
    with torch.device("meta"):
        module = ImageProjection(width, token_width, rows // token_width)
    return _filled(module, {_renamed(key): each for key, each in own.items()}), width


def _renamed(key: str) -> str:
    return key.replace("proj.", "image_embeds.")


def _resampler(own: Mapping[str, Tensor]) -> tuple[nn.Module, int]:
    """Return the resampler of a "plus" adapter, and the width of its input."""
    _, queries, hidden = own["latents"].shape
    width = own["proj_in.weight"].shape[1]
    depth = len({key.split(".")[1] for key in own if key.startswith("layers.")})
    with torch.device("meta"):
        module = IPAdapterPlusImageProjection(
            embed_dims=width,
            output_dims=len(own["proj_out.weight"]),
            hidden_dims=hidden,
            depth=depth,
            dim_head=_HEAD_WIDTH,
            heads=len(own["layers.0.0.to_q.weight"]) // _HEAD_WIDTH,
            num_queries=queries,
            ffn_ratio=len(own["layers.0.1.1.weight"]) / hidden,
        )
    state: dict[str, Tensor] = {}
    for key, tensor in own.items():
        if not key.startswith("layers."):
            state[key] = tensor
            continue
        layers, number, part = key.split(".", 2)
        if part.startswith("0.to_kv."):
            for name, half in zip(("to_k", "to_v"), tensor.chunk(2), strict=True):
                state[f"{layers}.{number}.attn.{name}.weight"] = half
            continue
        stored_part = next(each for each in _RESAMPLER_NAMES if part.startswith(each))
        module_part = _RESAMPLER_NAMES[stored_part]
        state[f"{layers}.{number}.{module_part}{part.removeprefix(stored_part)}"] = tensor
    return _filled(module, state), width


def _filled(module: Any, state: Mapping[str, Tensor]) -> nn.Module:
    module.load_state_dict(state, strict=True, assign=True)
    filled: nn.Module = module.eval().requires_grad_(False)
    return filled
