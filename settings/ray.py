"""The Ray that `darkroom up` starts on this machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class RaySettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_RAY_")

    num_gpus: Annotated[int, Field(ge=0)] | None = None
    """How many GPUs the Ray of `darkroom up` declares; if unset, all that it finds."""
