"""The families of models, and the traits that any process may need. This module loads no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self, TypeAlias

from engine.graph.safetensors_header import Header

UNET = "model.diffusion_model."
"""The prefix of the weights of a UNet or a transformer in the single file of a checkpoint."""
VAE = "first_stage_model."
"""The prefix of the VAE in a checkpoint with a UNet."""

Colour: TypeAlias = tuple[float, float, float]
"""Red, green and blue, from 0 to 255."""


class Family(StrEnum):
    """The supported architectures."""

    SD1 = "sd1"
    SD2 = "sd2"
    SDXL = "sdxl"
    SDXL_REFINER = "sdxl_refiner"
    Z_IMAGE = "z_image"
    FLUX = "flux"


class EncoderKind(StrEnum):
    """The text encoders that can be loaded from a file of their own."""

    CLIP_L = "clip_l"
    CLIP_H = "clip_h"
    CLIP_G = "clip_g"
    T5 = "t5xxl"
    QWEN3 = "qwen3"


class ModelName(str):
    """The name of a model with its family. The family is None if it is not known."""

    __slots__ = ("family",)
    family: Family | None

    def __new__(cls, name: str, family: Family | None) -> Self:
        made = super().__new__(cls, name)
        made.family = family
        return made


@dataclass(frozen=True, slots=True)
class Preview:
    """A linear map from the channels of the network's latent to colours."""

    weights: tuple[Colour, ...]
    """For each channel, the colour that a value of 1 adds."""
    bias: Colour
    """The colour of a latent of zeros."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a family's models, relative to Stable Diffusion; see docs/costs.md."""

    call: float = 1.0
    """The work of a call of the network."""
    text: float = 1.0
    """The work to encode a token."""
    load: float = 1.0
    """The work to load the network, or a whole checkpoint if the network is a UNet."""
    text_load: float = 0.0
    """The work to load the text encoders, if they are loaded separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """The defaults of a diffusion request for the family. None means the general default."""

    steps: int | None = None
    cfg_scale: float | None = None
    sampler_name: str | None = None
    scheduler: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of one family. `table.py` has the traits of all families."""

    family: Family
    title: str
    """The name of the family in messages."""
    implementation: str
    """The class of the family on the device, as `module:class` in `engine.diffusion.families`."""
    text_encoders: tuple[str, ...]
    """The prefixes of the text encoders' weights in the single file of a checkpoint."""
    is_network: Callable[[Header, str], bool] | None = None
    """A function that returns whether a network belongs to the family. Its parameters are the
    header of a file and the prefix of the network's weights. It raises CheckpointUnavailable for a
    variant that is not supported.

    None means that the network is a UNet. It is recognized by the text encoders in its file, or
    without them by the width of the text embeddings in its attention layers.
    """
    pipeline: str | None = None
    """Text in the class names of diffusers that identifies the family, if there is such text."""
    lora_text_width: int | None = None
    """The width of the text embeddings in the attention layers of the family's LoRAs."""
    encoders: frozenset[EncoderKind]
    """The text encoders of the family. No other family has the same."""
    latent_channels: int = 4
    text_width: int = 2048
    """The width of an encoded token."""
    least_tokens: int = 1
    """The number of tokens to which a shorter text is padded."""
    work: Work = Work()
    side: int
    """The default width and height of an image, in pixels."""
    defaults: Defaults = Defaults()
    takes_guidance_input: bool = False
    """Whether the guidance scale is an input of the network, as in distilled models."""
    aligned_steps: Literal["SD1", "SDXL"] = "SD1"
    """The schedule of "Align Your Steps" that is used for the family."""
    preview: Preview | None = None
