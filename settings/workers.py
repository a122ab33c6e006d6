"""Settings of the attempts of a job."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class WorkerSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    max_attempts: PositiveInt = 3
    """The number of failed attempts after which a job fails. Only attempts that fail because of the
    job itself count.
    """
    step_timeout_s: PositiveFloat = 120.0
    """The longest time in seconds that one device call or one node may take. After this time the
    engine is ended.
    """
