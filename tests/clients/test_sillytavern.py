"""SillyTavern's own server makes images with Darkroom, as a WebUI and as a ComfyUI.

Its package is installed unchanged. The test calls it as its page does, and it calls Darkroom.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.programs import CHECKPOINT, run
from tests.support.service import Service

HERE = Path(__file__).parent / "sillytavern"
PNG = b"\x89PNG\r\n\x1a\n"
MEMBERS: dict[str, Any] = {
    "prompt": "a large red circle on white",
    "negative_prompt": "blurry",
    "sampler_name": "Euler a",
    "scheduler": "karras",
    "steps": 2,
    "cfg_scale": 7,
    "width": 64,
    "height": 64,
    "restore_faces": False,
    "enable_hr": False,
    "hr_upscaler": "Latent",
    "hr_scale": 1,
    "hr_additional_modules": [],
    "denoising_strength": 0.7,
    "hr_second_pass_steps": 0,
    "override_settings": {
        "CLIP_stop_at_last_layers": 1,
        "forge_additional_modules": ["a.safetensors"],
    },
    "override_settings_restore_afterwards": True,
    "clip_skip": 1,
    "save_images": True,
    "send_images": True,
    "do_not_save_grid": False,
    "do_not_save_samples": False,
}
"""The members that its page sends, with values for a test."""

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Calls its server, as its page does."""
    project = tmp_path_factory.mktemp("sillytavern") / "project"
    shutil.copytree(HERE, project)
    options = ("--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund")
    run("npm", "install", *options, cwd=project)
    with subprocess.Popen(
        ["node", "server.mjs"], cwd=project, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        while not (line := server.stdout.readline()).startswith("port "):
            assert line, "it has ended"
        with httpx.Client(base_url=f"http://127.0.0.1:{line.split()[1]}", timeout=300) as client:
            yield client
        server.terminate()


def answer_of(page: httpx.Client, path: str, **body: Any) -> httpx.Response:
    answer = page.post(f"/api/sd{path}", json=body)
    assert answer.is_success, (path, answer.text)
    return answer


def test_it_makes_a_picture_by_the_webuis_api(
    service: Service, caller: Mapping[str, str], page: httpx.Client
) -> None:
    place = {"url": service.url, "auth": f"me:{caller['KEY']}"}

    def asked(path: str, **body: Any) -> Any:
        answer = answer_of(page, path, **place, **body)
        is_json = answer.headers["content-type"].startswith("application/json")
        return answer.json() if is_json else answer.text

    asked("/ping")
    models = [each["value"] for each in asked("/models")]
    assert CHECKPOINT in models
    for chosen in models:
        asked("/set-model", model=chosen)
        assert asked("/get-model") == chosen
    asked("/set-model", model=CHECKPOINT)
    assert "Euler a" in asked("/samplers")
    assert "karras" in asked("/schedulers")
    assert {"None", "Latent", "Lanczos"} <= set(asked("/upscalers"))
    assert isinstance(asked("/vaes"), list)
    made = asked("/generate", **MEMBERS)
    assert base64.b64decode(made["images"][0]).startswith(PNG)
    assert json.loads(made["info"])["sd_model_name"] == CHECKPOINT
    assert caller["KEY"] not in json.dumps(made)


def test_it_makes_a_picture_by_comfyuis_api(
    service: Service, caller: Mapping[str, str], page: httpx.Client
) -> None:
    place = {"url": f"{service.url}/key/{caller['KEY']}"}
    answer_of(page, "/comfy/ping", **place)
    assert "euler" in answer_of(page, "/comfy/samplers", **place).json()
    assert "karras" in answer_of(page, "/comfy/schedulers", **place).json()
    models = [each["value"] for each in answer_of(page, "/comfy/models", **place).json()]
    assert CHECKPOINT in models
    assert isinstance(answer_of(page, "/comfy/vaes", **place).json(), list)
    graph = json.loads(Path("examples/workflow.json").read_text())["prompt"]
    graph["4"]["inputs"]["ckpt_name"] = CHECKPOINT
    graph["9"]["inputs"]["filename_prefix"] = "SillyTavern"
    made = answer_of(page, "/comfy/generate", **place, prompt=json.dumps({"prompt": graph})).json()
    assert made["format"] == "png"
    assert base64.b64decode(made["data"]).startswith(PNG)
    wrong = page.post("/api/sd/comfy/ping", json={"url": service.url})
    assert wrong.status_code == 500  # it has no key
