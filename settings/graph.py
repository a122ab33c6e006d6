"""Settings of requests: their meaning, and the limits of graphs and images."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group

Compatibility: TypeAlias = Literal["webui", "comfyui"]
"""The program that determines the meaning of the parameters in a diffusion request."""
MAX_COST_WITHOUT_GPU = 250.0
"""The default of `max_cost` if there is no GPU."""


class GraphSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    compatibility: Compatibility = "webui"
    """The program that determines the meaning of a diffusion request that does not set
    `compatibility`: the WebUI (`webui`), or ComfyUI with the same nodes (`comfyui`).
    """
    max_side_px: PositiveInt = 4096
    """The longest side of an image in pixels."""
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2000.0
    """The largest cost of a job in megapixel-steps on an endpoint without its own limit; 0 means no
    limit. If this setting is unset and `darkroom up` finds no GPU, the limit is 250.
    """
