"""What a family of models is, as far as any process needs to know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Preview:
    """A linear map from the channels of a latent, as the network has it, to a picture."""

    weights: tuple[Colour, ...]
    """What one of each channel adds."""
    bias: Colour
    """The colour of zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One family: a value in a module of its own, and a row of `table.py`."""

    family: Family
    title: str
    """What it is called in messages."""
    place: str
    """What it is on the device: `module:class` in `engine.diffusion.families`."""
    text_encoders: tuple[str, ...]
    """The prefixes that the weights of its text encoders have in the single file of a checkpoint."""
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
    side: int
    """Width and height in pixels of a picture whose request names none."""
    aligned_steps: Literal["SD1", "SDXL"] = "SD1"
    """Which of the schedules that were optimized for models is made for it."""
    preview: Preview | None = None
