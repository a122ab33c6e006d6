"""What travels to the processes of a worker holds no secret that they can do without."""

from __future__ import annotations

import pickle
from pathlib import Path

from actors.worker.config import WorkerConfig, worker_config
from events.store.records import Endpoint
from settings.settings import Settings

SECRETS = {
    "secret": "the-secret-of-the-service",
    "database_url": "postgresql+asyncpg://darkroom:database-password@db/darkroom",
    "callback_proxy": "http://user:proxy-password@proxy:3128",
    "nats_url": "nats://service:nats-password@nats:4222",
}


def config() -> WorkerConfig:
    return worker_config(Settings.load(**SECRETS), Endpoint("default"))


def test_job_actors_get_the_event_log_and_no_other_secret() -> None:
    pickled = pickle.dumps(config())
    assert [name for name, value in SECRETS.items() if value.encode() in pickled] == ["nats_url"]


def test_the_engine_gets_no_secret() -> None:
    pickled = pickle.dumps(config().for_engine())
    assert [name for name, value in SECRETS.items() if value.encode() in pickled] == []
    assert pickle.loads(pickled).models_dir == Path("models")


def test_a_secret_is_not_shown() -> None:
    assert "nats-password" not in repr(config())
