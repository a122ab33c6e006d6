"""The list of commands, their exit codes, and errors in an operator's words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import COMMANDS, app, load, main
from cli.terminal import ExitCode, console, stderr, use_json, write_error
from events.store.records import Scope
from tests.support.edge import Edge
from tests.unit.cli.conftest import Run

HEAVY = ("fastapi", "httpx", "nats", "pydantic", "ray", "local", "sqlalchemy", "torch")


def printed_by(script: str) -> str:
    words = [sys.executable, "-c", f"import sys; {script}; print('', *sys.modules, '')"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_help_loads_no_command() -> None:
    """Such imports are most of what it would take."""
    shown = printed_by(
        "from typer.testing import CliRunner; from cli.main import app;"
        "print(CliRunner().invoke(app, ['--help']).output)"
    )
    assert "keys" in shown
    assert [name for name in HEAVY if f" {name} " in shown] == []


def test_a_start_says_what_it_waits_for_before_it_loads_what_takes_long() -> None:
    loaded = printed_by("from cli.main import load; load('up')")
    assert [each for each in ("fastapi", "nats", "ray", "torch") if f" {each} " in loaded] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_it_says_itself(name: str) -> None:
    assert load(name).help.split("\n\n")[0].replace("\n", " ") == COMMANDS[name]


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_wrong_setting_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    monkeypatch.setenv("DARKROOM_PORT", "http")
    monkeypatch.setattr(sys, "argv", ["darkroom", "doctor", *option])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    told, why = capsys.readouterr().err, "DARKROOM_PORT is 'http': a whole number is required"
    if option:
        error = json.loads(told)["error"]
        assert (error["exit_code"], why in error["message"]) == (2, True)
    else:
        assert told == f"{why}\n"


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
        result = CliRunner().invoke(app, ["doctor"])
        assert (result.exit_code, result.stderr) == (0, "")
        assert "No problems found." in result.stdout
        monkeypatch.setenv("DARKROOM_PROT", "8001")
        result = CliRunner().invoke(app, ["doctor"])
        assert result.exit_code == 1
        assert "DARKROOM_PROT is not a setting; did you mean DARKROOM_PORT?" in result.stdout
        assert "Correct the name of the variable" in result.stdout
        result = CliRunner().invoke(app, ["doctor", "--json"])
        assert result.exit_code == ExitCode.FAILED
        answer = json.loads(result.stdout)
        [told] = [each for each in answer["findings"] if "DARKROOM_PROT" in each["what"]]
        assert (told["level"], answer["healthy"]) == ("warning", False)


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


def test_an_error_is_one_line_however_narrow_the_terminal_is() -> None:
    message = "There is no event log at this place. " * 10
    use_json(False)
    with stderr.capture() as written:
        write_error(message, code=ExitCode.FAILED)
    assert written.get() == message + "\n"


def test_a_verify_that_cannot_look_prints_no_list_that_reads_as_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DARKROOM_DATA_DIR", str(tmp_path))
    result = CliRunner().invoke(app, ["verify", "--json"])
    assert (result.exit_code, result.stdout) == (6, "")
    assert "Not everything was checked" in result.stderr


# Exit codes, with and without `--json`.


DOCUMENT = Path(__file__).parents[3] / "docs" / "command-line.md"


async def test_a_command_ends_with_its_code(edge: Edge, run: Run) -> None:
    key = await edge.key("root", scopes=[Scope.ADMIN, Scope.READ])
    for words, code in (
        ("jobs", ExitCode.DONE),
        ("jobs --limt 1", ExitCode.USAGE),
        ("endpoints create own colour=red", ExitCode.REFUSED),
        ("job unknown", ExitCode.NOT_FOUND),
        ("watch unknown", ExitCode.NOT_FOUND),
        ("jobs --key dk", ExitCode.FORBIDDEN),
        ("jobs --key dk --url http://127.0.0.1:9", ExitCode.UNAVAILABLE),
    ):
        assert (await run(key, *words.split())).exit_code == code, words
        result = await run(key, *words.split(), "--json")
        assert result.exit_code == code, words
        if code is ExitCode.DONE:
            assert json.loads(result.stdout) == {"jobs": []}
            continue
        error = json.loads(result.stderr)["error"]
        assert (error["exit_code"], result.stdout) == (code, "")
        assert error["message"]
        assert error["type"]


def test_the_table_in_the_document_has_every_code() -> None:
    listed = re.findall(r"^\| `(\d+)` \| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert listed == [(str(int(code)), code.name.lower()) for code in ExitCode]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_json(name: str) -> None:
    def takes(command: object) -> bool:
        below = getattr(command, "commands", {}).values()
        has = any("--json" in each.opts for each in getattr(command, "params", ()))
        return has and all(takes(each) for each in below)

    assert takes(load(name))
