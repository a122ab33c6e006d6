"""Which workers a dispatcher takes over: those made from its own endpoint, settings and version."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from actors.scheduler.names import endpoint_prefix, release_of, worker_prefix
from actors.worker.config import WorkerConfig, worker_config
from events.store.records import Endpoint
from settings.settings import Settings

ENDPOINT = Endpoint(id="default")


def config(endpoint: Endpoint = ENDPOINT, **arguments: Any) -> WorkerConfig:
    return worker_config(Settings.load(**arguments), endpoint)


@pytest.mark.parametrize("id", ["default", "fast"])
def test_the_names_are_those_of_the_endpoint(id: str) -> None:
    prefix = worker_prefix(config(Endpoint(id=id)))
    assert prefix.startswith(endpoint_prefix(id))
    assert prefix == worker_prefix(config(Endpoint(id=id)))


@pytest.mark.parametrize(
    ("name", "value", "replaces"),
    [
        ("database_url", "postgresql+asyncpg://db/darkroom", False),
        ("http_replicas", 3, False),
        ("job_timeout_s", 90.0, False),
        ("key_rate_per_s", 2.0, False),
        ("max_body_bytes", 1024, False),
        ("ray_num_gpus", 2, False),
        ("retention_days", 7.0, False),
        ("secret", "another secret of the service", False),
        ("worker_idle_s", 60.0, False),
        ("data_dir", "elsewhere", True),
        ("images_url", "s3://images", True),
        ("log_max_bytes", 1024**3, True),
        ("max_attempts", 5, True),
        ("max_side_px", 2048, True),
        ("model_cache_bytes", 1024**3, True),
        ("models_dir", "other-models", True),
        ("nats_url", "nats://nats:4222", True),
        ("nats_url", "nats://service:another-password@nats:4222", True),
        ("step_timeout_s", 60.0, True),
    ],
)
def test_a_setting_replaces_workers_if_they_are_made_from_it(
    name: str, value: object, *, replaces: bool
) -> None:
    url = {"nats_url": "nats://service:password@nats:4222"}
    before, after = config(**url), config(**(url | {name: value}))
    assert (worker_prefix(after) != worker_prefix(before)) == replaces


MAKE = {"gpus", "cpus", "resources", "labels", "precision", "channels_last", "compiler"}
"""Members of `Endpoint` whose change replaces the workers."""
OTHER_VALUES: dict[str, Any] = {
    "resources": {"disk": 1.0},
    "labels": {"zone": "a"},
    "checkpoints": ("a",),
    "precision": "float16",
    "ends_at": datetime(2026, 3, 1, tzinfo=UTC),
}
"""Values of the members that are neither numbers nor plain texts."""


@pytest.mark.parametrize("member", [each.name for each in fields(Endpoint) if each.name != "id"])
def test_a_member_of_an_endpoint_replaces_its_workers_if_they_are_made_from_it(member: str) -> None:
    """One by one: they are of the same release."""
    change = {member: OTHER_VALUES.get(member, 7)}
    made, before = worker_prefix(config(replace(ENDPOINT, **change))), worker_prefix(config())
    assert (made != before) == (member in MAKE)
    assert release_of(made) == release_of(before)


def test_the_precision_auto_is_that_of_none() -> None:
    assert worker_prefix(config(replace(ENDPOINT, precision="auto"))) == worker_prefix(config())


def test_a_new_version_is_another_release() -> None:
    later = worker_prefix(replace(config(), version="99"))
    assert release_of(later) != release_of(worker_prefix(config()))
