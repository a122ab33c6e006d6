"""What a family of models is, as far as any process needs to know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self, TypeAlias

from engine.graph.safetensors_header import Header

UNET = "model.diffusion_model."
"""The prefix that the weights of a network have in the single file of a checkpoint, whatever the
network is."""
VAE = "first_stage_model."
"""The prefix of a VAE beside a UNet."""

Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue of 0..255."""


class Family(StrEnum):
    """The architectures that are supported."""

    SD1 = "sd1"
    SD2 = "sd2"
    SDXL = "sdxl"
    SDXL_REFINER = "sdxl_refiner"
    Z_IMAGE = "z_image"
    FLUX = "flux"


class ModelName(str):
    """The name of a model, with its family as far as its file tells it."""

    __slots__ = ("family",)
    family: Family | None

    def __new__(cls, name: str, family: Family | None) -> Self:
        made = super().__new__(cls, name)
        made.family = family
        return made


@dataclass(frozen=True, slots=True)
class Preview:
    """A linear map from the channels of a latent, as the network has it, to a picture."""

    weights: tuple[Colour, ...]
    """What one of each channel adds."""
    bias: Colour
    """The colour of zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What its models are worth, beside those of Stable Diffusion: see docs/costs.md."""

    call: float = 1.0
    """A call of the network."""
    text: float = 1.0
    """A token encoded."""
    load: float = 1.0
    """The network loaded, for UNets a whole checkpoint."""
    text_load: float = 0.0
    """Its text encoders loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a diffusion request takes where it says nothing; None: what is usual."""

    steps: int | None = None
    cfg_scale: float | None = None
    sampler_name: str | None = None
    scheduler: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One family: a value in a module of its own, and a row of `table.py`."""

    family: Family
    title: str
    """What it is called in messages."""
    place: str
    """What it is on the device: `module:class` in `engine.diffusion.families`."""
    text_encoders: tuple[str, ...]
    """The prefixes that the weights of its text encoders have in a checkpoint's single file."""
    is_network: Callable[[Header, str], bool] | None = None
    """Whether the network whose weights have that prefix is of the family; raises
    CheckpointUnavailable for a near relative. None: a UNet, which is told by its text encoders and
    loaded with them alone."""
    pipeline: str | None = None
    """What the names of diffusers' pipelines for the family have in them, where that tells it."""
    lora_text_width: int | None = None
    """The width of the text that its LoRAs attend to."""
    clip_type: str | None = None
    """The type by which the loaders of text encoders name it."""
    clip_files: int = 0
    """In how many files those encoders lie."""
    latent_channels: int = 4
    text_width: int = 2048
    """The width of an encoded token."""
    least_tokens: int = 1
    """How many tokens a shorter text has."""
    work: Work = Work()
    side: int
    """Width and height in pixels of a picture whose request names none."""
    defaults: Defaults = Defaults()
    is_told_guidance: bool = False
    """Whether the network is told a scale of guidance, as distilled ones are."""
    aligned_steps: Literal["SD1", "SDXL"] = "SD1"
    """Which of the schedules that were optimized for models is made for it."""
    preview: Preview | None = None
