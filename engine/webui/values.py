"""The types of the values in a diffusion request, with their ranges."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from engine.webui.sampler_names import known_sampler, known_scheduler

SEEDS = 2**64
Emphasis: TypeAlias = Literal["Original", "No norm", "Ignore"]
"""Whether the weights of a prompt keep the mean of a chunk, or change it, or have no effect."""
_MIN_DENOISE = 0.001
_OWN_VAE = ("", "Automatic", "None")
_SAME = ("", "Use same checkpoint", "Use same sampler", "Use same scheduler")


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _unicode(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode") from None
    return value


def _known_sampler(value: str, info: ValidationInfo) -> str:
    return known_sampler(value, info.data.get("compatibility", "webui"))


def _known_scheduler(value: str, info: ValidationInfo) -> str:
    return known_scheduler(value, info.data.get("compatibility", "webui"))


def _not_tiny(value: float) -> float:
    if 0 < value < _MIN_DENOISE:
        raise ValueError(f"must be 0 or at least {_MIN_DENOISE}")
    return value


def _same(value: str) -> str:
    return "" if value in _SAME else value


def _same_or_sampler(value: str, info: ValidationInfo) -> str:
    return _same(value) and _known_sampler(value, info)


def _same_or_scheduler(value: str, info: ValidationInfo) -> str:
    return _same(value) and _known_scheduler(value, info)


def _no_model(value: str) -> str:
    return "" if value == "None" else value


def _own_vae(value: str) -> str:
    return "" if value in _OWN_VAE else value


Text = Annotated[str, AfterValidator(_unicode)]
Name = Annotated[Text, Field(max_length=1024)]
Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
Side = Annotated[Whole, Field(ge=16, le=4096)]
AnySide = Annotated[Whole, Field(ge=-1, le=4096)]
SideOrNone = Annotated[Whole, Field(ge=0, le=4096)]
Count = Annotated[Whole, Field(ge=1, le=16)]
ClipSkip = Annotated[Whole, Field(ge=1, le=12)]
Share = Annotated[Number, Field(ge=0, le=1)]
Factor = Annotated[Number, Field(ge=0, le=100)]
Sigma = Annotated[Number, Field(ge=0, le=1e9)]
Seed = Annotated[Whole, Field(lt=SEEDS)]
SamplerName = Annotated[str, AfterValidator(_known_sampler)]
SchedulerName = Annotated[str, AfterValidator(_known_scheduler)]
Denoise = Annotated[Share, AfterValidator(_not_tiny)]
SameOrName = Annotated[Name, AfterValidator(_same)]
SameOrSampler = Annotated[str, AfterValidator(_same_or_sampler)]
SameOrScheduler = Annotated[str, AfterValidator(_same_or_scheduler)]
"""Empty: that of the first pass."""
OtherModel = Annotated[Name, AfterValidator(_no_model)]
OtherVae = Annotated[Name, AfterValidator(_own_vae)]
"""Empty: none, and the checkpoint's own."""
