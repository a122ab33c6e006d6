"""What travels to the processes of a worker holds no secret that they can do without."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.worker.config import configured_endpoints, worker_config
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


def test_without_an_install_there_is_only_the_default_endpoint() -> None:
    endpoints = configured_endpoints(Settings.load(ray_num_gpus=1))
    assert {id: (each.fallback, each.gpus) for id, each in endpoints.items()} == {
        "default": (None, None)
    }


@pytest.mark.parametrize(
    ("settings", "gpus"),
    [
        ({}, (None, None)),
        ({"ray_num_gpus": 0}, (None, None)),
        ({"ray_num_gpus": 1}, (0.5, 0.5)),
        ({"ray_num_gpus": 2}, (None, None)),
        ({"ray_num_gpus": 1, "worker_gpus": 0}, (0, 0.5)),
    ],
)
def test_with_an_install_two_endpoints_share_one_gpu(
    settings: dict[str, Any], gpus: tuple[float | None, float | None]
) -> None:
    given = {"dir": "/srv/ComfyUI", "python": "/opt/python", "args": "--lowvram --fast"}
    install = {f"comfyui_{name}": value for name, value in given.items()}
    default, comfyui = configured_endpoints(Settings.load(**install, **settings)).values()

    assert (default.gpus, comfyui.gpus) == gpus
    assert default.fallback == comfyui.id == "comfyui"
    assert (comfyui.engine, comfyui.min_workers) == ("comfyui", 1)
    assert comfyui.comfyui_dir == given["dir"]
    assert comfyui.comfyui_python == given["python"]
    assert comfyui.comfyui_args == ("--lowvram", "--fast")


def test_an_engine_knows_the_install_of_the_settings() -> None:
    settings = Settings.load(comfyui_dir="/srv/ComfyUI", models_dir="/srv/models")
    config = worker_config(settings, Endpoint("default")).for_engine()
    assert (config.models_dir, config.comfyui_dir) == (Path("/srv/models"), Path("/srv/ComfyUI"))


@pytest.mark.parametrize(
    ("change", "is_replaced"),
    [
        ({"comfyui_max_jobs": 3}, True),
        ({"comfyui_partner_nodes": True}, True),
        ({"comfyui_partner_nodes": False}, False),
        ({"comfyui_max_memory_gib": 3.0}, True),
        ({"comfyui_required_nodes": ("A",)}, True),
        ({"comfyui_allowed_nodes": ("A",)}, False),
        ({"comfyui_denied_nodes": ("A",)}, False),
    ],
)
def test_a_change_of_what_a_server_depends_on_replaces_its_worker(
    change: dict[str, Any], *, is_replaced: bool
) -> None:
    endpoint = Endpoint("comfy", engine="comfyui", comfyui_dir="/srv/ComfyUI")
    digest = worker_config(Settings.load(), endpoint).digest()

    changed = worker_config(Settings.load(), replace(endpoint, **change)).digest()

    assert (changed != digest) is is_replaced
