"""How a worker runs a job."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class WorkerSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    max_attempts: PositiveInt = 3
    """Attempts at one job."""
    lease_s: PositiveFloat = 30.0
    """A job whose actor is silent for this long goes to another one."""
    lease_renew_s: PositiveFloat = 5.0
    """How often the lease is renewed."""
    step_timeout_s: PositiveFloat = 120.0
    """An engine without a step for this long is killed."""
    model_load_timeout_s: PositiveFloat = 600.0
    """The same, before a job's first step."""
