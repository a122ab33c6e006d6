"""The event log."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class LogSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_LOG_")

    nats_url: str | None = Field(None, validation_alias="DARKROOM_NATS_URL")
    """NATS with JetStream; unset: a nats-server of its own is started."""
    max_bytes: PositiveInt = 2 * 1024**3
    """Size of the event log; about 1 KB an event."""
    replicas: PositiveInt = 1
    """Copies of each stream; 3 on a NATS cluster."""
    append_timeout_s: PositiveFloat = Field(10.0, validation_alias="DARKROOM_APPEND_TIMEOUT_S")
    """After this without an answer the outcome of a submission is unknown."""
    append_try_timeout_s: PositiveFloat = Field(
        2.0, validation_alias="DARKROOM_APPEND_TRY_TIMEOUT_S"
    )
    """After this without an answer the same event is sent again."""
