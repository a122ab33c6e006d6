"""What a graph costs, and what its nodes pass on to each other, as far as a cost depends on it.

Every number is saturated: it stays at `MOST` however much is added, so that no graph makes it huge.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeAlias

from engine.families.family import Family, Traits
from engine.families.table import TRAITS
from engine.graph.work import ATTENTION_MEGAPIXELS, TOKEN_MEGAPIXELS

MOST = 2**53
"""The largest number in a cost. JSON readers keep every integer up to it."""
CHANNELS = 4
"""Those of a `LatentShape`."""
CHUNK_TOKENS = 77
_CHUNK_CHARS = 75
_TOKEN_BYTES = 4 * 2048
"""The embedding of a token in float32, as wide as SDXL has it."""
_LAYERS_BYTES = 8 * 2**20
"""A copy of the layers of a UNet, without their weights."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job costs, as far as its graph says."""

    work: float = 0.0
    """In megapixel-steps: calls of a UNet for one row of conditioning on a megapixel."""
    live_bytes: int = 0
    """The most bytes of values alive at once while the nodes run one by one, in `run_order`. What
    models and their calls take is not in it."""
    rows: int = 0
    """The most rows of conditioning that one sampler gets, positive and negative together."""
    tokens: int = 0
    """The most tokens of one conditioning."""
    outputs: int = 0
    """The images and latents that it saves."""
    result_bytes: int = 0
    """The most bytes that their files take, without what they say of how they were made."""


def saturated(number: int) -> int:
    """The number, at most `MOST`."""
    return min(number, MOST)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """A batch of planes of one size. Its sides are in pixels, those of latents too."""

    pixel_bytes: ClassVar[float]
    count: int
    width: int
    height: int
    held_bytes: int = 0
    """The size of the masks that belong to it."""

    @property
    def megapixels(self) -> float:
        """Those of the whole batch."""
        return self._pixels / 1e6

    def attended_megapixels(self, tokens: int = 0) -> float:
        """Those of the whole batch, and what attention to each image and to a text adds."""
        compared = self.width * self.height / 1e6 + tokens * TOKEN_MEGAPIXELS
        return self.megapixels * (1.0 + compared / ATTENTION_MEGAPIXELS)

    @property
    def size_bytes(self) -> int:
        pixels = min(self.count * self.width * self.height, MOST)
        return min(int(pixels * self.pixel_bytes) + self.held_bytes, MOST)

    @property
    def _pixels(self) -> int:
        return saturated(self.count * self.width * self.height)

    def sized(self, width: int, height: int) -> Self:
        """The batch with other sides; with a side of 0 in proportion, and as it is with two."""
        if not width:
            width = max(1, round(self.width * height / self.height)) if height else self.width
            height = height or self.height
        elif not height:
            height = max(1, round(self.height * width / self.width))
        return replace(self, width=saturated(width), height=saturated(height))

    def scaled(self, factor: float) -> Self:
        """The batch with sides that are `factor` times as long."""
        sides = (max(1, round(side * factor)) for side in (self.width, self.height))
        return self.sized(*sides)

    def counted(self, count: int) -> Self:
        """A batch of so many."""
        return replace(self, count=saturated(count))


class ImageShape(BatchShape):
    """Images: three channels of float32."""

    __slots__ = ()
    pixel_bytes = 12.0


class MaskShape(BatchShape):
    """Masks: one channel of float32."""

    __slots__ = ()
    pixel_bytes = 4.0


class LatentShape(BatchShape):
    """Latents: four channels of float32 for each 8 x 8 pixels."""

    __slots__ = ()
    pixel_bytes = 0.25


class DeepLatentShape(LatentShape):
    """Latents of 16 channels."""

    __slots__ = ()
    pixel_bytes = 1.0


@dataclass(frozen=True, slots=True)
class ConditioningShape:
    """A conditioning: texts that apply together."""

    rows: int
    """How many of its texts the model gets in one step."""
    tokens: int
    """Those of its longest text."""
    texts: int = 1
    """How many texts it has, those of all steps."""
    areas: int = 0
    """How many rows are limited to an area. The other conditioning gets a row for each."""
    controls: int = 0
    """The ControlNets of a row."""
    held_bytes: int = 0
    """The size of the masks and of the pictures for ControlNets that belong to it."""
    merged: int = 0
    """How many of its ControlNets have weights of their own: see `ModelShape.is_merged`."""
    token_bytes: int = _TOKEN_BYTES
    """The size of an encoded token."""

    @property
    def size_bytes(self) -> int:
        return saturated(self.texts * self.tokens * self.token_bytes + self.held_bytes)

    def holding(self, size_bytes: int) -> ConditioningShape:
        """The conditioning with so many more bytes that belong to it."""
        return replace(self, held_bytes=saturated(self.held_bytes + size_bytes))

    def combined(self, other: ConditioningShape) -> ConditioningShape:
        """The texts of both."""
        return ConditioningShape(
            rows=saturated(self.rows + other.rows),
            tokens=max(self.tokens, other.tokens),
            texts=saturated(self.texts + other.texts),
            areas=saturated(self.areas + other.areas),
            controls=max(self.controls, other.controls),
            held_bytes=saturated(self.held_bytes + other.held_bytes),
            merged=saturated(self.merged + other.merged),
            token_bytes=max(self.token_bytes, other.token_bytes),
        )


