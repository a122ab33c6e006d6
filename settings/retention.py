"""How long jobs, uploads and files are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, PositiveFloat
from pydantic_settings import SettingsConfigDict

from settings.group import Group

_DAY_S = 86_400


class RetentionSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    retention_days: Annotated[float, Field(ge=0)] = 30.0
    """How many days an ended job and its images are kept; 0 is for ever."""
    upload_retention_days: Annotated[float, Field(ge=0)] = 30.0
    """How many days an upload is kept after the last job that named it; 0 is for ever."""
    sweep_grace_s: PositiveFloat = 3600.0
    """How old a file of no job and no upload must be before it is removed."""
    janitor_period_s: PositiveFloat = 60.0
    """How often the service looks for what it must remove, and for what goes to the archive."""
    upkeep_lease_s: PositiveFloat = 120.0
    """After how long a silence of the process that removes and archives another one takes over.
    What it was writing to the archive is given up then, and written again."""

    def job_retention(self, *, longest_delivery_s: float) -> timedelta | None:
        """How long a job is kept after its end; None: for good.

        Its callback needs it too, until its delivery has surely ended.
        """
        kept_s = max(self.retention_days * _DAY_S, longest_delivery_s)
        return timedelta(seconds=kept_s) if self.retention_days else None

    def upload_retention(self, *, longest_job_s: float) -> timedelta | None:
        """How long an upload is kept after its last use; None: for good.

        A job that names it needs it too, for as long as the job may last.
        """
        kept_s = max(self.upload_retention_days * _DAY_S, longest_job_s)
        return timedelta(seconds=kept_s) if self.upload_retention_days else None
