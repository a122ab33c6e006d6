"""The parameters of the diffusion flavour: the WebUI's names, and the ranges of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from engine.errors import SHOWN_FIELDS, FieldError, ParametersInvalid, encodable
from engine.graph import names
from engine.webui.members import Strict, WebUIMembers

SEEDS = 2**64
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


def _known_sampler(value: str) -> str:
    names.sampler(value)
    return value


def _known_scheduler(value: str) -> str:
    names.scheduler(value)
    return value


def _not_tiny(value: float) -> float:
    if 0 < value < _MIN_DENOISE:
        raise ValueError(f"must be 0 or at least {_MIN_DENOISE}")
    return value


def _same(value: str) -> str:
    return "" if value in _SAME else value


def _same_or_sampler(value: str) -> str:
    return _same(value) and _known_sampler(value)


def _same_or_scheduler(value: str) -> str:
    return _same(value) and _known_scheduler(value)


def _own_vae(value: str) -> str:
    return "" if value in _OWN_VAE else value


_Text = Annotated[str, AfterValidator(_unicode)]
_Name = Annotated[_Text, Field(max_length=1024)]
_Whole = Annotated[int, BeforeValidator(_no_boolean)]
_Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
_Side = Annotated[_Whole, Field(ge=16, le=4096)]
_SideOrNone = Annotated[_Whole, Field(ge=0, le=4096)]
_Count = Annotated[_Whole, Field(ge=1, le=16)]
_ClipSkip = Annotated[_Whole, Field(ge=1, le=12)]
_Share = Annotated[_Number, Field(ge=0, le=1)]
_SamplerName = Annotated[str, AfterValidator(_known_sampler)]
_SchedulerName = Annotated[str, AfterValidator(_known_scheduler)]


class OverrideSettings(Strict):
    """Settings for this job alone."""

    sd_model_checkpoint: _Name | None = None
    sd_vae: Annotated[_Name, AfterValidator(_own_vae)] = ""
    CLIP_stop_at_last_layers: _ClipSkip | None = None
    eta_noise_seed_delta: Annotated[_Whole, Field(ge=0, lt=2**32)] = 0


class HiresFix(WebUIMembers):
    """A second pass at a larger size, which starts from the images of the first.

    If `hr_resize_x` or `hr_resize_y` is not 0, it is the size in pixels and `hr_scale` is ignored.
    Empty names, empty texts and 0 steps stand for the values of the first pass.
    """

    enable_hr: bool = False
    denoising_strength: Annotated[_Share, AfterValidator(_not_tiny)] = 0.75
    hr_scale: Annotated[_Number, Field(ge=1, le=8)] = 2.0
    hr_resize_x: _SideOrNone = 0
    hr_resize_y: _SideOrNone = 0
    hr_upscaler: _Name = ""
    hr_second_pass_steps: Annotated[_Whole, Field(ge=0, le=150)] = 0
    hr_prompt: _Text = ""
    hr_negative_prompt: _Text = ""
    hr_sampler_name: Annotated[str, AfterValidator(_same_or_sampler)] = ""
    hr_scheduler: Annotated[str, AfterValidator(_same_or_scheduler)] = ""
    hr_checkpoint_name: Annotated[_Name, AfterValidator(_same)] = ""


class DiffusionParameters(HiresFix):
    """A diffusion request. Sides in pixels; a negative seed means that one is to be drawn."""

    prompt: _Text
    negative_prompt: _Text = ""
    sd_model_checkpoint: _Name | None = None
    width: _Side | None = None
    """None: the checkpoint's default."""
    height: _Side | None = None
    sampler_name: _SamplerName = "Euler"
    sampler_index: _SamplerName | None = None
    scheduler: _SchedulerName = names.AUTOMATIC
    steps: Annotated[_Whole, Field(ge=1, le=150)] = 20
    cfg_scale: Annotated[_Number, Field(ge=0, le=100)] = 7.0
    batch_size: _Count = 1
    n_iter: _Count = 1
    clip_skip: _ClipSkip = 1
    seed: Annotated[_Whole, Field(lt=SEEDS)] = -1
    eta: _Number | None = None
    override_settings: OverrideSettings = OverrideSettings()

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, body: Any) -> Any:
        """Accept `sampler_index`, the older name of `sampler_name`."""
        if not isinstance(body, dict) or body.get("sampler_index") is None:
            return body
        if body.get("sampler_name") is not None:
            return body
        return {**body, "sampler_name": body["sampler_index"]}

    @property
    def images(self) -> int:
        """The number of images."""
        return self.batch_size * self.n_iter

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that was asked for."""
        return self.override_settings.sd_model_checkpoint or self.sd_model_checkpoint or None

    def recorded(self) -> dict[str, Any]:
        """The members that were given and have an effect, as JSON. They make the same images."""
        without_effect = WebUIMembers if self.enable_hr else HiresFix
        return self.model_dump(
            mode="json", exclude_unset=True, exclude=set(without_effect.model_fields)
        )

    @property
    def stops_at_layer(self) -> int:
        """The layer of the text encoder to stop at, counted from the last, which is 1."""
        return self.override_settings.CLIP_stop_at_last_layers or self.clip_skip


def parse_parameters(body: object) -> DiffusionParameters:
    """The parameters in a request body. Raises ParametersInvalid with one entry per bad field."""
    try:
        return DiffusionParameters.model_validate(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        shown = tuple(_field_error(each) for each in errors[:SHOWN_FIELDS])
        raise ParametersInvalid(shown, len(errors)) from error


def _field_error(error: Any) -> FieldError:
    where = ".".join(str(part) for part in error["loc"]) or "body"
    messages = {"missing": "is required", "extra_forbidden": "is not supported"}
    message = messages.get(error["type"], error["msg"].removeprefix("Value error, "))
    return FieldError(error["type"], message, encodable(where))


def with_seed(parameters: DiffusionParameters, draw: Callable[[], int]) -> DiffusionParameters:
    """The parameters with a drawn seed in place of a negative one."""
    return parameters.model_copy(update={"seed": draw()}) if parameters.seed < 0 else parameters
