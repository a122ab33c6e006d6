"""Checks the values that nodes make: their types, if the nodes are of other packages, and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.images.latents import CHANNELS, COLOURS, FLUX_CHANNELS, Latent
from engine.diffusion.samplers.sigmas import Sigmas
from engine.graph.declarations import VALUE_TYPES, is_value
from engine.reports import SavedLatent


def require_output(type_name: str, value: Any) -> None:
    """Raise ValueError if `value` does not have that type."""
    match type_name:
        case "IMAGE":
            _require_planes(value, 4)
            if value.shape[-1] not in {COLOURS, COLOURS + 1}:
                raise ValueError(f"must have 3 or 4 channels, not {value.shape[-1]}")
        case "MASK":
            _require_planes(value, 3)
        case "LATENT":
            _require_latent(value)
        case "CONDITIONING":
            if not isinstance(value, tuple) or not all(isinstance(x, Condition) for x in value):
                raise ValueError("must be a tuple of Condition")
        case "SIGMAS":
            if not isinstance(value, Sigmas):
                raise ValueError(f"must be Sigmas, not {_name(value)}")
        case _ if type_name in VALUE_TYPES and not is_value(type_name, value):
            raise ValueError(f"must be {VALUE_TYPES[type_name].__name__}, not {_name(value)}")


def require_numbers(maker: str, values: Tensor) -> None:
    """Raise ValueError for NaN, which would become black pixels."""
    if bool(values.isnan().any()):
        raise ValueError(
            f"{maker} has made values that are not numbers (NaN), so there is no picture: a model, "
            "a LoRA or an embedding is damaged or does not fit, or a setting is too extreme"
        )


def require_results(results: Any) -> None:
    """Raise ValueError unless `results` is a list of uint8 images, saved latents and texts."""
    if not isinstance(results, list):
        raise ValueError(f"an output node must return a list, not {_name(results)}")
    for each in results:
        if isinstance(each, SavedLatent | str):
            continue
        if not isinstance(each, np.ndarray) or each.dtype != np.uint8 or each.ndim != 3:
            raise ValueError(
                "results must be texts, or what context.pixels or context.saved returns"
            )


def _require_latent(value: Any) -> None:
    if not isinstance(value, Latent):
        raise ValueError(f"must be a Latent, not {_name(value)}")
    if value.samples.ndim != 4 or value.samples.shape[1] not in {CHANNELS, FLUX_CHANNELS}:
        raise ValueError("must have samples of (batch, 4 or 16, height, width)")


def _require_planes(value: Any, dimensions: int) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"must be a tensor, not {_name(value)}")
    if value.ndim != dimensions or not value.numel():
        raise ValueError(f"must have {dimensions} dimensions above 0, not {tuple(value.shape)}")
    if value.dtype != torch.float32 or value.device.type != "cpu":
        raise ValueError(f"must be float32 on the CPU, not {value.dtype} on {value.device}")


def _name(value: Any) -> str:
    return type(value).__name__
