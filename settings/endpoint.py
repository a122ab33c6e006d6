"""The default endpoint, whose row is made from these settings at every start."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class EndpointSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    checkpoint: str | None = Field(None, validation_alias="DARKROOM_DEFAULT_CHECKPOINT")
    """The checkpoint of a diffusion job that names none; if unset, the first of the models
    folder."""
    min_workers: Annotated[int, Field(ge=0)] = 1
    """How many workers the default endpoint always keeps."""
    max_workers: PositiveInt = 1
    """How many workers the default endpoint may have."""
    gpus: Annotated[float, Field(ge=0)] | None = Field(
        None, validation_alias="DARKROOM_WORKER_GPUS"
    )
    """How many GPUs a worker of the default endpoint takes; if unset, 1 where Ray has any."""
    cpus: PositiveFloat = Field(1.0, validation_alias="DARKROOM_WORKER_CPUS")
    """How many CPUs a worker of the default endpoint takes, as Ray counts them."""
    jobs_per_worker: Annotated[int, Field(ge=0)] = 0
    """How many jobs a worker of the default endpoint runs at the same time. 0 is as many as its
    engine says: those that meet in one UNet call by `DARKROOM_MAX_ROWS` and measured memory, 16 by
    default and 4 at least, no more than a quarter of the machine's memory holds actors for at
    100 MiB each, and beside them `DARKROOM_OWNER_SLOTS_KEPT_FREE`."""
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """The precision of the UNets' weights on the default endpoint; `auto` is float16 with a GPU
    and float32 without."""
    channels_last: bool = False
    """Whether the UNets of the default endpoint keep their channels innermost, which suits a
    GPU's tensor cores."""
    file: Path | None = Field(None, validation_alias="DARKROOM_ENDPOINTS_FILE")
    """A YAML file that says which endpoints there are to be and what they are given. It is applied
    at each start, and where it has not changed since, what was changed otherwise stays."""
    compiler: str | None = None
    """The backend of torch.compile for the UNets of the default endpoint (`inductor`); if unset,
    they are not compiled."""
