"""The list of commands: help that comes at once, and errors in an operator's words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app.cli.main import COMMANDS, app, load, main
from serve_app.cli.terminal import console
from settings.version import VERSION

HEAVY = ("fastapi", "httpx", "nats", "pydantic", "ray", "serve_app.local", "sqlalchemy", "torch")


def test_help_loads_no_command() -> None:
    """Such imports are most of what it would take."""
    script = (
        "import sys; from typer.testing import CliRunner; from serve_app.cli.main import app;"
        "result = CliRunner().invoke(app, ['--help']); print(result.output, *sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert "keys" in shown
    assert [name for name in HEAVY if f" {name} " in shown] == []


def test_a_start_says_what_it_waits_for_before_it_loads_what_takes_long() -> None:
    script = (
        "import sys; from serve_app.cli.main import load; load('up'); print('', *sys.modules, '')"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert [each for each in ("fastapi", "nats", "ray", "torch") if f" {each} " in loaded] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_it_says_itself(name: str) -> None:
    assert load(name).help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name]


def test_it_tells_its_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"darkroom {VERSION}\n")


def test_a_wrong_setting_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DARKROOM_PORT", "http")
    monkeypatch.setattr(sys, "argv", ["darkroom", "doctor"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == "DARKROOM_PORT is 'http': a whole number is wanted\n"


class TestDoctor:
    @pytest.fixture(autouse=True)
    def _environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: int) -> None:
        for name in ("DARKROOM_PARITY_DIR", "DARKROOM_SCHEMAS_DIR"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "a.safetensors").touch()
        monkeypatch.setenv("DARKROOM_MODELS_DIR", str(tmp_path / "models"))
        monkeypatch.setenv("DARKROOM_DATA_DIR", str(tmp_path / "data"))
        monkeypatch.setenv("DARKROOM_PORT", str(free_port))
        monkeypatch.setattr(console, "width", 200)

    def test_it_tells_what_looks_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DARKROOM_PROT", "8001")
        result = CliRunner().invoke(app, ["doctor"])
        assert result.exit_code == 1
        assert "DARKROOM_PROT is no setting; did you mean DARKROOM_PORT?" in result.stdout
        assert "Correct its name" in result.stdout

    def test_it_says_so_where_nothing_does(self) -> None:
        result = CliRunner().invoke(app, ["doctor"])
        assert (result.exit_code, result.stderr) == (0, "")
        assert "Nothing looks wrong." in result.stdout


@pytest.mark.parametrize(
    ("line", "offered"), [("darkroom wa", "watch"), ("darkroom jobs ca", "cancel")]
)
def test_a_shell_completes_commands_that_are_not_loaded_yet(line: str, offered: str) -> None:
    words = line.split()
    environment = {
        "_DARKROOM_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner(env=environment).invoke(app, prog_name="darkroom")
    assert result.stdout.split() == [offered]


def test_a_wrong_setting_is_told_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DARKROOM_PORT", "http")
    monkeypatch.setattr(sys, "argv", ["darkroom", "doctor", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    error = json.loads(capsys.readouterr().err)["error"]
    assert (end.value.code, error["exit_code"]) == (2, 2)
    assert "DARKROOM_PORT" in error["message"]
