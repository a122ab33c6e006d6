"""Settings of the times of jobs and workers, and of the Ray that `darkroom up` starts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class DispatchSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    job_timeout_s: PositiveFloat = 3600.0
    """The longest time in seconds from the submission of a job to its end. After this time the job
    fails.
    """
    worker_idle_s: PositiveFloat = 300.0
    """The time in seconds for which a worker above the minimum of its endpoint may be idle before
    it is closed.
    """
    workers_kept_s: Annotated[float, Field(ge=0)] = 60.0
    """The time in seconds for which workers without a dispatcher are kept, for example after the
    end of the application; 0 means no limit. Workers that run a job are kept until the job has
    ended. Under `darkroom up` workers always end with Ray.
    """


class RaySettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_RAY_")

    num_gpus: Annotated[int, Field(ge=0)] | None = None
    """The number of GPUs that the Ray of `darkroom up` declares. If unset, Ray declares all GPUs
    that it finds.
    """
