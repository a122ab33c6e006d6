"""Members that the WebUI's clients send, but that have no effect here.

Only their neutral values are accepted. Any other value is an error rather than being ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from engine.errors import SHOWN_FIELDS


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
        return {**handler(schema), "enum": list(self.values)}

    def _check(self, value: Any) -> Any:
        if value not in self.values:
            taken = " or ".join(repr(each) for each in self.values)
            raise ValueError(f"is supported as {taken} only")
        return value


_Off: TypeAlias = Annotated[bool, _Only((False,))]
_On: TypeAlias = Annotated[bool, _Only((True,))]
_Zero: TypeAlias = Annotated[float, _Only((0,))]
_One: TypeAlias = Annotated[float, _Only((1,))]
_Unset: TypeAlias = Annotated[int, _Only((-1, 0))]
_NoText: TypeAlias = Annotated[str, _Only(("",))]
_NoList: TypeAlias = Annotated[list[Any], _Only(([],))]
_NoObject: TypeAlias = Annotated[dict[str, Any], _Only(({},))]


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

    save_images: bool = False
    send_images: bool = True
    do_not_save_samples: bool = False
    do_not_save_grid: bool = False
    override_settings_restore_afterwards: _On = True

    styles: _NoList = []
    script_name: _NoText = ""
    script_args: _NoList = []
    alwayson_scripts: _NoObject = {}
    comments: _NoObject = {}
    infotext: _NoText = ""
    force_task_id: _NoText = ""

    restore_faces: _Off = False
    tiling: _Off = False
    disable_extra_networks: _Off = False
    subseed: _Unset = -1
    subseed_strength: _Zero = 0
    seed_resize_from_h: _Unset = -1
    seed_resize_from_w: _Unset = -1
    s_min_uncond: _Zero = 0
    s_churn: _Zero = 0
    s_tmin: _Zero = 0
    s_tmax: _Zero = 0
    s_noise: _One = 1
    firstphase_width: _Zero = 0
    firstphase_height: _Zero = 0
    firstpass_image: _NoText = ""
    refiner_checkpoint: _NoText = ""
    refiner_switch_at: _Zero = 0
