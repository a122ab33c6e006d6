"""Settings of an engine: the memory that it may use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class EngineSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    model_cache_bytes: PositiveInt | None = None
    """The largest size in bytes of the models that one engine keeps in memory. If unset, the limit
    is three quarters of the engine's share of the GPU's memory. Without a GPU the limit is a third
    of the memory of the machine or container.
    """
    memory_bytes: Annotated[int, Field(ge=0)] | None = Field(
        None, validation_alias="DARKROOM_ENGINE_MEMORY_BYTES"
    )
    """The largest amount of the machine's memory in bytes that the process of one engine may take;
    0 means no limit. A job that needs more memory fails. If unset, there is no limit with a GPU.
    Without a GPU the limit is three quarters of the memory of the machine or container.
    """
