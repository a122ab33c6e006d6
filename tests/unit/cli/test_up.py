"""The errors of `darkroom up` before it starts a service, and its messages about ComfyUI."""

from __future__ import annotations

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from cli.up import follow_comfyui
from local.embedded import Running
from settings.settings import Settings


@pytest.mark.parametrize(
    ("files", "environment", "why"),
    [
        ((), {}, "has no main.py"),
        (("main.py",), {}, "DARKROOM_COMFYUI_PYTHON"),
        (("main.py",), {"DARKROOM_COMFYUI_PYTHON": "/none"}, "there is no interpreter /none"),
    ],
    ids=["no-install", "no-interpreter", "wrong-interpreter"],
)
async def test_an_install_that_cannot_run_stops_a_start(
    tmp_path: Path, files: tuple[str, ...], environment: dict[str, str], why: str
) -> None:
    install, data = tmp_path / "ComfyUI", tmp_path / "data"
    install.mkdir()
    for name in files:
        (install / name).touch()
    runner = CliRunner(env=environment | {"DARKROOM_DATA_DIR": str(data)})
    result = await asyncio.to_thread(runner.invoke, app, ["up", "--comfyui", str(install)])
    assert result.exit_code == 2
    assert why in result.output
    assert not data.exists()


NO_DEVICE = {"state": "starting", "trouble": "ComfyUI did not start: no device"}
STARTING: dict[str, Any] = {"state": "starting", "trouble": None}
NOT_READY = "ComfyUI is not ready: ComfyUI did not start: no device"
READY = "ComfyUI 0.3 is ready, with 2 node types."


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (
            [
                [],
                [NO_DEVICE],
                [NO_DEVICE],
                [{"state": "ready", "server": {"version": "0.3", "failed_imports": ["a", "b"]}}],
            ],
            [NOT_READY, READY, "Packs that could not be imported: a, b."],
        ),
        (
            [[{"state": "ready", "server": {"version": None, "failed_imports": []}}]],
            ["ComfyUI is ready, with 2 node types."],
        ),
        (
            [
                [NO_DEVICE],
                [NO_DEVICE],
                [STARTING],
                [STARTING],
                [{"state": "ready", "server": {"version": "0.3"}}],
            ],
            [NOT_READY, READY],
        ),
        ([[{"state": "ready", "server": None}]], []),
    ],
    ids=["trouble", "no-version", "no-trouble-any-more", "own-engine"],
)
def test_a_start_tells_why_comfyui_is_not_ready_and_then_what_it_has(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    answers: list[list[dict[str, Any]]],
    told: list[str],
) -> None:
    monkeypatch.setattr("cli.up._COMFYUI_PERIOD_S", 0.01)
    monkeypatch.setattr("cli.up._COMFYUI_PATIENCE_S", 0.0)
    (tmp_path / "admin.key").write_text("dk_key\n")
    left = list(answers)
    keys = set()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.add(self.headers["Authorization"])
            is_status = self.path == "/v1/endpoints/comfyui"
            body = {"workers": left.pop(0)} if is_status else {"Picture": {}, "Video": {}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever).start()
        try:
            settings = Settings.load(data_dir=tmp_path, port=server.server_port)
            running = Running(settings, None, 0, "", tmp_path)
            follow_comfyui(running, Event())
        finally:
            server.shutdown()

    assert capsys.readouterr().out.splitlines() == told
    assert keys == {"Bearer dk_key"}
