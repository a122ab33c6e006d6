"""The parameters of the diffusion flavour: the WebUI's names, and the ranges of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import (
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)

from engine.errors import SHOWN_FIELDS, FieldError, ParametersInvalid, encodable
from engine.graph.names import AUTOMATIC
from engine.webui.img2img.members import FromImages
from engine.webui.members import WebUIMembers
from engine.webui.override_settings import OverrideSettings
from engine.webui.values import (
    SEEDS,
    AnySide,
    ClipSkip,
    Count,
    Denoise,
    Factor,
    Name,
    Number,
    OtherModel,
    SameOrName,
    SameOrSampler,
    SameOrScheduler,
    SamplerName,
    SchedulerName,
    Seed,
    Share,
    Side,
    SideOrNone,
    Sigma,
    Text,
    Whole,
)

_STEPS, _STEPS_OF_COMFYUI = 50, 20
_NAMES = ("sampler_name", "sampler_index", "scheduler")
_MOST_STYLES = 16
_LONGEST_TYPED = 64
"""Characters of a name that is compared with those that there are."""
_HINTED = 5
"""Of so many unknown members the nearest is looked for, which takes a millisecond or two each."""
_ALSO_SETTINGS = ("s_churn", "s_tmin", "s_tmax", "s_noise", "s_min_uncond", "tiling")


class HiresFix(FromImages):
    """A second pass at a larger size, which starts from the images of the first.

    If `hr_resize_x` or `hr_resize_y` is not 0, it is the size in pixels and `hr_scale` is ignored.
    Empty names, empty texts and 0 steps stand for the values of the first pass.
    """

    enable_hr: bool = False
    denoising_strength: Denoise = 0.75
    hr_scale: Annotated[Number, Field(ge=1, le=8)] = 2.0
    hr_resize_x: SideOrNone = 0
    hr_resize_y: SideOrNone = 0
    hr_upscaler: Name = ""
    hr_second_pass_steps: Annotated[Whole, Field(ge=0, le=150)] = 0
    hr_prompt: Text = ""
    hr_negative_prompt: Text = ""
    hr_sampler_name: SameOrSampler = ""
    hr_scheduler: SameOrScheduler = ""
    hr_checkpoint_name: SameOrName = ""


class OwnOfWebUI(HiresFix):
    """What ComfyUI's nodes have no counterpart of: in its sense neutral values alone are taken."""

    subseed: Seed = -1
    """The seed that the noise of the start leans towards; a negative one is to be drawn."""
    subseed_strength: Share = 0.0
    seed_resize_from_w: AnySide = -1
    seed_resize_from_h: AnySide = -1
    """If both are positive, noise of that size is in the middle of that of the start."""
    tiling: bool = False
    """Opposite edges of the image fit together."""
    refiner_checkpoint: OtherModel = ""
    refiner_switch_at: Share = 0.8
    s_churn: Factor = 0.0
    s_tmin: Sigma = 0.0
    s_tmax: Sigma = 0.0
    """0: any sigma."""
    s_noise: Factor = 1.0
    s_min_uncond: Sigma = 0.0
    """Below this sigma every second call of the model leaves the negative prompt out."""

    @property
    def varies(self) -> bool:
        """Whether all images have one seed, and a variation each."""
        return self.subseed_strength > 0

    @property
    def noise_size(self) -> tuple[int, int] | None:
        """Width and height of the noise in the middle of that of the start, in pixels."""
        size = self.seed_resize_from_w, self.seed_resize_from_h
        return size if min(size) > 0 else None

    def own(self) -> dict[str, Any]:
        """The members that say something else than nothing."""
        asked = {
            "subseed_strength": self.varies,
            "seed_resize_from_w": self.noise_size,
            "tiling": self.tiling,
            "refiner_checkpoint": self.refiner_checkpoint,
            "s_churn": self.s_churn,
            "s_noise": self.s_noise != 1.0,
            "s_min_uncond": self.s_min_uncond,
        }
        return {name: value for name, value in asked.items() if value}


def _nothing_required(schema: dict[str, Any]) -> None:
    """A prompt may be left out, though not in ComfyUI's sense."""
    schema.pop("required", None)


