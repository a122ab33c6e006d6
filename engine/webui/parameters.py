"""The parameters of a diffusion request, with the WebUI's names and the types and ranges of values.

Some members that the WebUI's clients send have no effect in Darkroom. They are accepted only with
their neutral values. Any other value is an error, because it would be ignored. What requests
nothing is always accepted: empty values, and the members of parts that are off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from engine.errors import SHOWN_FIELDS, FieldError, ParametersInvalid, encodable
from engine.graph.names import AUTOMATIC
from engine.webui.sampler_names import Compatibility, known_sampler, known_scheduler

SEEDS = 2**64
_DRAWN_SEEDS = 2**32
"""The number of seeds that the WebUI draws from."""
Emphasis: TypeAlias = Literal["Original", "No norm", "Ignore"]
"""The effect of the weights of a prompt. With "Original", the mean of a chunk does not change. With
"No norm", the mean changes. With "Ignore", the weights have no effect."""
RandnSource: TypeAlias = Literal["GPU", "CPU", "NV"]
"""The generator that draws the noise of the WebUI. GPU and CPU are torch's generators on the device
and on the CPU. NV is that of CUDA, computed on the CPU.
"""
_MIN_DENOISE = 0.001
_SAME = ("", "Use same checkpoint", "Use same sampler", "Use same scheduler")
_NOTHING = ("", "none", "null", "false", "-1")
_BOOLEAN = TypeAdapter(bool)


def requests_nothing(value: Any) -> bool:
    """Whether a value is false, null, empty or -1, so that it requests nothing of any member.

    A form has these values as texts. The number 0 may be a request.
    """
    if isinstance(value, list | tuple):
        return all(map(requests_nothing, value))
    if isinstance(value, dict):
        return all(map(requests_nothing, value.values()))
    if isinstance(value, str):
        return value.strip().casefold() in _NOTHING
    return value is None or value is False or value == -1


def _without_nothing(values: Any) -> Any:
    """Return a list without the values that request nothing."""
    if not isinstance(values, list | tuple):
        return values
    return [each for each in values if not requests_nothing(each)]


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
    return "" if requests_nothing(value) else value


def _own_vae(value: str) -> str:
    return "" if value.casefold() == "automatic" else _no_model(value)


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
"""An empty name stands for the name in the first pass."""
OtherModel = Annotated[Name, AfterValidator(_no_model)]
OtherVae = Annotated[Name, AfterValidator(_own_vae)]
"""An empty name stands for the VAE of the checkpoint."""


_EMPTY: dict[type, dict[str, int]] = {list: {"maxItems": 0}, dict: {"maxProperties": 0}}
"""The schema of a value that must be empty, by its type. Client generators support these limits,
but not an `enum` of lists or objects."""


@dataclass(frozen=True, slots=True)
class _Only:
    values: tuple[Any, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        empty = _EMPTY.get(type(self.values[0]))
        return {**handler(schema), **(empty or {"enum": list(self.values)})}

    def _check(self, value: Any) -> Any:
        if value not in self.values:
            taken = " or ".join(repr(each) for each in self.values)
            raise ValueError(f"is supported as {taken} only")
        return value


def always(value: Any) -> _Only:
    """Return an annotation for a member that accepts only this value."""
    return _Only((value,))


_Off: TypeAlias = Annotated[bool, _Only((False,))]
_Zero: TypeAlias = Annotated[float, _Only((0, -1))]
_NoText: TypeAlias = Annotated[str, _Only(("",))]
_NoScript: TypeAlias = Annotated[str, AfterValidator(_no_model), _Only(("",))]
_NoList: TypeAlias = Annotated[list[Any], _Only(([],))]
_NoObject: TypeAlias = Annotated[dict[str, Any], _Only(({},))]


_SWITCHES = ("enabled", "enable", "ad_model")
"""The members of a unit of a script that are false or empty if the unit is off. A unit of ADetailer
is off if it has no model."""
_UNIT_MODELS = {"model", "module"}
"""The members of a unit of ControlNet. A unit with both members, both empty, does nothing."""


def _idle_scripts(scripts: dict[str, Any]) -> dict[str, Any]:
    """Return the scripts. Raises ValueError if one of them would change the image."""
    for name, script in scripts.items():
        args = _arguments(script)
        has_units = any(isinstance(arg, dict) for arg in args)
        is_idle = all(_is_idle(arg) or (has_units and arg is True) for arg in args)
        if args[:1] != [False] and not is_idle:
            raise ValueError(f"{name[:80]!r} is only supported without arguments, or disabled")
    return scripts


def _arguments(script: Any) -> list[Any]:
    args = script.get("args", []) if isinstance(script, dict) else script
    return args if isinstance(args, list) else [args]


def _is_idle(arg: Any) -> bool:
    """Whether an argument of a script requests nothing. A unit of a script is an object."""
    if isinstance(arg, dict):
        idle = {name for name, value in arg.items() if not value or requests_nothing(value)}
        if not idle.isdisjoint(_SWITCHES) or idle >= _UNIT_MODELS:
            return True
    return not arg or requests_nothing(arg)


_OWN_SCRIPTS: dict[str, tuple[tuple[str, Any] | None, ...]] = {
    "sampler": (("steps", 20), ("sampler_name", "DPM++ 2M"), ("scheduler", AUTOMATIC)),
    "seed": (
        ("seed", -1),
        None,
        ("subseed", -1),
        ("subseed_strength", 0),
        ("seed_resize_from_w", 0),
        ("seed_resize_from_h", 0),
    ),
    "refiner": (None, ("refiner_checkpoint", ""), ("refiner_switch_at", 0.8)),
}
"""The arguments of the WebUI's own scripts: the member of a request that has the same value, and
the default. None stands for the switch of the arguments that follow."""


def _repeats_request(name: str, script: Any, body: Mapping[str, Any]) -> bool:
    """Whether the arguments of one of the WebUI's own scripts repeat members of the body."""
    args = _arguments(script)
    known = _OWN_SCRIPTS.get(name.strip().casefold(), ())
    for known_arg, arg in zip(known, args, strict=False):
        if known_arg is None:
            if requests_nothing(arg):
                return True
            continue
        member, usual = known_arg
        if not requests_nothing(arg) and arg not in (body.get(member), usual):
            return False
    return bool(known) and all(map(requests_nothing, args[len(known) :]))


