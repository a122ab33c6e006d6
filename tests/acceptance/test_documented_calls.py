"""What README and documentation tell a caller to type works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from examples.receiver import Receiver
from examples.service import DARKROOM, ROOT
from tests.support.service import Service

pytestmark = pytest.mark.timeout(1200)

PAGES = (
    "README.md",
    "docs/api.md",
    "docs/callbacks.md",
    "docs/keys.md",
    "docs/metrics.md",
)
NOT_FOR_CALLERS = ("make up", "darkroom up")


def blocks(page: str) -> list[str]:
    found = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in found if not any(each in block for each in NOT_FOR_CALLERS)]


@pytest.fixture
def checkout(service: Service, tmp_path: Path) -> Iterator[Path]:
    """A folder in which the service was started, as the pages have it."""
    (tmp_path / "data").symlink_to(service.data_dir)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "darkroom").symlink_to(DARKROOM)
    Image.new("RGB", (64, 64), "red").save(tmp_path / "cat.jpg")
    yield tmp_path
    service.http.delete("/v1/uploads/cat.jpg")


def adapted(block: str, service: Service, *, callback_url: str, key_id: str) -> str:
    """What a reader puts in place of the examples' own: addresses and ids."""
    block = re.sub(r"^ID=….*\n", "", block, flags=re.MULTILINE)
    block = block.replace("http://127.0.0.1:8000", service.url)
    block = block.replace("https://you.example/task_completed", callback_url)
    return block.replace("<id>", key_id).replace("curl -s", "curl -sS --fail-with-body")


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_tells_to_type_works(
    service: Service, checkout: Path, receiver: Receiver, page: str
) -> None:
    key_id = service.command("keys", "create", "carol").stdout.split("_")[1]
    environment = {**os.environ, **service.environment, "KEY": service.admin_key}
    found = blocks(page)
    assert found
    for block in found:
        script = adapted(block, service, callback_url=receiver.url, key_id=key_id)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=checkout,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        if "ID" not in environment and (ids := re.findall(r'"request_id": ?"(.+?)"', done.stdout)):
            environment["ID"] = ids[0]
            service.ended(ids[0])
    if "callback_url=" in "".join(found):
        assert receiver.bodies.get(timeout=120)
