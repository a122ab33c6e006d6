"""webuiapi as it is in the package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.programs import run

pytestmark = pytest.mark.timeout(1200)


def test_pictures_lists_and_interrupts(caller: dict[str, str], tmp_path: Path) -> None:
    program = Path(__file__).parent / "webui.py"
    assert run("python", program, cwd=tmp_path, env=caller) == "completed\n"
