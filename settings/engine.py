"""What an engine uses of its machine, and how it computes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class EngineSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    threads: Annotated[int, Field(ge=0)] = Field(0, validation_alias="DARKROOM_ENGINE_THREADS")
    """How many threads torch uses in one engine on a CPU; 0 is one for each core of the machine."""
    max_rows: PositiveInt = 32
    """How many latents one UNet call may have."""
    model_cache_bytes: PositiveInt = 8 * 1024**3
    """How much memory one engine uses to keep models."""
    text_cache_bytes: PositiveInt = 128 * 1024**2
    """How much memory one engine uses to keep encoded texts, in addition to the models."""
    weight_streaming: Literal["auto", "off"] = "auto"
    """Whether the weights of transformers and language models that do not fit on a GPU are kept in
    the machine's memory and streamed to it layer by layer (`auto`), or their jobs fail (`off`)."""
    job_memory_bytes: Annotated[int, Field(ge=0)] = 2 * 1024**3
    """How much memory the images, latents and texts of all jobs on one engine may need together, as
    their costs say; a job that does not fit waits, and 0 is any number. Models and their calls are
    not counted."""
    memory_bytes: Annotated[int, Field(ge=0)] | None = Field(
        None, validation_alias="DARKROOM_ENGINE_MEMORY_BYTES"
    )
    """How much memory of the machine the process of one engine may take; a job that needs more
    fails. 0 is any; if unset, three quarters of the machine's or the container's without a GPU, and
    any with one."""
    progress_period_s: Annotated[float, Field(ge=0)] = 0.25
    """How often a job tells its progress at most; each time takes CPU in three processes."""
    preview_period_s: Annotated[float, Field(ge=0)] = 1.0
    """How often a job that was asked for previews makes one at most."""
    step_seed_offset: int = 1
    """The number that is added to the seed for the noise of steps in workflows; with 0 it is that
    of ComfyUI up to 0.3 on a CPU, whose first noise in steps is that of the start again."""
