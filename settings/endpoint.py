"""The default endpoint: its row is made from these at every start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class EndpointSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    checkpoint: str | None = Field(None, validation_alias="DARKROOM_DEFAULT_CHECKPOINT")
    """Checkpoint of a diffusion job that names none; unset: the first of the models folder."""
    min_workers: Annotated[int, Field(ge=0)] = 1
    """Workers that the default endpoint always keeps."""
    max_workers: PositiveInt = 1
    """Most workers of the default endpoint."""
    gpus: Annotated[float, Field(ge=0)] | None = Field(
        None, validation_alias="DARKROOM_WORKER_GPUS"
    )
    """GPUs of one worker; unset: 1 where Ray has any."""
    cpus: PositiveFloat = Field(1.0, validation_alias="DARKROOM_WORKER_CPUS")
    """CPUs of one worker, as Ray counts them."""
    jobs_per_worker: PositiveInt = 4
    """Jobs that one worker runs at once."""
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Of the UNets' weights on the default endpoint; auto: float16 with a GPU, else float32."""
    channels_last: bool = False
    """UNets of the default endpoint with their channels innermost, for a GPU's tensor cores."""
    compiler: str | None = None
    """Backend of torch.compile for the UNets of the default endpoint (`inductor`); unset: none."""
