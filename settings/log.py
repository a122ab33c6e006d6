"""The event log."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class LogSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_LOG_")

    nats_url: SecretStr | None = Field(None, validation_alias="DARKROOM_NATS_URL")
    """The URL of NATS with JetStream; if unset, `darkroom up` starts a nats-server of its own."""
    max_bytes: PositiveInt = 2 * 1024**3
    """How large the event log may become; an event takes about 1 KB."""
    replicas: PositiveInt = 1
    """How many copies of each stream are kept; 3 is right for a NATS cluster."""
    append_timeout_s: PositiveFloat = Field(10.0, validation_alias="DARKROOM_APPEND_TIMEOUT_S")
    """How long a submission waits for the event log before its outcome is unknown."""
    append_try_timeout_s: PositiveFloat = Field(
        2.0, validation_alias="DARKROOM_APPEND_TRY_TIMEOUT_S"
    )
    """How long one try to store an event may take before the same event is sent again."""