NEUTRAL_SETTINGS: dict[str, tuple[Any, ...]] = {
    "samples_format": ("png",),
    "sd_unet": ("Automatic", "None"),
    "always_discard_next_to_last_sigma": (False,),
    "use_old_emphasis_implementation": (False,),
    "use_old_karras_scheduler_sigmas": (False,),
    "use_old_scheduling": (False,),
    "use_old_hires_fix_width_height": (False,),
    "no_dpmpp_sde_batch_determinism": (False,),
    "dont_fix_second_order_samplers_schedule": (False,),
    "hires_fix_use_firstpass_conds": (False,),
    "sdxl_crop_top": (0,),
    "sdxl_crop_left": (0,),
    "comma_padding_backtrack": (20,),
    "token_merging_ratio": (0,),
    "token_merging_ratio_hr": (0,),
    "k_sched_type": ("Automatic",),
    "sigma_min": (0,),
    "sigma_max": (0,),
    "rho": (0,),
    "beta_dist_alpha": (0.6,),
    "beta_dist_beta": (0.6,),
    "uni_pc_variant": ("bh1",),
    "uni_pc_skip_type": ("time_uniform",),
    "uni_pc_order": (3,),
    "uni_pc_lower_order_final": (True,),
    "skip_early_cond": (0,),
    "face_restoration": (False,),
    "img2img_color_correction": (False,),
    "img2img_background_color": ("#ffffff",),
    "img2img_extra_noise": (0,),
    "initial_noise_multiplier": (1,),
    "inpainting_mask_weight": (1,),
    "upscaler_for_img2img": ("", "None"),
    "sd_vae_encode_method": ("Full",),
    "sd_vae_decode_method": ("Full",),
}
"""The neutral values of settings of the WebUI. They describe what Darkroom always does."""
_WITHOUT_EFFECT = re.compile(
    r"(do_not_|enable_pnginfo|export_for_|face_restoration_model|grid_|jpeg_|live_preview|outdir_"
    r"|n_rows|pad_cond_uncond|return_|samples_(save|filename)|save_|sd_checkpoint_|show_progress"
    r"|target_side_|upcast_attn|use_original_name|webp_)"
)
"""The beginnings of the names of settings that change only files, previews, memory or speed."""


def is_neutral_setting(name: Any, value: Any) -> bool:
    """Whether a setting of the WebUI has a neutral value, or has no effect on an image."""
    if taken := NEUTRAL_SETTINGS.get(name):
        return value in (None, "") or value in taken
    return isinstance(name, str) and _WITHOUT_EFFECT.match(name) is not None


