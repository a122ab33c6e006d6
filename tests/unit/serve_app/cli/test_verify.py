"""What `darkroom verify` prints where it could not look."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app


def test_it_prints_no_list_that_reads_as_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_DATA_DIR", str(tmp_path))
    result = CliRunner().invoke(app, ["verify", "--json"])
    assert (result.exit_code, result.stdout) == (6, "")
    assert "Not everything was checked" in result.stderr
