"""The event log, and what the service tells of itself."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

from settings.group import Group


def _of_streams(count: int) -> int:
    if count not in _STREAM_COUNTS:
        raise ValueError("must be 1, 2, 4, 8 or 16")
    return count


_STREAM_COUNTS = (1, 2, 4, 8, 16)


class LogSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_LOG_")

    nats_url: SecretStr | None = Field(None, validation_alias="DARKROOM_NATS_URL")
    """The URL of NATS with JetStream, or with commas those of several servers of one cluster; if
    unset, `darkroom up` starts a nats-server of its own."""
    nats_ca_file: Path | None = Field(None, validation_alias="DARKROOM_NATS_CA_FILE")
    """The file (PEM) of the authorities by which a NATS with TLS is checked, the same on every
    node; if unset, those of the system."""
    max_bytes: PositiveInt = 2 * 1024**3
    """How large the event log may become when it is made. An event takes about 1 KB."""
    streams: Annotated[int, AfterValidator(_of_streams)] = 1
    """How many streams of NATS the event log is, which share its size: 1, 2, 4, 8 or 16. It can be
    raised from 1 while the log holds no event, and not changed later; see the operations guide."""
    projections: Annotated[int, Field(ge=1, le=16)] = 1
    """How many processes project the streams of the log into the database, of which each takes its
    share. More than there are streams stand by."""
    routers: Annotated[int, Field(ge=1, le=16)] = 1
    """How many processes route what the streams of the log bring to the queues, of which each takes
    its share. More than there are streams stand by."""
    hot_s: NonNegativeFloat = 3600.0
    """How long an ended job stays in the event log, before its events go to the archive; at least
    DARKROOM_APPEND_TIMEOUT_S."""
    segment_bytes: PositiveInt = 4 * 1024**2
    """How large the files of the archive become, of which each has the events of many jobs."""
    batch_jobs: PositiveInt = 4096
    """How many ended jobs of a partition go to the archive together, in a file of their own; small
    files are merged later."""
    batch_bytes: PositiveInt = 32 * 1024**2
    """How much of the events of such jobs is in memory at a time on their way to the archive."""
    purges_at_once: PositiveInt = 32
    """How many jobs are purged from the event log at a time once the archive has them."""
    replicas: PositiveInt = 1
    """How many copies of each stream are kept; 3 is right for a NATS cluster."""
    append_timeout_s: PositiveFloat = Field(10.0, validation_alias="DARKROOM_APPEND_TIMEOUT_S")
    """How long a submission waits for the event log before its outcome is unknown."""
    append_try_timeout_s: PositiveFloat = Field(
        2.0, validation_alias="DARKROOM_APPEND_TRY_TIMEOUT_S"
    )
    """How long one try to store an event may take before the same event is sent again."""

    @property
    def hot_time(self) -> timedelta:
        """How long an ended job stays in the log.

        A submission with its idempotency key looks for its row first and appends then, so its row
        must be there for as long as an append may take before the log forgets it.
        """
        return timedelta(seconds=max(self.hot_s, self.append_timeout_s))


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class TelemetrySettings(Group):
    """What an operator can see of the service."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    metrics_timeout_s: PositiveFloat = 2.0
    """How long an answer of `/metrics` waits for the processes of the service, and these half as
    long for what they look up; what does not come by then is missing in it."""
    metrics_endpoints: PositiveInt = 50
    """How many endpoints have metrics of their own; further ones are counted together, as `other`,
    until the processes that count start again."""
    otlp_url: Annotated[str, Field(pattern=r"^https?://[^/]+")] | None = None
    """Where a collector takes traces by OTLP over HTTP, as `http://127.0.0.1:4318`; if unset, there
    are none."""
    otlp_spans: PositiveInt = 10_000
    """How many spans one process keeps for the collector while that does not take them; further
    ones are dropped."""
    log_format: LogFormat = LogFormat.TEXT
    """How log lines are written: `text`, a message and then the fields, or `json`, an object a
    line, which has also `endpoint` and `trace_id` of the job that is worked on."""