_EMPTY_VALUES: tuple[Any, ...] = ("", [], {})


class Strict(BaseModel):
    """Rejects unknown members that request something.

    As in the WebUI, null means the same as an absent member. So does an empty value of a member
    that is not a text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_absent(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        given = {name: value for name, value in body.items() if not cls.is_absent(name, value)}
        unknown = sum(name not in cls.model_fields for name in given)
        if unknown > SHOWN_FIELDS:  # A separate error for each member would take long.
            raise ValueError(f"has {unknown} unsupported members")
        return given

    @classmethod
    def is_absent(cls, name: str, value: Any) -> bool:
        """Whether a member with this value is taken as absent."""
        field = cls.model_fields.get(name)
        if field is None:
            is_setting = name in NEUTRAL_SETTINGS
            return is_neutral_setting(name, value) if is_setting else requests_nothing(value)
        is_text = field.is_required() or isinstance(field.default, str)
        return value is None or (value in _EMPTY_VALUES and not is_text)


class WebUIMembers(Strict):
    """Images are stored and returned as URLs, whatever `save_images` and `send_images` say."""

    compatibility: Compatibility = "webui"
    """The product whose meaning all members have. The default is a setting of the service."""

    save_images: bool = False
    send_images: bool = True
    do_not_save_samples: bool = False
    do_not_save_grid: bool = False
    override_settings_restore_afterwards: bool = True
    force_task_id: str = ""
    """Accepted without effect: each job has its own settings and its own id."""
    seed_enable_extras: bool = True
    do_not_reload_embeddings: bool = False
    outpath_samples: Text = ""
    outpath_grids: Text = ""
    prompt_for_display: Text = ""
    """Accepted without effect, as in the WebUI's API."""

    script_name: _NoScript = ""
    script_args: _NoList = []
    alwayson_scripts: Annotated[dict[str, Any], AfterValidator(_idle_scripts)] = {}
    comments: _NoObject = {}
    infotext: _NoText = ""

    restore_faces: _Off = False
    disable_extra_networks: _Off = False
    firstphase_width: _Zero = 0
    firstphase_height: _Zero = 0
    firstpass_image: _NoText = ""
    hr_additional_modules: Annotated[
        list[Any], _Only(([], ["Use same choices"])), BeforeValidator(_without_nothing)
    ] = []
    """A member of Forge."""


