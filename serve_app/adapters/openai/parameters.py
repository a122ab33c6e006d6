"""What a request for pictures may say, with bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from engine.webui.values import SEEDS, Text
from serve_app.adapters.graphs import whole_cells

_QUALITY_STEPS = {
    "low": 12,
    "medium": 20,
    "standard": 20,
    "auto": 20,
    "high": 40,
    "hd": 40,
    "xhigh": 60,
    "max": 80,
}
_LONGEST_PROMPT = 32_000
_BY_URL = "dall-e"
"""Models of this name answer with URLs unless they are asked for something else."""

Quality = Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"]
OutputFormat = Literal["png", "webp", "jpeg"]


def _opaque(value: str) -> str:
    if value == "transparent":
        raise ValueError("no model here makes a transparent background: send opaque or auto")
    return value


def _size(value: str) -> str:
    if value == "auto":
        return value
    width, _, height = value.partition("x")
    if not (_is_side(width) and _is_side(height)):
        raise ValueError("must be auto, or width x height in pixels, such as 1024x1024")
    return value


def _is_side(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


class ImageParameters(BaseModel):
    """Members of both routes. One that is null is as one that is absent."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[Text, Field(min_length=1, max_length=_LONGEST_PROMPT)]
    model: Annotated[Text, Field(max_length=1024)] = ""
    n: Annotated[int, Field(ge=1, le=10)] = 1
    size: Annotated[str, AfterValidator(_size)] = "auto"
    quality: Quality = "auto"
    background: Annotated[Literal["transparent", "opaque", "auto"], AfterValidator(_opaque)] = (
        "auto"
    )
    response_format: Literal["url", "b64_json"] | None = None
    output_format: OutputFormat | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0
    # They change nothing here.
    user: str | None = None
    safety_identifier: str | None = None
    # Ours, which its clients send by `extra_body`.
    negative_prompt: Annotated[Text, Field(max_length=_LONGEST_PROMPT)] = ""
    seed: Annotated[int, Field(ge=-1, lt=SEEDS)] = -1
    steps: Annotated[int, Field(ge=1, le=150)] | None = None
    cfg_scale: Annotated[float, Field(ge=1, le=30)] | None = None
    """None: what is usual for the checkpoint."""

    @field_validator("*", mode="before")
    @classmethod
    def _default_of_null(cls, value: Any, info: Any) -> Any:
        if value is not None or info.field_name == "prompt":
            return value
        return cls.model_fields[info.field_name].default

    @property
    def sides(self) -> tuple[int, int] | None:
        """Width and height in pixels, down to a multiple of 8; None is any."""
        if self.size == "auto":
            return None
        width, _, height = self.size.partition("x")
        return whole_cells(int(width)), whole_cells(int(height))

    @property
    def has_urls(self) -> bool:
        """Whether the answer has URLs instead of the pictures themselves."""
        asked = self.response_format
        return asked == "url" or (asked is None and self.model.startswith(_BY_URL))

    @property
    def quality_of_file(self) -> int | None:
        """Of WebP and JPEG; PNG has none, and is sent whole whatever is asked for."""
        if self.output_format in {None, "png"} or self.output_compression is None:
            return None
        return max(1, self.output_compression)

    def effective_steps(self, most: int) -> int:
        """`most`: of the endpoint, which bounds what a quality stands for."""
        return self.steps or min(_QUALITY_STEPS[self.quality], most)


class GenerationParameters(ImageParameters):
    # They change nothing here.
    moderation: Literal["low", "auto"] = "auto"
    style: Literal["vivid", "natural"] | None = None


class EditParameters(ImageParameters):
    input_fidelity: Literal["high", "low"] = "low"
    denoising_strength: Annotated[float, Field(gt=0, le=1)] | None = None
    """Ours: how much of an image without a mask is made anew."""

    @property
    def denoise(self) -> float:
        return self.denoising_strength or (0.5 if self.input_fidelity == "high" else 0.75)
