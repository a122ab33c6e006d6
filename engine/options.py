"""The options of an engine, for its device, its memory and its UNets, and those of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.graph.limits import Limits

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
    """Whether convolutions use the channels-last memory format, which is faster on tensor cores."""
    compiler: str | None = None
    """The backend of torch.compile, for example `inductor`; None compiles nothing. With a backend,
    the first steps of each image size take about a minute. UNets that FreeU has changed are not
    compiled.
    """


@dataclass(frozen=True, slots=True)
class DeviceOptions(UnetOptions):
    """Options for the device of an engine, for the memory of its models and for its UNets."""

    device: str = "cpu"
    """torch's name of the device, `cpu` or `cuda`. An engine does not start without its device."""
    threads: int | None = None
    """The number of threads that torch uses on a CPU; None means torch's default."""
    cache_bytes: int | None = None
    """The largest size of all loaded models together. None means three quarters of this engine's
    share of the GPU's memory, or 8 GiB on a CPU."""
    gpu_share: float = 1.0
    """The share of a GPU that the engine may use, 0 to 1."""
    step_seed_offset: int = 0
    """The number that is added to the seed for the noise of steps, on a CPU only. With 0, the noise
    of the first step equals the noise at the start, as in ComfyUI up to 0.3.75; 1 is as in 0.12."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options for one run of a graph."""

    limits: Limits = field(default=Limits())
    """The limits that are checked during the run, because the sizes of files and outputs are not
    known before.
    """
    first_index: Mapping[str, int] | None = None
    """The index of the first image of each output node. With None, images are counted in the order
    of the graph.
    """
    input_files: Mapping[str, bytes] = field(default_factory=dict)
    """The bytes of each file that the graph reads."""
    is_unbatched: bool = False
    """Whether the run shares no device call with other runs."""
    is_exclusive: bool = False
    """Whether the run starts when no other run is left. No other run starts until the exclusive run
    has ended or the engine's `exclusive_s` has passed.
    """
    has_previews: bool = False
    """Whether the progress of the run includes previews of the image."""
    max_untaken: int = 0
    """While this many results of the run are not yet taken by `Engine.take_result`, none of its
    nodes starts. 0 means no limit.
    """
    span_link: str = ""
    """The link of traces to the span of the run. The ends of runs that share device calls have the
    links of each other.
    """
