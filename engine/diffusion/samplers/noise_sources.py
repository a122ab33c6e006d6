"""Chooses the generators that draw noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.samplers.philox import Philox
from engine.graph.names import Sampler
from engine.webui.parameters import RandnSource

Source: TypeAlias = Literal["cpu", "device", "philox"]
"""torch's generator on the CPU, its generator on the model's device, or its generator on a CUDA
device, computed on the CPU.
"""

Randn: TypeAlias = Callable[[Sequence[int]], Tensor]
"""A function of a shape that returns the next normal numbers of a generator, in float32."""

SeededRandn: TypeAlias = Callable[[int], Randn]
"""A function of a seed that returns the `Randn` of a new generator with this seed."""


def randn_of(generator: torch.Generator) -> Randn:
    return partial(torch.randn, generator=generator, device=generator.device, dtype=torch.float32)


def cpu_randn(seed: int) -> Randn:
    return randn_of(torch.Generator().manual_seed(seed))


def seeded_randn(source: Source, device: torch.device) -> SeededRandn:
    match source:
        case "cpu":
            return cpu_randn
        case "device":
            return lambda seed: randn_of(torch.Generator(device).manual_seed(seed))
        case "philox":
            return lambda seed: Philox(seed).randn


@dataclass(frozen=True, slots=True)
class NoiseSources:
    start: Source = "cpu"
    """The source of the noise at the start of sampling."""
    step: Source = "cpu"
    """The source of the independent noise of steps."""
    path: Source = "cpu"
    """The source of Brownian paths."""


ON_CPU = NoiseSources()
_OF_WEBUI: dict[RandnSource, Source] = {"CPU": "cpu", "GPU": "device", "NV": "philox"}


def comfyui_sources(sampler: Sampler) -> NoiseSources:
    """Return the sources of ComfyUI, which draws on the device, except at the start."""
    return NoiseSources(step="device", path="device" if sampler.draws_path_on_device else "cpu")


def webui_sources(randn_source: RandnSource) -> NoiseSources:
    """Return the sources for a setting of the WebUI, which draws all noise from one source."""
    source = _OF_WEBUI[randn_source]
    return NoiseSources(source, source, source)


def offset_on(device: torch.device, cpu_offset: int) -> int:
    """Return the offset of the seed of the noise of steps. ComfyUI adds one only on a CPU."""
    return cpu_offset if device.type == "cpu" else 0
