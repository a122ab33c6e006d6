"""What travels to the processes of a worker holds no secret that they can do without."""

from __future__ import annotations

import pickle
from pathlib import Path

from actors.worker.config import worker_config
from events.store.records import Endpoint
from settings.settings import Settings

SECRETS = {
    "secret": "the-secret-of-the-service",
    "database_url": "postgresql+asyncpg://darkroom:database-password@db/darkroom",
    "callback_proxy": "http://user:proxy-password@proxy:3128",
    "nats_url": "nats://service:nats-password@nats:4222",
}


CONFIG = worker_config(Settings.load(**SECRETS), Endpoint("default"))


def secrets_in(config: object) -> list[str]:
    pickled = pickle.dumps(config)
    return [name for name, value in SECRETS.items() if value.encode() in pickled]


def test_job_actors_get_the_event_log_and_the_engine_no_secret() -> None:
    assert secrets_in(CONFIG) == ["nats_url"]
    assert secrets_in(CONFIG.for_engine()) == []
    assert CONFIG.for_engine().models_dir == Path("models")


def test_a_secret_is_not_shown() -> None:
    assert "nats-password" not in repr(CONFIG)
