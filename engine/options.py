"""The options of an engine: its device, its memory and its UNets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]
WeightStreaming: TypeAlias = Literal["auto", "off"]


@dataclass(frozen=True, slots=True)
class UnetOptions:
    """How UNets are stored and called. Attention is always torch's own (SDPA)."""

    precision: Precision = "auto"
    """The precision of the weights; `auto` is float16 on a GPU and float32 on a CPU. Transformers
    and language models take bfloat16 for float16. CLIP's text encoders and VAEs always use float32.
    """
    channels_last: bool = False
    """Whether convolutions use the memory format that a GPU's tensor cores read best."""
    compiler: str | None = None
    """The backend of torch.compile, for example `inductor`; None compiles nothing. The first steps
    of each image size then take about a minute. UNets that FreeU has changed are not compiled.
    """


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """The device of an engine, and how much of its memory models may take."""

    device: str = "cpu"
    """torch's name of the device; `auto` is the first GPU, or the CPU if there is none."""
    threads: int | None = None
    """How many threads torch uses on a CPU; None leaves this to torch."""
    cache_bytes: int = 8 * 2**30
    """The largest size of all loaded models together."""
    text_cache_bytes: int = 128 * 2**20
    """The largest size of all encoded texts together."""
    step_seed_offset: int = 0
    """Added to the seed for the noise that samplers draw in their steps."""
    preview_period_s: float = 1.0
    """Of each run that is to have previews, one is made in that time at most."""
    unets: UnetOptions = UnetOptions()
    weight_streaming: WeightStreaming = "auto"
    """Whether networks of transformers and language models that do not fit on a GPU are streamed to
    it layer by layer."""