@dataclass(frozen=True, slots=True)
class SigmasShape:
    """A schedule of so many steps."""

    steps: int

    @property
    def size_bytes(self) -> int:
        return 4 * (self.steps + 1)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model or its text encoder, as far as it costs more than that of a checkpoint."""

    is_merged: bool = False
    """It has weights of its own, or holds a model that has."""
    more_calls: int = 0
    """So many times more it is called for one of the conditionings, for guidance."""
    third: ConditioningShape | None = None
    """A third conditioning: samplers get all three, whatever the cfg."""
    family: Family = Family.SD1
    """Where it is not known, one that costs as much."""
    filters: int = 0
    """So often what its layers pass on is filtered. Each one is a copy of all layers."""
    held_bytes: int = 0
    """The size of what it attends to beside texts."""
    image_prompts: int = 0
    """To so many image prompts each of its calls attends beside the texts."""
    image_tokens: int = 0
    """Those of all its image prompts."""
    more_attention: float = 0.0
    """What its attention to the places of an image takes more than usual, as a share of that."""

    @property
    def size_bytes(self) -> int:
        return saturated(bytes_of(self.third) + self.filters * _LAYERS_BYTES + self.held_bytes)

    def holding(self, size_bytes: int, tokens: int = 0) -> ModelShape:
        """The model with so many more bytes that belong to it, those of an image prompt of so many
        tokens where there are any.
        """
        return replace(
            self,
            held_bytes=saturated(self.held_bytes + size_bytes),
            image_prompts=saturated(self.image_prompts + (tokens > 0)),
            image_tokens=saturated(self.image_tokens + tokens),
        )

    @property
    def traits(self) -> Traits:
        return TRAITS[self.family]

    @property
    def costs_more(self) -> bool:
        """Whether sampling or encoding with it does, or what it holds."""
        plain = ModelShape(is_merged=self.is_merged, family=self.family)
        return self != plain or self.traits.work != TRAITS[Family.SD1].work

    def sampled(self, latent: LatentShape) -> LatentShape:
        """What it makes of a latent, whose channels an empty one gets from it."""
        if self.traits.latent_channels <= CHANNELS or isinstance(latent, DeepLatentShape):
            return latent
        return DeepLatentShape(latent.count, latent.width, latent.height, latent.held_bytes)


@dataclass(frozen=True, slots=True)
class GuiderShape:
    """A model with what guides it."""

    positive: ConditioningShape
    negative: ConditioningShape
    cfg: float
    model: ModelShape

    @property
    def size_bytes(self) -> int:
        return saturated(
            self.positive.size_bytes + self.negative.size_bytes + self.model.size_bytes
        )


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, a text or a truth value that a node passes on."""

    value: int | float | str | bool
    """As far as it is known: the run holds it against the range of the input that it comes to."""


_Sized: TypeAlias = BatchShape | ConditioningShape | SigmasShape | GuiderShape | ModelShape
Shape: TypeAlias = _Sized | Scalar | str | int | None
"""What an output is. A sampler is its name, an upscale model its factor, another model None."""


def model_shape(shape: Shape) -> ModelShape:
    """What is said of a model, or a plain one where nothing is."""
    return shape if isinstance(shape, ModelShape) else ModelShape()


def text_tokens(text: str) -> int:
    """The tokens of an encoded text, if each character is one. Few texts have more."""
    return CHUNK_TOKENS * max(1, -(-len(text) // _CHUNK_CHARS))


def bytes_of(shape: Shape) -> int:
    """The size of a value of that shape."""
    return getattr(shape, "size_bytes", 0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one node costs and passes on."""

    shapes: tuple[Shape, ...] = ()
    """Of its outputs."""
    work: float = 0.0
    scratch_bytes: int = 0
    """What its body needs beside its inputs and outputs."""
    rows: int = 0
    """The rows of conditioning that it samples with."""
    results: int = 0
    """The images or latents that it saves."""
    result_bytes: int = 0
    """The most bytes that their files take: for noise a PNG saves nothing."""
