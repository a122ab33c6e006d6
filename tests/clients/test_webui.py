"""webuiapi as it is in the package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.programs import client_python, run

pytestmark = pytest.mark.timeout(1200)


def test_pictures_lists_and_interrupts(caller: dict[str, str], tmp_path: Path) -> None:
    program = Path(__file__).parent / "webui.py"
    printed = run(client_python(), program, cwd=tmp_path, env=caller)
    assert printed.splitlines()[-1] == "completed"  # the client says by itself what it does
