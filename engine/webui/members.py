"""Members that the WebUI's clients send, but that have no effect here.

Only their neutral values are accepted. Any other value is an error rather than being ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from engine.errors import SHOWN_FIELDS
from engine.webui.sampler_names import Compatibility

_EMPTY: dict[type, dict[str, int]] = {list: {"maxItems": 0}, dict: {"maxProperties": 0}}
"""What generators of clients understand, unlike an `enum` of lists or objects."""


@dataclass(frozen=True, slots=True)
class _Only:
    """Accepts only these values."""

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
    """What makes a member take this value alone."""
    return _Only((value,))


_Off: TypeAlias = Annotated[bool, _Only((False,))]
_Zero: TypeAlias = Annotated[float, _Only((0,))]
_NoText: TypeAlias = Annotated[str, _Only(("",))]
_NoList: TypeAlias = Annotated[list[Any], _Only(([],))]
_NoObject: TypeAlias = Annotated[dict[str, Any], _Only(({},))]


def _idle_scripts(scripts: dict[str, Any]) -> dict[str, Any]:
    """Raise ValueError unless no script has anything to do."""
    for name, script in scripts.items():
        args = script.get("args", []) if isinstance(script, dict) else script
        units = args if isinstance(args, list) else [args]
        if units[:1] != [False] and not all(_is_idle(unit) for unit in units):
            raise ValueError(f"{name[:80]!r} is supported without arguments, or disabled, only")
    return scripts


def _is_idle(unit: Any) -> bool:
    return not unit or (isinstance(unit, dict) and unit.get("enabled", True) is False)


NEUTRAL_SETTINGS: dict[str, tuple[Any, ...]] = {
    "randn_source": ("CPU",),
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
"""Settings of the WebUI by the values that say what is done here anyway."""
_WITHOUT_EFFECT = re.compile(
    r"(do_not_|enable_pnginfo|export_for_|face_restoration_model|grid_|jpeg_|live_preview|outdir_"
    r"|n_rows|pad_cond_uncond|return_|samples_(save|filename)|save_|sd_checkpoint_|show_progress"
    r"|target_side_|upcast_attn|use_original_name|webp_)"
)
"""How settings begin that change files, previews, memory or speed, and no picture."""


def is_neutral_setting(name: Any, value: Any) -> bool:
    """Whether a setting of the WebUI says what is done here anyway, or concerns no picture."""
    if taken := NEUTRAL_SETTINGS.get(name):
        return value is None or value in taken
    return isinstance(name, str) and _WITHOUT_EFFECT.match(name) is not None


class Strict(BaseModel):
    """Rejects unknown members. As in the WebUI, null means the same as an absent member."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known = cls.model_fields
        unknown = sum(name not in known for name in body)
        if unknown > SHOWN_FIELDS:  # each would be an error of its own, which takes long to make
            raise ValueError(f"has {unknown} members that are not supported")
        return {name: v for name, v in body.items() if v is not None or name not in known}


class WebUIMembers(Strict):
    """Every image is stored and returned as a URL, whatever the members about images say."""

    compatibility: Compatibility = "webui"
    """Whose meaning all members have: the WebUI's, or that of the same nodes in ComfyUI. The
    default is a setting of the service."""

    save_images: bool = False
    send_images: bool = True
    do_not_save_samples: bool = False
    do_not_save_grid: bool = False
    override_settings_restore_afterwards: bool = True
    force_task_id: str = ""
    """The settings of a job are its own, and so is its id."""

    script_name: _NoText = ""
    script_args: _NoList = []
    alwayson_scripts: Annotated[dict[str, Any], AfterValidator(_idle_scripts)] = {}
    comments: _NoObject = {}
    infotext: _NoText = ""

    restore_faces: _Off = False
    disable_extra_networks: _Off = False
    firstphase_width: _Zero = 0
    firstphase_height: _Zero = 0
    firstpass_image: _NoText = ""
    hr_additional_modules: Annotated[list[Any], _Only(([], ["Use same choices"]))] = []
    """A member of Forge."""