class DiffusionParameters(OwnOfWebUI):
    """A diffusion request. Sides in pixels; a negative seed means that one is to be drawn."""

    model_config = ConfigDict(json_schema_extra=_nothing_required)

    prompt: Text
    """In the WebUI's sense it may be left out, and is empty then."""
    negative_prompt: Text = ""
    sd_model_checkpoint: Name | None = None
    width: Side | None = None
    """None: the checkpoint's default."""
    height: Side | None = None
    sampler_name: SamplerName = "Euler"
    sampler_index: SamplerName | None = None
    scheduler: SchedulerName = AUTOMATIC
    steps: Annotated[Whole, Field(ge=1, le=150)] = _STEPS
    cfg_scale: Annotated[Number, Field(ge=0, le=100)] = 7.0
    distilled_cfg_scale: Factor = 0.0
    """The scale of guidance that Flux.1 is told; 0: 3.5."""
    batch_size: Count = 1
    n_iter: Count = 1
    clip_skip: ClipSkip = 1
    seed: Seed = -1
    eta: Factor | None = None
    styles: Annotated[tuple[Name, ...], Field(max_length=_MOST_STYLES), FailFast()] = ()
    """Texts of the operator that are added to the prompts, by their names. They are to be applied
    before a request is compiled."""
    override_settings: OverrideSettings = OverrideSettings()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, body: Any) -> Any:
        """Take empty names for absent ones, and `sampler_index` for the name of the sampler."""
        if not isinstance(body, dict):
            return body
        given = {k: v for k, v in body.items() if k not in _NAMES or v not in ("", None)}
        given = _with_own_settings(given)
        if "sampler_name" not in given and "sampler_index" in given:
            given["sampler_name"] = given["sampler_index"]
        return given

    @property
    def images(self) -> int:
        """The number of images."""
        return self.batch * self.n_iter

    @property
    def batch(self) -> int:
        """How many images of one go there are. Several images to start from say it themselves."""
        return len(self.init_images) if len(self.init_images) > 1 else self.batch_size

    @property
    def starts_from_images(self) -> bool:
        """Whether this is img2img."""
        return bool(self.init_images)

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that was asked for."""
        return self.override_settings.sd_model_checkpoint or self.sd_model_checkpoint or None

    def seed_of(self, index: int) -> int:
        """The seed of an image. Variations share theirs, as in the WebUI."""
        return (self.seed + (0 if self.varies else index)) % SEEDS

    def subseed_of(self, index: int) -> int:
        """The seed of an image's variation."""
        return (self.subseed + index) % SEEDS

    def recorded(self) -> dict[str, Any]:
        """The members that were given and have an effect, as JSON. They make the same images."""
        excluded = set(WebUIMembers.model_fields) - {"compatibility"} | {"styles"}
        if not self.enable_hr:
            excluded |= HiresFix.model_fields.keys() - FromImages.model_fields.keys()
        if not self.starts_from_images:
            excluded |= FromImages.model_fields.keys() - {"compatibility"}
        elif not self.enable_hr:
            excluded.remove("denoising_strength")
        return self.model_dump(mode="json", exclude_unset=True, exclude=excluded)

    @property
    def stops_at_layer(self) -> int:
        """The layer of the text encoder to stop at, counted from the last, which is 1."""
        return self.override_settings.CLIP_stop_at_last_layers or self.clip_skip


def parse_parameters(body: object, compatibility: str = "comfyui") -> DiffusionParameters:
    """The parameters in a request body. Raises ParametersInvalid with one entry per bad field.

    `compatibility` is that of a body that names none.
    """
    try:
        return DiffusionParameters.model_validate(_completed(body, compatibility))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise ParametersInvalid(_field_errors(errors[:SHOWN_FIELDS]), len(errors)) from error


def _completed(body: object, compatibility: str) -> object:
    """The body with the defaults that depend on its compatibility, so that they are recorded."""
    if not isinstance(body, dict):
        return body
    given = dict(body)
    if given.get("compatibility") is None:
        given["compatibility"] = compatibility
    is_webui = given["compatibility"] == "webui"
    defaults = {"prompt": "", "steps": _STEPS} if is_webui else {"steps": _STEPS_OF_COMFYUI}
    return given | {name: value for name, value in defaults.items() if given.get(name) is None}


def _with_own_settings(body: dict[str, Any]) -> dict[str, Any]:
    """The body with settings that are members too in the place of members that it lacks."""
    settings = body.get("override_settings")
    if not isinstance(settings, dict) or settings.keys().isdisjoint(_ALSO_SETTINGS):
        return body
    own = {k: v for k, v in settings.items() if k in _ALSO_SETTINGS and body.get(k) is None}
    rest = {k: v for k, v in settings.items() if k not in _ALSO_SETTINGS}
    return body | own | {"override_settings": rest}


def _field_errors(errors: Iterable[Any]) -> tuple[FieldError, ...]:
    found, hints_left = [], _HINTED
    for error in errors:
        is_unknown = error["type"] == "extra_forbidden"
        found.append(_field_error(error, is_hinted=is_unknown and hints_left > 0))
        hints_left -= is_unknown
    return tuple(found)


def _field_error(error: Any, *, is_hinted: bool) -> FieldError:
    where = ".".join(str(part) for part in error["loc"]) or "body"
    if error["type"] == "extra_forbidden":
        message = f"is not supported{_nearest(where) if is_hinted else ''}"
    elif error["type"] == "missing":
        message = "is required"
    else:
        message = error["msg"].removeprefix("Value error, ")
    return FieldError(error["type"], message, encodable(where))


def _nearest(name: str) -> str:
    """A question after the members that a mistyped name may stand for."""
    if len(name) > _LONGEST_TYPED:
        return ""
    near = get_close_matches(name, DiffusionParameters.model_fields, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def with_seed(parameters: DiffusionParameters, draw: Callable[[], int]) -> DiffusionParameters:
    """The parameters with drawn seeds in place of negative ones."""
    names = ("seed", "subseed") if parameters.varies else ("seed",)
    drawn = {name: draw() for name in names if getattr(parameters, name) < 0}
    return parameters.model_copy(update=drawn) if drawn else parameters
