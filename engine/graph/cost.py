"""The cost of a graph, and the shapes of values between nodes, on which the cost depends.

Numbers are limited to `MOST`, so that no graph causes huge numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

from engine.families.family import Family, Traits
from engine.families.table import TRAITS
from engine.graph.work import ATTENTION_MEGAPIXELS, TOKEN_MEGAPIXELS

MOST = 2**53
"""The largest number in a cost. JSON readers keep every integer up to this number exactly."""
CHANNELS = 4
"""The number of channels of a `LatentShape`."""
COLOURS = 3
"""The number of channels of an `ImageShape`."""
CHUNK_TOKENS = 77
_CHUNK_CHARS = 75
_TOKEN_BYTES = 4 * 2048
"""The size of the embedding of a token in float32, with the width of SDXL."""
_LAYERS_BYTES = 8 * 2**20
"""The size of a copy of the layers of a UNet, without their weights."""


@dataclass(frozen=True, slots=True)
class Cost:
    work: float = 0.0
    """The work in megapixel-steps: UNet calls for one row of conditioning on a megapixel."""
    live_bytes: int = 0
    """The largest size of the values alive at once while the nodes run one by one, in `run_order`.
    The memory of models and of their calls is not included."""
    rows: int = 0
    """The largest number of rows of conditioning of one sampler, positive and negative together."""
    tokens: int = 0
    """The largest number of tokens of one conditioning."""
    outputs: int = 0
    """The number of images and latents that the job saves."""
    result_bytes: int = 0
    """The largest possible size of the files of the results, without their metadata."""


def saturated(number: int) -> int:
    return min(number, MOST)


@dataclass(frozen=True, slots=True)
class BatchShape:
    """The size of a batch of images, masks or latents. Sides are in pixels, also for latents."""

    pixel_bytes: ClassVar[float]
    count: int
    width: int
    height: int
    held_bytes: int = 0
    """The size of the masks that belong to the batch."""

    @property
    def megapixels(self) -> float:
        return self._pixels / 1e6

    def attended_megapixels(self, tokens: int = 0, more_pixels: int = 0) -> float:
        """Return the megapixels of the whole batch, increased by the cost of attention.

        Attention has two parts: within each image, and to `tokens` tokens of text. Each image has
        `more_pixels` pixels of pictures beside it.
        """
        pixels = self.width * self.height + more_pixels
        compared = pixels / 1e6 + tokens * TOKEN_MEGAPIXELS
        return saturated(self.count * pixels) / 1e6 * (1.0 + compared / ATTENTION_MEGAPIXELS)

    @property
    def size_bytes(self) -> int:
        pixels = min(self.count * self.width * self.height, MOST)
        return min(int(pixels * self.pixel_bytes) + self.held_bytes, MOST)

    @property
    def _pixels(self) -> int:
        return saturated(self.count * self.width * self.height)

    def sized(self, width: int, height: int) -> Self:
        """Return the batch with other sides.

        If one side is 0, the proportions are kept. If both sides are 0, the size is kept.
        """
        if not width:
            width = max(1, round(self.width * height / self.height)) if height else self.width
            height = height or self.height
        elif not height:
            height = max(1, round(self.height * width / self.width))
        return replace(self, width=saturated(width), height=saturated(height))

    def scaled(self, factor: float) -> Self:
        """Return the batch with sides that are `factor` times as long."""
        sides = (max(1, round(side * factor)) for side in (self.width, self.height))
        return self.sized(*sides)

    def counted(self, count: int) -> Self:
        return replace(self, count=saturated(count))


class ImageShape(BatchShape):
    """Each pixel has three float32 values."""

    __slots__ = ()
    pixel_bytes = 12.0


class TransparentImageShape(ImageShape):
    """Each pixel has four float32 values, of which one is the opacity."""

    __slots__ = ()
    pixel_bytes = 16.0


class MaskShape(BatchShape):
    """Each pixel has one float32 value."""

    __slots__ = ()
    pixel_bytes = 4.0


class LatentShape(BatchShape):
    """Each 8 x 8 pixels have four float32 values."""

    __slots__ = ()
    pixel_bytes = 0.25


class DeepLatentShape(LatentShape):
    """Each 8 x 8 pixels have 16 float32 values."""

    __slots__ = ()
    pixel_bytes = 1.0


@dataclass(frozen=True, slots=True)
class ConditioningShape:
    """A conditioning: texts that apply together."""

    rows: int
    """The number of texts that the model gets in one step."""
    tokens: int
    """The number of tokens of the longest text."""
    texts: int = 1
    """The number of texts over all steps."""
    areas: int = 0
    """The number of rows with an area. Each of them adds a row to the other conditioning."""
    controls: int = 0
    """The number of ControlNets that apply to a row."""
    has_boxes: bool = False
    """Whether a GLIGEN applies to a row."""
    held_bytes: int = 0
    """The size of the masks and of the images for ControlNets."""
    merged: int = 0
    """The number of ControlNets with merged weights; see `ModelShape.is_merged`."""
    token_bytes: int = _TOKEN_BYTES
    """The size of an encoded token."""
    reference_pixels: int = 0
    """The largest number of pixels of the reference latents of a text."""

    @property
    def size_bytes(self) -> int:
        return saturated(self.texts * self.tokens * self.token_bytes + self.held_bytes)

    def holding(self, size_bytes: int) -> ConditioningShape:
        return replace(self, held_bytes=saturated(self.held_bytes + size_bytes))

    def combined(self, other: ConditioningShape) -> ConditioningShape:
        return ConditioningShape(
            rows=saturated(self.rows + other.rows),
            tokens=max(self.tokens, other.tokens),
            texts=saturated(self.texts + other.texts),
            areas=saturated(self.areas + other.areas),
            controls=max(self.controls, other.controls),
            has_boxes=self.has_boxes or other.has_boxes,
            held_bytes=saturated(self.held_bytes + other.held_bytes),
            merged=saturated(self.merged + other.merged),
            token_bytes=max(self.token_bytes, other.token_bytes),
            reference_pixels=max(self.reference_pixels, other.reference_pixels),
        )


@dataclass(frozen=True, slots=True)
class SigmasShape:
    steps: int

    @property
    def size_bytes(self) -> int:
        return 4 * (self.steps + 1)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The additional cost of a model or text encoder, compared with a plain checkpoint."""

    is_merged: bool = False
    """Whether the model, or a model that it contains, has merged weights of its own."""
    more_calls: int = 0
    """The number of additional calls for one of the conditionings, for guidance."""
    third_conditioning: ConditioningShape | None = None
    """A third conditioning. If set, every model call has rows of all three conditionings."""
    family: Family = Family.SD1
    """The family, or another family of the same cost if the family is not known."""
    filters: int = 0
    """The number of filters on the outputs of layers. Each filter is a copy of all layers."""
    held_bytes: int = 0
    """The size of the data to which the model attends in addition to texts."""
    controls: int = 0
    """The number of ControlNets that apply to every row."""
    image_prompts: int = 0
    """The number of image prompts to which each call attends in addition to the texts."""
    image_tokens: int = 0
    """The number of tokens of all image prompts together."""
    more_attention: float = 0.0
    """The additional cost of attention within an image, relative to the usual cost."""

    @property
    def size_bytes(self) -> int:
        return saturated(
            bytes_of(self.third_conditioning) + self.filters * _LAYERS_BYTES + self.held_bytes
        )

    def holding(self, size_bytes: int, tokens: int = 0) -> ModelShape:
        """Return the model with `size_bytes` more held bytes.

        If `tokens` is not 0, these bytes are an image prompt with that number of tokens.
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
        """Whether the model costs more than a plain model, in time or in memory."""
        plain = ModelShape(is_merged=self.is_merged, family=self.family)
        return self != plain or self.traits.work != TRAITS[Family.SD1].work

    def sampled(self, latent: LatentShape) -> LatentShape:
        """Return the shape of a latent after sampling. The model determines the channels."""
        if self.traits.latent_channels <= CHANNELS or isinstance(latent, DeepLatentShape):
            return latent
        return DeepLatentShape(latent.count, latent.width, latent.height, latent.held_bytes)


@dataclass(frozen=True, slots=True)
class GuiderShape:
    """A model with the conditionings that guide it."""

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
    """A number, a text or a truth value that is an output of a node."""

    value: int | float | str | bool
    """The expected value. The run checks the real value against the range of the linked input."""


_Sized: TypeAlias = BatchShape | ConditioningShape | SigmasShape | GuiderShape | ModelShape
Shape: TypeAlias = _Sized | Scalar | str | int | None
"""The shape of an output. A `str` is the name of a sampler, and an `int` is the factor of an
upscale model. None stands for an output whose size does not matter."""


def model_shape(shape: Shape) -> ModelShape:
    """Return `shape` if it describes a model, else the shape of a plain model."""
    return shape if isinstance(shape, ModelShape) else ModelShape()


def text_tokens(text: str) -> int:
    """Return the number of tokens of an encoded text, at one token for each character."""
    return CHUNK_TOKENS * max(1, -(-len(text) // _CHUNK_CHARS))


def bytes_of(shape: Shape) -> int:
    return getattr(shape, "size_bytes", 0)


@dataclass(frozen=True, slots=True)
class Estimate:
    shapes: tuple[Shape, ...] = ()
    work: float = 0.0
    scratch_bytes: int = 0
    """The memory that the body needs in addition to the inputs and outputs of the node."""
    rows: int = 0
    """The number of rows of conditioning with which the node samples."""
    results: int = 0
    """The number of images or latents that the node saves."""
    result_bytes: int = 0
    """The largest size of the result files: a PNG of pure noise is as large as its pixels."""


def default_estimate(outputs: tuple[str, ...]) -> Estimate:
    """Return the estimate of a node that declares none: no work, and outputs of default shapes."""
    return Estimate(tuple(map(default_shape, outputs)))


def default_shape(type_name: str) -> Shape:
    """Return the shape that is assumed for an output of which only the type is known.

    Returns None for a type without a shape.
    """
    found: Shape = _DEFAULTS.get(type_name)
    return found


UNKNOWN_SIDE = 512
"""The assumed width and height of an image or a latent whose size is known only in the run."""
_SQUARE = (1, UNKNOWN_SIDE, UNKNOWN_SIDE)
_DEFAULTS: dict[str, Any] = {
    "IMAGE": ImageShape(*_SQUARE),
    "MASK": MaskShape(*_SQUARE),
    "LATENT": LatentShape(*_SQUARE),
    "CONDITIONING": ConditioningShape(1, CHUNK_TOKENS),
    "SIGMAS": SigmasShape(20),
    "SAMPLER": "euler",
    "UPSCALE_MODEL": 4,
    "INT": Scalar(0),
    "FLOAT": Scalar(0.0),
    "STRING": Scalar(""),
    "BOOLEAN": Scalar(False),
}
SIZED_TYPES = frozenset(_DEFAULTS)
"""The types of the outputs that a run measures."""
