"""Which key goes to which service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from darkroom_client import Darkroom
from typer.testing import CliRunner

from cli import connection
from cli.admin_key import ADMIN_KEY_FILE
from cli.main import app
from cli.terminal import ExitCode

OWN = "dk_of_this_machine"


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that requests were sent with, on a machine whose service has an admin key."""
    (tmp_path / ADMIN_KEY_FILE).write_text(f"{OWN}\n")
    monkeypatch.setenv("DARKROOM_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DARKROOM_PUBLIC_URL", "https://pictures.test")
    keys: list[str] = []

    class Noting(Darkroom):
        def __init__(self, url: str, key: str, **options: Any) -> None:
            super().__init__(url, key, **options)
            keys.append(key)

        def call(self, *_given: Any, **_options: Any) -> Any:
            return {"models": []}

    monkeypatch.setattr(connection, "Darkroom", Noting)
    return keys


@pytest.mark.parametrize(
    "url",
    [
        (),
        ("--url", "https://pictures.test/"),
        *(("--url", f"http://{host}:9000") for host in ("127.0.0.1", "localhost", "[::1]")),
    ],
)
def test_the_key_of_this_machine_is_for_its_own_service(
    sent: list[str], url: tuple[str, ...]
) -> None:
    assert CliRunner().invoke(app, ["models", "--json", *url]).exit_code == ExitCode.DONE
    assert sent == [OWN]


@pytest.mark.parametrize("url", ["https://elsewhere.test", "http://10.0.0.1:8000", "elsewhere"])
def test_it_is_sent_nowhere_else(sent: list[str], url: str) -> None:
    result = CliRunner().invoke(app, ["models", "--url", url])
    assert result.exit_code == ExitCode.FORBIDDEN
    assert sent == []
    assert CliRunner().invoke(app, ["models", "--json", "--url", url, "--key", "dk_given"])
    assert sent == ["dk_given"]
