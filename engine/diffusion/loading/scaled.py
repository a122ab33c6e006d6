"""Weights of eight bits that a file stores with a scale, in ComfyUI's two ways to write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.errors import CheckpointUnavailable

_WEIGHT = ".weight"
_SCALES = (".scale_weight", ".weight_scale")
_FORMAT = ".comfy_quant"
_MOST_BYTES = 4096
_SHOWN_CHARS = 40
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_FORMATS = {"float8_e4m3fn", "float8_e5m2"}


def unscaled(
    key: str, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Tensor]
) -> Tensor:
    """The tensor of that name, multiplied by its scale if it has one.

    Raises CheckpointUnavailable for weights that are stored in another way.
    """
    stem = key.removesuffix(_WEIGHT)
    if stem == key:
        return read(key)
    if f"{stem}{_FORMAT}" in shapes:
        _require_format(read(f"{stem}{_FORMAT}"), key)
    tensor = read(key)
    scales = [f"{stem}{each}" for each in _SCALES if f"{stem}{each}" in shapes]
    if not scales:
        return tensor
    scale = read(scales[0]).float()
    if tensor.dtype not in _EIGHT_BITS or scale.numel() != 1:
        raise CheckpointUnavailable(
            f"{key} is {tensor.dtype} with {scale.numel()} scales: only fp8 with one is read"
        )
    return tensor.float() * scale.reshape(())


def _require_format(content: Tensor, key: str) -> None:
    try:
        described = content.flatten()[:_MOST_BYTES].to(torch.uint8).tolist()
        found = str(json.loads(bytes(described))["format"])
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointUnavailable(f"{key} does not say how it is stored") from error
    if found not in _FORMATS:
        raise CheckpointUnavailable(
            f"{key} is stored as {found[:_SHOWN_CHARS]}: only fp8 with one scale is read"
        )
