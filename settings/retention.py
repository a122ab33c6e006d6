"""Settings of the times for which jobs and uploads are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from settings.group import Group

_DAY_S = 86_400


class RetentionSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    retention_days: Annotated[float, Field(ge=0)] = 30.0
    """The number of days for which an ended job and its images are kept; 0 means no limit."""
    upload_retention_days: Annotated[float, Field(ge=0)] = 30.0
    """The number of days for which an upload is kept after the last job that used it; 0 means no
    limit.
    """

    def job_retention(self, *, longest_delivery_s: float) -> timedelta | None:
        """Return the time for which a job is kept after its end; None means no limit.

        A job is kept at least as long as a delivery of its callback may take.
        """
        kept_s = max(self.retention_days * _DAY_S, longest_delivery_s)
        return timedelta(seconds=kept_s) if self.retention_days else None

    def upload_retention(self, *, longest_job_s: float) -> timedelta | None:
        """Return the time for which an upload is kept after its last use; None means no limit.

        An upload is kept at least as long as a job that uses it may last.
        """
        kept_s = max(self.upload_retention_days * _DAY_S, longest_job_s)
        return timedelta(seconds=kept_s) if self.upload_retention_days else None
