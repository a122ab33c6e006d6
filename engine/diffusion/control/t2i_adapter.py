"""T2I adapters: a small network makes features of a picture, and a UNet's encoder adds them.

Mou et al. 2023 (arXiv:2302.08453). The network runs before the UNet, and knows neither latent nor
time nor text. Its files have the original authors' keys or diffusers'.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from diffusers import T2IAdapter

from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.weights import LoadTarget, Weights
from engine.errors import CheckpointUnavailable

_PREFIX = "adapter."
_CELLS = 8 * 8
"""The pixels of a cell of a latent, which are channels of the first layer."""
_RESNETS = {True: 4, False: 2}
"""How many a level has, of a light adapter and of a full one."""
_LEVEL = re.compile(r"^body\.(\d+)\.")


def is_t2i_adapter(keys: Collection[str]) -> bool:
    """Whether these are the names of an adapter's weights."""
    return any(key.removeprefix(_PREFIX).startswith("body.0.") for key in keys)


def read_t2i_adapter(weights: Weights, target: LoadTarget) -> Any:
    """The network; raises CheckpointUnavailable, which says what is wrong with its file."""
    shapes = {key.removeprefix(_PREFIX): shape for key, shape in weights.shapes.items()}
    is_light = "conv_in.weight" not in shapes
    first = shapes.get("body.0.in_conv.weight" if is_light else "conv_in.weight", ())
    if len(first) != 4 or first[1] not in {_CELLS, 3 * _CELLS}:
        raise CheckpointUnavailable(
            f"{weights.name} is a T2I adapter for other models than Stable Diffusion 1, or is "
            "incomplete"
        )
    config = {
        "in_channels": first[1] // _CELLS,
        "channels": _channels(shapes, is_light=is_light),
        "num_res_blocks": _RESNETS[is_light],
        "adapter_type": "light_adapter" if is_light else "full_adapter",
    }
    with torch.device("meta"):
        network: Any = T2IAdapter.from_config(config)
    names = _key_map(network.state_dict(), weights.shapes, is_light=is_light)
    return weights.load_into(network, names, target)


def _channels(shapes: Mapping[str, tuple[int, ...]], *, is_light: bool) -> list[int]:
    """How wide the features of each level are."""
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
    # The last level of a light adapter is as wide as the one before it, which diffusers knows.
    return channels[:-1] if is_light else channels


def _key_map(names: Collection[str], keys: Collection[str], *, is_light: bool) -> KeyMap:
    """The tensor of the file for each weight of diffusers' network."""
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
