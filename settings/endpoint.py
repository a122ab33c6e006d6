"""Settings of the default endpoint. At every start its database row is updated from these settings,
except for members that were changed by the API.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class EndpointSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    checkpoint: str | None = Field(None, validation_alias="DARKROOM_DEFAULT_CHECKPOINT")
    """The checkpoint of diffusion jobs that name no checkpoint. If unset, the first checkpoint of
    the models folder is used.
    """
    min_workers: Annotated[int, Field(ge=0)] = 1
    """The number of workers that the default endpoint always keeps."""
    max_workers: PositiveInt = 1
    """The largest number of workers of the default endpoint."""
    gpus: Annotated[float, Field(ge=0)] | None = Field(
        None, validation_alias="DARKROOM_WORKER_GPUS"
    )
    """The number of GPUs that a worker of the default endpoint takes. If unset, a worker takes 1 if
    Ray has a GPU.
    """
    cpus: PositiveFloat = Field(1.0, validation_alias="DARKROOM_WORKER_CPUS")
    """The number of CPUs that a worker of the default endpoint takes, as Ray counts them."""
    jobs_per_worker: Annotated[int, Field(ge=0)] = 0
    """The largest number of jobs that a worker of the default endpoint runs at the same time. With
    0 the engine measures its memory, and chooses from 4 to 16 jobs, so that they fit into one call
    of the network. Their job actors, of 100 MiB each, must fit into a quarter of the machine's
    memory. A worker has `DARKROOM_OWNER_SLOTS_KEPT_FREE` additional slots.
    """
    file: Path | None = Field(None, validation_alias="DARKROOM_ENDPOINTS_FILE")
    """A YAML file that declares endpoints. The file is applied at each start. An entry that has not
    changed since the last start is not applied again, so that changes by the API remain.
    """