class OverrideSettings(Strict):
    """Settings for this job only. Settings with neutral values are ignored."""

    sd_model_checkpoint: OtherModel | None = None
    sd_vae: OtherVae = ""
    CLIP_stop_at_last_layers: ClipSkip | None = None
    eta_noise_seed_delta: Annotated[Whole, Field(ge=0, lt=2**32)] = 0
    sgm_noise_multiplier: bool = False
    enable_quantization: bool = False
    img2img_fix_steps: bool = False
    """Whether img2img takes all `steps`, regardless of `denoising_strength`."""
    emphasis: Emphasis = "Original"
    randn_source: RandnSource | None = None
    """The generator that draws noise. null stands for `GPU`.

    The noise of `CPU` and `NV` is the same on every device.
    """

    @staticmethod
    def neutral() -> dict[str, Any]:
        """Return a neutral value for each setting in `NEUTRAL_SETTINGS`."""
        return {name: values[0] for name, values in NEUTRAL_SETTINGS.items()}

    @staticmethod
    def is_neutral(name: Any, value: Any) -> bool:
        return is_neutral_setting(name, value)

    @model_validator(mode="wrap")
    @classmethod
    def _without_neutral(cls, body: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(body, dict):
            body = {k: v for k, v in body.items() if not is_neutral_setting(k, v)}
        return handler(body)


MOST_IMAGES = 16
_LARGEST_DENOISE = 0.999
_USUAL_BLUR = 4
_MOST_BLUR = 64
FileName: TypeAlias = Annotated[
    Text,
    Field(min_length=1, max_length=1024),
    # An HTTP request may contain the image instead of its name. The image is longer, so the JSON
    # schema has no `maxLength`.
    WithJsonSchema({"type": "string", "minLength": 1}),
]
Blur: TypeAlias = Annotated[Whole, Field(ge=0, le=_MOST_BLUR)]
ResizeMode: TypeAlias = Literal[
    "just resize", "crop and resize", "resize and fill", "latent upscale"
]
MaskedContent: TypeAlias = Literal["fill", "original", "latent noise", "latent nothing"]
RESIZE_MODES: tuple[ResizeMode, ...] = (
    "just resize",
    "crop and resize",
    "resize and fill",
    "latent upscale",
)
MASKED_CONTENTS: tuple[MaskedContent, ...] = ("fill", "original", "latent noise", "latent nothing")
"""The modes and the contents are in the order of their numbers in the WebUI."""


class FromImages(WebUIMembers):
    """Members about initial images. Without `init_images`, the other members have no effect."""

    init_images: Annotated[tuple[FileName, ...], Field(max_length=MOST_IMAGES), FailFast()] = ()
    """Names of uploads. An HTTP request may contain each image as a data URL, base64 or an https
    URL. A single image is the start of every image. Several images make a batch of the same size,
    and each is the start of one image of the batch.
    """
    resize_mode: Annotated[Whole, Field(ge=0, le=3)] = 0
    """0: the image is stretched to the size; 1: it is cropped to the size; 2: its edges are filled
    with the colours of the border; 3: its latent is stretched."""
    mask: FileName | None = None
    """The name of an upload, or an image as in `init_images`. Its white part is sampled, or its
    opaque part if it has transparency."""
    mask_blur: Blur | None = None
    """The blur of the mask in pixels. It replaces both `mask_blur_x` and `mask_blur_y`."""
    mask_blur_x: Blur = _USUAL_BLUR
    mask_blur_y: Blur = _USUAL_BLUR
    inpainting_mask_invert: bool = False
    """Whether the mask is inverted, so that its black part is sampled."""
    inpainting_fill: Annotated[Whole, Field(ge=0, le=3)] = 0
    """The content of the masked part at the start. 0: colours of the surroundings; 1: the image;
    2: noise; 3: a latent of zeros."""
    inpaint_full_res: bool = True
    """Whether only the part around the mask is sampled, at the requested size, and then pasted into
    the image."""
    inpaint_full_res_padding: Annotated[Whole, Field(ge=0, le=4096)] = 0
    """The number of pixels around the mask that belong to the sampled part."""
    initial_noise_multiplier: Annotated[Number, Field(ge=0, le=10)] | None = None
    """The factor of the noise at the start; 1 if unset."""

    mask_round: Annotated[bool, always(True)] = True
    latent_mask: Annotated[str, always("")] = ""
    image_cfg_scale: Factor | None = None
    """Accepted without effect: it is for models that edit images by instructions."""
    include_init_images: bool = False
    """Accepted without effect: the answer never contains the given images."""

    @property
    def blurs(self) -> tuple[int, int]:
        """The blurs across columns and across rows, in pixels."""
        if self.mask_blur is not None:
            return self.mask_blur, self.mask_blur
        return self.mask_blur_x, self.mask_blur_y

    @property
    def noise_multiplier(self) -> float:
        return 1.0 if self.initial_noise_multiplier is None else self.initial_noise_multiplier

    @property
    def is_only_masked(self) -> bool:
        return self.mask is not None and self.inpaint_full_res

    @property
    def masked_content(self) -> MaskedContent:
        return MASKED_CONTENTS[self.inpainting_fill]

    @property
    def resizing(self) -> ResizeMode:
        return RESIZE_MODES[self.resize_mode]

    def members_without_comfyui_node(self) -> list[str]:
        """Return the given members whose values no node of ComfyUI supports."""
        asked = {
            "resize_mode": self.resize_mode == RESIZE_MODES.index("resize and fill"),
            "initial_noise_multiplier": self.noise_multiplier != 1.0,
        }
        if self.mask is not None:
            asked |= {
                "mask_blur": bool(self.mask_blur),
                "mask_blur_x": bool(self.mask_blur_x),
                "mask_blur_y": bool(self.mask_blur_y),
                "inpainting_fill": self.masked_content != "original",
                "inpaint_full_res": self.inpaint_full_res,
            }
        return [
            name for name, is_asked in asked.items() if is_asked and name in self.model_fields_set
        ]


def steps_taken(steps: int, denoise: float) -> int:
    """Return how many steps of a schedule img2img takes: the share `denoise`, plus one step."""
    return int(min(denoise, _LARGEST_DENOISE) * steps) + 1


_STEPS, _STEPS_OF_COMFYUI = 50, 20
_NAMES = ("sampler_name", "sampler_index", "scheduler")
_MOST_STYLES = 16
_LONGEST_TYPED = 64
"""The largest length of an unknown name that is compared with the existing names."""
_HINTED = 5
"""The largest number of unknown members for which a similar name is searched. Each search takes 1
or 2 milliseconds."""
_ALSO_SETTINGS = ("s_churn", "s_tmin", "s_tmax", "s_noise", "s_min_uncond", "tiling")


class HiresFix(FromImages):
    """A second pass at a larger size, which starts from the images of the first pass.

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
    """Members that ComfyUI lacks. With ComfyUI's semantics, they must have neutral values."""

    subseed: Seed = -1
    """The seed of the variation of the noise. A negative seed is replaced by a random seed."""
    subseed_strength: Share = 0.0
    seed_resize_from_w: AnySide = -1
    seed_resize_from_h: AnySide = -1
    """If both are positive, noise of that size replaces the middle of the noise at the start."""
    tiling: bool = False
    """Whether opposite edges of the image fit together, so that it can be tiled."""
    refiner_checkpoint: OtherModel = ""
    refiner_switch_at: Share = 0.8
    s_churn: Factor = 0.0
    s_tmin: Sigma = 0.0
    s_tmax: Sigma = 0.0
    """The largest sigma at which churn is added; 0 means no limit."""
    s_noise: Factor = 1.0
    s_min_uncond: Sigma = 0.0
    """Below this sigma, every second call of the model omits the negative prompt."""

    @property
    def varies(self) -> bool:
        """Whether all images share one seed, and differ only by their subseeds."""
        return self.subseed_strength > 0

    @property
    def noise_size(self) -> tuple[int, int] | None:
        """The width and height in pixels of the noise in the middle of the noise at the start."""
        size = self.seed_resize_from_w, self.seed_resize_from_h
        return size if min(size) > 0 else None

    def members_of_webui(self) -> list[str]:
        """Return the given members whose values only the WebUI supports."""
        return [*self.own(), *(self.members_without_comfyui_node() if self.init_images else ())]

    def own(self) -> dict[str, Any]:
        """Return the members that differ from their neutral values."""
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
    """Let the schema require no prompt, because only requests with ComfyUI's semantics need one."""
    schema.pop("required", None)


class DiffusionParameters(OwnOfWebUI):
    """A diffusion request. Sides are in pixels. A negative seed is replaced with a random one."""

    model_config = ConfigDict(json_schema_extra=_nothing_required)

    prompt: Text
    """May be omitted only in the compatibility of the WebUI, where it is then empty."""
    negative_prompt: Text = ""
    sd_model_checkpoint: OtherModel | None = None
    width: Side | None = None
    """The checkpoint's default if unset."""
    height: Side | None = None
    sampler_name: SamplerName = "Euler"
    sampler_index: SamplerName | None = None
    scheduler: SchedulerName = AUTOMATIC
    steps: Annotated[Whole, Field(ge=1, le=150)] = _STEPS
    cfg_scale: Annotated[Number, Field(ge=0, le=100)] = 7.0
    distilled_cfg_scale: Factor = 0.0
    """The guidance scale that Flux.1 takes as an input; 0 means 3.5."""
    batch_size: Count = 1
    n_iter: Count = 1
    clip_skip: ClipSkip = 1
    seed: Seed = -1
    eta: Factor | None = None
    styles: Annotated[
        tuple[Name, ...],
        Field(max_length=_MOST_STYLES),
        FailFast(),
        BeforeValidator(_without_nothing),
    ] = ()
    """Names of the operator's styles, whose texts are added to the prompts."""
    override_settings: OverrideSettings = OverrideSettings()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, body: Any) -> Any:
        """Remove empty names. If there is no `sampler_name`, use `sampler_index` as the name."""
        if not isinstance(body, dict):
            return body
        given = {k: v for k, v in body.items() if k not in _NAMES or not requests_nothing(v)}
        given = _without_idle(_with_own_settings(given))
        if "sampler_name" not in given and "sampler_index" in given:
            given["sampler_name"] = given["sampler_index"]
        return given

    @property
    def images(self) -> int:
        return self.batch * self.n_iter

    @property
    def batch(self) -> int:
        """The number of images in a batch: that of `init_images` if there are several."""
        return len(self.init_images) if len(self.init_images) > 1 else self.batch_size

    @property
    def starts_from_images(self) -> bool:
        """Whether this is img2img."""
        return bool(self.init_images)

    @property
    def checkpoint(self) -> str | None:
        return self.override_settings.sd_model_checkpoint or self.sd_model_checkpoint or None

    def seed_of(self, index: int) -> int:
        """Return the seed of an image. Varied images all have the same seed, as in the WebUI."""
        return (self.seed + (0 if self.varies else index)) % SEEDS

    def subseed_of(self, index: int) -> int:
        """Return the subseed of an image.

        A negative subseed is drawn only for variations. Otherwise it has no effect, and a value
        that is derived from the seed is shown.
        """
        if self.subseed < 0:
            return (self.seed + index) % _DRAWN_SEEDS
        return (self.subseed + index) % SEEDS

    def recorded(self) -> dict[str, Any]:
        """Return the given members that have an effect, as JSON, for the same images later."""
        excluded = set(WebUIMembers.model_fields) - {"compatibility"} | {"styles"}
        if not self.enable_hr:
            excluded |= HiresFix.model_fields.keys() - FromImages.model_fields.keys()
        if not self.starts_from_images:
            excluded |= FromImages.model_fields.keys() - {"compatibility"}
        elif not self.enable_hr:
            excluded.remove("denoising_strength")
        recorded = self.model_dump(mode="json", exclude_unset=True, exclude=excluded)
        if requests_nothing(recorded.get("override_settings")):
            recorded.pop("override_settings", None)
        return recorded

    @property
    def stops_at_layer(self) -> int:
        """The layer at which the text encoder stops, counted from the end: the last layer is 1."""
        return self.override_settings.CLIP_stop_at_last_layers or self.clip_skip


