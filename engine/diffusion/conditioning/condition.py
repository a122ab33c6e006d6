"""Conditionings: encoded texts, each with its area, steps, strength, boxes and ControlNets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.conditioning.gligen import Gligen, Grounding, TextBox, with_box
from engine.diffusion.images.latents import Mask
from engine.diffusion.vision.unclip import UnclipImage
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of a latent, in cells of 8 x 8 pixels."""

    height: int
    width: int
    y: int
    x: int


@dataclass(frozen=True, slots=True)
class AreaPercentage:
    """A rectangle in fractions (0..1) of a latent's height and width."""

    height: float
    width: float
    y: float
    x: float

    def on(self, height: int, width: int) -> Area:
        """Return the rectangle on a latent of that size, rounded to cells and at least 1 x 1."""
        return Area(
            max(1, round(self.height * height)),
            max(1, round(self.width * width)),
            round(self.y * height),
            round(self.x * width),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ConcatImage:
    """A picture for a network with further input channels, such as a network for inpainting."""

    samples: Tensor
    """(batch, channels, h, w), in the scale of the VAE."""
    mask: Mask | None = None
    """(batch, height, width) of 0..1, in any size. It is 1 where the network paints. None: the mask
    of the sampled latent is used.
    """


class AttentionBias(NamedTuple):
    """A number that is added to the attention to the tokens from `start` to before `stop`.

    It applies to the tokens before `start` and to the image, but not to the tokens from `start` on.
    """

    start: int
    stop: int
    bias: float


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """One encoded text, and where, when and how strongly it applies."""

    tokens: Tensor
    """(1, tokens, width) float32."""
    pooled: Tensor | None = None
    """(1, width) float32: one vector for the whole text, for models that need it (SDXL)."""
    size_conditioning: tuple[float, ...] | None = None
    """The original size, crop and target size of SDXL in pixels, in the order of diffusers'
    `time_ids`. The SDXL refiner has an aesthetic score instead of the target size. None: the size
    of the latent is used.
    """
    strength: float = 1.0
    area: Area | AreaPercentage | None = None
    """The area where the condition applies. None: the whole latent."""
    mask: Mask | None = None
    """A mask of any size, by which `strength` is multiplied."""
    set_area_to_bounds: bool = False
    """Whether the bounding box of the mask replaces `area`."""
    sigma_range: tuple[float, float] = (float("inf"), 0.0)
    """The largest and the smallest sigma at which the condition applies."""
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The start and the end, as fractions (0..1) for `NoiseLevels.percent_to_sigma`."""
    controls: tuple[Control, ...] = ()
    grounding: Grounding | None = None
    """The boxes that say where the things of other texts are."""
    unclip: tuple[UnclipImage, ...] = ()
    """Images that condition an unCLIP model in addition to the text."""
    class_labels: Tensor | None = None
    """(1, width), computed from `unclip` and the seed of the sampler."""
    concat_image: ConcatImage | None = None
    concat_latent: Tensor | None = None
    """(batch, n, h, w), computed from `concat_image` and the sampled latent: the channels that the
    network gets after those of the latent.
    """
    attention_biases: tuple[AttentionBias, ...] = ()
    """The biases of parts of the tokens, for models that attend to text and image together."""
    reference_latents: tuple[Tensor, ...] = ()
    """(batch, channels, h, w) each, in the scale of the VAE: pictures for models that edit them."""
    reference_method: str = "offset"
    """The method that gives the reference latents their positions, as ComfyUI calls it."""
    references: tuple[Tensor, ...] = ()
    """The reference latents in the scale and the number of the sampled latents."""
    guidance: float | None = 3.5
    """The guidance scale that distilled models take as an input (3.5 is usual). None: the model
    gets no scale.
    """

    def concatenated(self, other: Condition) -> Condition:
        """Return this condition with the tokens of `other` after its own.

        Raises EngineError if the texts were encoded for different models.
        """
        self._require_alike(other)
        return replace(self, tokens=torch.cat([self.tokens, other.tokens], dim=1))

    def averaged(self, other: Condition, weight: float) -> Condition:
        """Return the weighted mean of this condition and `other`.

        `weight` (0..1) is the weight of this condition. The tokens of `other` are cut, or padded
        with zeros, to the length of this condition's tokens. Raises EngineError if the texts were
        encoded for different models.
        """
        self._require_alike(other)
        length = self.tokens.shape[1]
        missing = max(0, length - other.tokens.shape[1])
        padded = functional.pad(other.tokens[:, :length], (0, 0, 0, missing))
        pooled = other.pooled if self.pooled is None else self.pooled
        if pooled is not None and other.pooled is not None:
            _require_equal(pooled.shape[-1], other.pooled.shape[-1])
            pooled = pooled * weight + other.pooled * (1.0 - weight)
        return replace(self, tokens=self.tokens * weight + padded * (1.0 - weight), pooled=pooled)

    def _require_alike(self, other: Condition) -> None:
        _require_equal(self.tokens.shape[-1], other.tokens.shape[-1])

    def zeroed_out(self) -> Condition:
        """Return this condition with all values of the encoded text set to 0."""
        pooled = None if self.pooled is None else torch.zeros_like(self.pooled)
        return replace(self, tokens=torch.zeros_like(self.tokens), pooled=pooled)

    def with_area(self, area: Area | AreaPercentage, strength: float) -> Condition:
        return replace(self, area=area, strength=strength, set_area_to_bounds=False)

    def with_mask(self, mask: Mask, strength: float, *, set_area_to_bounds: bool) -> Condition:
        return replace(self, mask=mask * strength, set_area_to_bounds=set_area_to_bounds)

    def with_strength(self, strength: float) -> Condition:
        return replace(self, strength=strength)

    def with_percent_range(self, start: float, end: float) -> Condition:
        return replace(self, percent_range=(start, end))


def _require_equal(width: int, other: int) -> None:
    if width != other:
        raise EngineError(
            f"the texts were encoded for different models: one has the width {width}, and the "
            f"other {other}"
        )


Conditioning: TypeAlias = tuple[Condition, ...]
"""Conditions that apply together. Their x0, the estimate of the latent without noise, is the mean
of the x0s of the conditions, weighted by strength.
"""


def controlled(conditioning: Conditioning, control: Control) -> Conditioning:
    """Return the conditioning with one more ControlNet for each condition."""
    return tuple(replace(each, controls=(*each.controls, control)) for each in conditioning)


def in_box(conditioning: Conditioning, network: Gligen, box: TextBox) -> Conditioning:
    """Return the conditioning with one more box of GLIGEN for each condition. Raises EngineError
    for too many boxes, or a text of another model.
    """
    return tuple(
        replace(each, grounding=with_box(each.grounding, network, box)) for each in conditioning
    )


def with_shared_grounding(positive: Conditioning, other: Conditioning) -> Conditioning:
    """Return `other` with the boxes of `positive`, as in ComfyUI.

    Only conditions without an area share boxes. If such a condition of `other` has boxes already,
    `other` is returned unchanged.
    """
    whole = [index for index, each in enumerate(other) if _is_whole(each)]
    shared = [each.grounding for each in positive if _is_whole(each) and each.grounding]
    if not whole or any(other[index].grounding for index in whole):
        return other
    found = list(other)
    for number, grounding in enumerate(shared):
        index = whole[number % len(whole)]
        found[index] = replace(other[index], grounding=grounding)
    return tuple(found)


def with_shared_controls(positive: Conditioning, negative: Conditioning) -> Conditioning:
    """Return `negative` with the ControlNets of `positive` that apply to both, as in ComfyUI.

    Only conditions without an area share ControlNets. If such a condition of `negative` has a
    ControlNet already, `negative` is returned unchanged.
    """
    whole = [index for index, each in enumerate(negative) if _is_whole(each)]
    shared = [
        each.controls
        for each in positive
        if _is_whole(each) and each.controls and each.controls[-1].applies_to_uncond
    ]
    if not whole or any(negative[index].controls for index in whole):
        return negative
    found = list(negative)
    for number, controls in enumerate(shared):
        index = whole[number % len(whole)]
        found[index] = replace(negative[index], controls=controls)
    return tuple(found)


def _is_whole(condition: Condition) -> bool:
    return condition.area is None and not condition.set_area_to_bounds
