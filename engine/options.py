"""The options of an engine: its device, its memory and its UNets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class UnetOptions:
    """Options for the storage and the calls of UNets. Attention is always torch's SDPA."""

    precision: Precision = "auto"
    """The precision of the weights; `auto` is float16 on a GPU and float32 on a CPU. Transformers
    and language models use bfloat16 instead of float16. CLIP's text encoders and VAEs always use
    float32.
    """
    channels_last: bool = False
    """Whether convolutions use the memory format that a GPU's tensor cores read best."""
    compiler: str | None = None
    """The backend of torch.compile, for example `inductor`; None compiles nothing. With a backend,
    the first steps of each image size take about a minute. UNets that FreeU has changed are not
    compiled.
    """


@dataclass(frozen=True, slots=True)
class DeviceOptions(UnetOptions):
    """Options for the device of an engine, for the memory of its models, and for its UNets."""

    device: str = "cpu"
    """torch's name of the device; `auto` is the first GPU, or the CPU if there is no GPU."""
    threads: int | None = None
    """The number of threads that torch uses on a CPU; None means torch's default."""
    cache_bytes: int | None = None
    """The largest size of all loaded models together. None means three quarters of this engine's
    share of the GPU's memory, or 8 GiB on a CPU."""
    gpu_share: float = 1.0
    """The share of a GPU that the engine may use, 0 to 1."""
    step_seed_offset: int = 0
    """The number that is added to the seed for the noise of a sampler's steps. With 0, the noise of
    the first step equals the noise at the start, as in ComfyUI up to 0.3 on a CPU."""
