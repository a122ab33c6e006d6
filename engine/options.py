"""How an engine uses its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class UnetOptions:
    """How UNets are kept and called. Attention is torch's own (SDPA) in any case."""

    precision: Precision = "auto"
    """Of their weights; auto: float16 on a GPU, float32 on a CPU. Text encoders and VAEs are always
    computed in float32.
    """
    channels_last: bool = False
    """Convolutions in the memory format that a GPU's tensor cores read best."""
    compiler: str | None = None
    """Backend of torch.compile, as `inductor`. The first steps of each size take a minute or so;
    FreeU's variants are not compiled.
    """


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """What an engine is told of its device when it starts."""

    device: str = "cpu"
    """As torch names it; `auto`: the first GPU, or the CPU where there is none."""
    threads: int | None = None
    """Of torch on a CPU; None: its own choice."""
    cache_bytes: int = 8 * 2**30
    """What the loaded models may take."""
    text_cache_bytes: int = 128 * 2**20
    """What the encoded texts may take."""
    step_seed_offset: int = 0
    """The noise that samplers draw at their steps is of the seed that far from the start's."""
    unets: UnetOptions = UnetOptions()
