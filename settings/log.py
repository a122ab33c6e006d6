"""Settings of the event log, of logs and of traces."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class LogSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_LOG_")

    nats_url: SecretStr | None = Field(None, validation_alias="DARKROOM_NATS_URL")
    """The URL of NATS with JetStream, or the URLs of several servers of one cluster, separated by
    commas. If unset, `darkroom up` starts its own nats-server.
    """
    nats_ca_file: Path | None = Field(None, validation_alias="DARKROOM_NATS_CA_FILE")
    """The file (PEM) of the certificate authorities for a NATS with TLS. Its path must be the same
    on every node. If unset, the authorities of the system are used.
    """
    max_bytes: PositiveInt = 2 * 1024**3
    """The largest size of the event log in bytes. It is used only when the log is created. An event
    takes about 1 KB.
    """
    hot_s: NonNegativeFloat = 3600.0
    """The time in seconds for which the events of an ended job stay in the event log before they
    become a history object beside the images of the job; at least 20.
    """
    replicas: PositiveInt = 1
    """The number of copies of each stream; 3 is right for a NATS cluster."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class TelemetrySettings(Group):
    """Settings of log lines and traces."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    otlp_url: Annotated[str, Field(pattern=r"^https?://[^/]+")] | None = None
    """The address of a collector that accepts traces by OTLP over HTTP, such as
    `http://127.0.0.1:4318`. If unset, there are no traces.
    """
    log_format: LogFormat = LogFormat.TEXT
    """The format of log lines. `text`: a message, followed by the fields. `json`: one object per
    line, which also has `endpoint` and `trace_id` of the current job.
    """