def parse_parameters(body: object, compatibility: str = "comfyui") -> DiffusionParameters:
    """Return the parameters in a request body. Raises ParametersInvalid with the invalid fields.

    `compatibility` applies if the body does not name a compatibility.
    """
    try:
        return DiffusionParameters.model_validate(_completed(body, compatibility))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise ParametersInvalid(_field_errors(errors[:SHOWN_FIELDS]), len(errors)) from error


def _completed(body: object, compatibility: str) -> object:
    """Return the body with the defaults of its compatibility, so that they are recorded."""
    if not isinstance(body, dict):
        return body
    given = dict(body)
    if given.get("compatibility") is None:
        given["compatibility"] = compatibility
    is_webui = given["compatibility"] == "webui"
    defaults = {"prompt": "", "steps": _STEPS} if is_webui else {"steps": _STEPS_OF_COMFYUI}
    is_absent = DiffusionParameters.is_absent
    return given | {n: value for n, value in defaults.items() if is_absent(n, given.get(n))}


_OF_MASKS = {
    *("mask_blur", "mask_blur_x", "mask_blur_y", "mask_round", "inpainting_mask_invert"),
    *("inpainting_fill", "inpaint_full_res", "inpaint_full_res_padding"),
}
_OF_IMAGES = (
    FromImages.model_fields.keys() - WebUIMembers.model_fields.keys() - {"init_images", "mask"}
)


