"""The engine of a worker."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class EngineSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    threads: Annotated[int, Field(ge=0)] = Field(0, validation_alias="DARKROOM_ENGINE_THREADS")
    """Threads of torch in one engine on a CPU; 0: as many as the machine has cores."""
    max_rows: PositiveInt = 32
    """Most latents in one UNet call."""
    model_cache_bytes: PositiveInt = 8 * 1024**3
    """Models that one engine keeps in memory."""
    text_cache_bytes: PositiveInt = 128 * 1024**2
    """Encoded texts that one engine keeps in memory, beside the models."""
    step_seed_offset: int = 0
    """What is added to the seed for the noise of steps; 1: as newer ComfyUI than 0.3 on a CPU."""
