"""Each snippet of the pages for people who come from elsewhere works as it stands.

One that cannot run has a comment before it that says why: `<!-- not run: ... -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from PIL import Image

from examples.service import ROOT
from tests.clients.programs import CHECKPOINT, client_python, run
from tests.support.service import Service

pytestmark = pytest.mark.timeout(1200)

PAGES = sorted([*(ROOT / "docs").glob("coming-from-*.md"), ROOT / "docs" / "comfy-api-v2.md"])
SNIPPET = re.compile(
    r"(?P<not_run>^<!-- not run: .+ -->\n)?^```(?P<language>bash|python)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture
def folder(service: Service, caller: Mapping[str, str], tmp_path: Path) -> Path:
    """The files that the pages expect: a workflow that starts from a photo."""
    Image.new("RGB", (64, 64), "red").save(tmp_path / "photo.png")
    with (tmp_path / "photo.png").open("rb") as photo:
        headers = {"Authorization": f"Bearer {caller['KEY']}"}
        sent = httpx.post(f"{service.url}/v1/uploads", files={"image": photo}, headers=headers)
    assert sent.is_success, sent.text
    graph = json.loads((ROOT / "examples" / "workflow.json").read_text())["prompt"]
    graph["4"]["inputs"]["ckpt_name"] = CHECKPOINT
    graph["10"] = {"class_type": "LoadImage", "inputs": {"image": "photo.png"}}
    graph["11"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["4", 2]}}
    graph["3"]["inputs"] |= {"latent_image": ["11", 0], "denoise": 0.5}
    (tmp_path / "workflow_api.json").write_text(json.dumps(graph))
    return tmp_path


def adapted(snippet: str, url: str) -> str:
    """Return the snippet with the address of this test's service."""
    address = url.removeprefix("http://")
    host, _, port = address.partition(":")
    snippet = snippet.replace("curl -s", "curl -sS --fail-with-body")
    snippet = snippet.replace('host="127.0.0.1", port=8000', f'host="{host}", port={port}')
    return snippet.replace("127.0.0.1:8000", address)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_tells_to_run_works(
    service: Service, caller: Mapping[str, str], folder: Path, page: Path
) -> None:
    found = list(SNIPPET.finditer(page.read_text()))
    to_run = [each for each in found if each["not_run"] is None]
    assert to_run
    for each in to_run:
        text = adapted(each["text"], service.url)
        if each["language"] == "python":
            run(client_python(), "-c", text, cwd=folder, env={**caller, "PYTHONPATH": ""})
        else:
            run("bash", "-euo", "pipefail", "-c", text, cwd=folder, env=caller)
