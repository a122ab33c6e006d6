import asyncio
import json
import pickle
import subprocess
import sys
import threading
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serve_app.app import build
from serve_app.assembly import build_asgi
from serve_app.replica import Replica
from serve_app.routes.direct_route import DirectRoute
from settings.settings import Settings

FORBIDDEN = ("actors", "diffusers", "ray", "sqlalchemy", "torch", "transformers")


def _settings(folder: Path) -> Settings:
    return Settings.load(
        data_dir=folder, secret="a secret for the tests", nats_url="nats://127.0.0.1:1"
    )


async def test_names_are_resolved_on_threads_of_their_own(tmp_path: Path) -> None:
    """A name server that hangs may not hold up `asyncio.to_thread`, nor the other way round."""
    app = build_asgi(_settings(tmp_path))
    replica: Replica = app.state.replica
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    may_end = threading.Event()
    busy = asyncio.create_task(asyncio.to_thread(may_end.wait))
    try:
        addresses = await asyncio.wait_for(
            replica.submission.acceptance._addresses._resolve_name("127.0.0.1"), 5
        )
    finally:
        may_end.set()
    assert addresses == ["127.0.0.1"]
    await busy


def test_routes_that_are_called_most_are_tried_first(tmp_path: Path) -> None:
    """Each route that is tried before costs every submission."""
    routes = build_asgi(_settings(tmp_path)).router.routes
    direct = [each for each in routes if isinstance(each, DirectRoute)]
    assert direct
    assert routes[: len(direct)] == direct


def test_roles_get_their_settings_where_serve_reads_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then Serve makes a dict of each deployment's configuration, and of the models in it. Who asks
    for the state of the application, as KubeRay does, gets it as JSON.
    """
    monkeypatch.setenv("DARKROOM_SECRET", "x" * 32)
    (roles,) = build({})._bound_deployment.init_args
    dumped = roles._bound_deployment._deployment_config.model_dump()
    assert dumped["deployment_actors"]
    for actor in dumped["deployment_actors"]:
        kwargs = json.loads(json.dumps(actor["init_kwargs"]))
        settings = pickle.loads(b64decode(kwargs["settings"]))
        assert isinstance(settings, Settings)
        assert settings.stores.secret_bytes == b"x" * 32


def test_the_http_api_loads_neither_torch_nor_ray_nor_the_database() -> None:
    modules = "serve_app.api, serve_app.access.api_keys, serve_app.replica"
    code = f"import sys, {modules}; print([m for m in {FORBIDDEN} if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
