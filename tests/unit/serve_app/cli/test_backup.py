"""What `darkroom backup` says where it copies nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli.main import app


def test_a_backup_that_is_there_is_not_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "yesterday").mkdir()
    (tmp_path / "yesterday" / "manifest.json").write_text("{}")
    result = CliRunner().invoke(app, ["backup", str(tmp_path / "yesterday")])
    assert result.exit_code == 1
    assert " ".join(result.stderr.split()).startswith("Nothing was copied: ")
    assert "no whole backup" not in result.stderr