def _without_idle(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body without the members of parts that are off, whatever their values are."""
    idle: set[str] = set()
    is_from_images = bool(body.get("init_images"))
    if _is_off(body.get("enable_hr")):
        idle |= {name for name in body if name.startswith("hr_")}
        idle |= set() if is_from_images else {"denoising_strength"}
    if not is_from_images:
        idle |= _OF_IMAGES
    elif not body.get("mask"):
        idle |= _OF_MASKS
    if requests_nothing(body.get("refiner_checkpoint")):
        idle.add("refiner_switch_at")
    if _is_off(body.get("s_churn")):
        idle |= {"s_tmin", "s_tmax"}
    if requests_nothing(body.get("script_name")):
        idle.add("script_args")
    given = {name: value for name, value in body.items() if name not in idle}
    if isinstance(scripts := given.get("alwayson_scripts"), dict):
        given["alwayson_scripts"] = {
            name: script
            for name, script in scripts.items()
            if not _repeats_request(name, script, body)
        }
    return given


def _is_off(value: Any) -> bool:
    """Whether a member is absent, empty, 0 or false."""
    with suppress(ValidationError):
        return not value or not _BOOLEAN.validate_python(value)
    return False


def _with_own_settings(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body, with override settings moved to the members of the same name.

    A setting that the body also has as a member is dropped.
    """
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
    """Return a question with the names of members that are similar to `name`, or an empty text."""
    if len(name) > _LONGEST_TYPED:
        return ""
    near = get_close_matches(name, DiffusionParameters.model_fields, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
