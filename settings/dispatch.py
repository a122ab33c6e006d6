"""How jobs come to workers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class DispatchSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    job_timeout_s: PositiveFloat = 3600.0
    """A job that has not ended by then fails."""
    jobs_per_actor: Annotated[int, Field(ge=0)] = 0
    """Jobs that one actor runs before it is replaced; 0: 1 with a GPU, 50 without."""
    worker_idle_s: PositiveFloat = 300.0
    """A worker above the minimum that is idle for this long is closed."""
    dispatcher_lease_s: PositiveFloat = 6.0
    """After this silence another dispatcher takes over."""
    endpoints_period_s: PositiveFloat = 2.0
    """How often the endpoints' rows are read."""
    requeue_period_s: PositiveFloat = 60.0
    """How often open jobs are compared with the queue."""
