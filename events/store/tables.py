"""The tables of the database.

Only `jobs`, `images`, `erasures` and `blocked_jobs` can be rebuilt from the log and the history
objects.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A time-zone-aware time in UTC on both databases. SQLite itself stores no time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _: sa.Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("A time without a zone cannot be stored; give it UTC.")
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _: sa.Dialect) -> datetime | None:
        return value and (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC))


METADATA = sa.MetaData()


def _table(name: str, *parts: sa.Column[Any] | sa.Index) -> sa.Table:
    return sa.Table(name, METADATA, *parts)


def _key(name: str, kind: Any = sa.String) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True)


def _required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


def _partial_index(name: str, *columns: str, of: str) -> sa.Index:
    where = sa.text(of)
    return sa.Index(name, *columns, sqlite_where=where, postgresql_where=where)


DATA_FORMAT = "data_format"
"""The name of the row with the version of the data format."""
PROJECTION_OFFSET = "projection"
LOST_CALLBACKS_OFFSET = "lost_callbacks"

OFFSETS = _table("checkpoints", _key("name"), _required("seq", sa.BigInteger))

JOBS = _table(
    "jobs",
    _key("id"),
    _required("owner", sa.String),
    _required("flavour", sa.String),
    _required("endpoint", sa.String),
    _required("status", sa.SmallInteger),
    _required("created_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    _required("version", sa.BigInteger),
    _required("position", sa.BigInteger),
    _required("state", sa.Text),
    # This is `state` without the request, the graph and the upload URLs.
    _required("summary", sa.Text),
    _required("key_id", sa.String),
    sa.Column("dead_letter", sa.String),
    _required("log_bytes", sa.BigInteger),
    _required("result_bytes", sa.BigInteger),
    # `events.store.ended_jobs` explains the next two columns.
    sa.Column("history", sa.String),
    sa.Column("hot_since", UtcDateTime),
    # The time at which the ended job was settled (see `events.store.ended_jobs`). NULL means that
    # the job is not settled, or that this is unknown.
    sa.Column("settled_at", UtcDateTime),
    sa.Index("jobs_by_creation", "created_at", "id"),
    sa.Index("jobs_by_owner", "owner", "created_at", "id"),
    sa.Index("jobs_by_status", "status", "created_at", "id"),
    sa.Index("jobs_by_caller", "status", "owner", "key_id"),
    sa.Index("jobs_by_position", "position"),
    sa.Index("jobs_by_owner_bytes", "owner", "log_bytes", "result_bytes"),
    _partial_index("jobs_by_dead_letter", "created_at", "id", of="dead_letter IS NOT NULL"),
    _partial_index("jobs_by_end", "ended_at", "id", of="ended_at IS NOT NULL"),
    _partial_index("jobs_by_hot_since", "hot_since", "id", of="hot_since IS NOT NULL"),
    _partial_index("jobs_unsettled", "position", of="settled_at IS NULL AND ended_at IS NOT NULL"),
)

IMAGES = _table(
    "images",
    _key("job_id"),
    _key("index", sa.Integer),
    _required("storage_key", sa.String),
    _required("size_bytes", sa.BigInteger),
    _required("digest", sa.String),
    _required("position", sa.BigInteger),
    sa.Column("poster_key", sa.String),
)

ERASURES = _table(
    "erasures",
    _key("job_id"),
    _required("erased_at", UtcDateTime),
    _required("due_at", UtcDateTime),
    sa.Index("erasures_by_due_at", "due_at"),
)

BLOCKED_JOBS = _table(
    "blocked_jobs",
    _key("job_id"),
    _required("position", sa.BigInteger),
    _required("seen", sa.BigInteger),
    _required("why", sa.String),
    _required("since", UtcDateTime),
)

UPLOADS = _table(
    "uploads",
    _key("id"),
    _required("owner", sa.String),
    _required("name", sa.String),
    _required("digest", sa.String),
    _required("storage_key", sa.String),
    _required("width", sa.Integer),
    _required("height", sa.Integer),
    _required("size_bytes", sa.BigInteger),
    _required("created_at", UtcDateTime),
    _required("used_at", UtcDateTime),
    sa.Column("replaced_at", UtcDateTime),
    sa.Index("uploads_by_owner", "owner", "id"),
    _partial_index("uploads_by_name", "owner", "name", of="replaced_at IS NULL"),
    _partial_index("uploads_by_digest", "owner", "digest", of="replaced_at IS NULL"),
    sa.Index("uploads_by_owner_bytes", "owner", "size_bytes"),
    sa.Index("uploads_by_key", "storage_key"),
)

API_KEYS = _table(
    "api_keys",
    _key("id"),
    _required("owner", sa.String),
    _required("name", sa.String),
    _required("secret_sha256", sa.String),
    _required("scopes", sa.String),
    _required("created_at", UtcDateTime),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
    sa.Column("replaced_by", sa.String),
    sa.Column("rate_per_s", sa.Double),
    sa.Column("burst", sa.BigInteger),
    sa.Column("max_open_jobs", sa.BigInteger),
    sa.Column("max_cost", sa.Double),
    sa.Column("embed_metadata", sa.Boolean),
    sa.Column("image_format", sa.String),
    sa.Column("image_quality", sa.Integer),
    sa.Column("endpoints", sa.String),
    sa.Column("callback_hosts", sa.String),
    sa.Column("weight", sa.Double),
    sa.Column("priority", sa.String),
)

ENDPOINTS = _table(
    "endpoints",
    _key("id"),
    sa.Column("checkpoint", sa.String),
    sa.Column("gpus", sa.Double),
    _required("cpus", sa.Double),
    _required("min_workers", sa.Integer),
    _required("max_workers", sa.Integer),
    _required("jobs_per_worker", sa.Integer),
    _required("max_queued", sa.BigInteger),
    _required("max_pixels", sa.BigInteger),
    _required("max_steps", sa.Integer),
    sa.Column("precision", sa.String),
    sa.Column("channels_last", sa.Boolean),
    sa.Column("compiler", sa.String),
    sa.Column("compatibility", sa.String),
    sa.Column("max_cost", sa.Double),
    sa.Column("owner", sa.String),
    sa.Column("checkpoints", sa.JSON(none_as_null=True)),
    sa.Column("resources", sa.JSON(none_as_null=True)),
    sa.Column("labels", sa.JSON(none_as_null=True)),
    sa.Column("idle_timeout_s", sa.Double),
    sa.Column("job_timeout_s", sa.Double),
    sa.Column("queue_timeout_s", sa.Double),
    sa.Column("max_attempts", sa.Integer),
    _required("draining", sa.Boolean),
    sa.Column("ends_at", UtcDateTime),
    sa.Column("engine", sa.String),
    sa.Column("fallback", sa.String),
    sa.Column("comfyui_url", sa.String),
    sa.Column("comfyui_dir", sa.String),
    sa.Column("comfyui_python", sa.String),
    sa.Column("comfyui_args", sa.JSON(none_as_null=True)),
    sa.Column("comfyui_max_jobs", sa.Integer),
    sa.Column("comfyui_max_memory_gib", sa.Double),
    sa.Column("comfyui_required_nodes", sa.JSON(none_as_null=True)),
    sa.Column("comfyui_allowed_nodes", sa.JSON(none_as_null=True)),
    sa.Column("comfyui_denied_nodes", sa.JSON(none_as_null=True)),
    sa.Column("comfyui_partner_nodes", sa.Boolean),
    # These columns describe the row itself.
    _required("revision", sa.BigInteger),
    _required("given", sa.JSON),
    sa.Column("applied", sa.String),
)

OBJECT_INFOS = _table(
    "object_infos",
    _key("endpoint"),
    _required("server", sa.String),
    _required("digest", sa.String),
    _required("content", sa.LargeBinary),
)

USER_FILES = _table(
    "user_files",
    _key("owner"),
    _key("kind"),
    _key("name"),
    _required("content", sa.LargeBinary),
    _required("size_bytes", sa.BigInteger),
    _required("created_at", UtcDateTime),
    _required("changed_at", UtcDateTime),
)

WORKFLOWS = _table(
    "workflows",
    # An empty owner stands for all owners.
    _key("owner"),
    _key("name"),
    _key("version", sa.Integer),
    _required("content", sa.Text),
    _required("size_bytes", sa.BigInteger),
    _required("created_at", UtcDateTime),
    # Whether the name without a version means this version. If no version is marked, it means the
    # newest one.
    _required("is_marked", sa.Boolean),
)

KEY_OPTIONS = _table(
    "key_options",
    _key("key_id"),
    _required("options", sa.Text),
    _required("changed_at", UtcDateTime),
)

# The endpoints that ever had a row in `endpoints`. If such a row is missing now, the endpoint was
# removed. If an endpoint is in neither table, the database may have been lost.
NOTED_ENDPOINTS = _table("noted_endpoints", _key("id"))

LEASES = _table(
    "leases", _key("name"), _required("holder", sa.String), _required("expires_at_s", sa.Double)
)
