"""Every exit code: how a script meets it, with and without `--json`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from serve_app.cli.exit_codes import ExitCode, code_of_status
from serve_app.cli.main import COMMANDS, app, load
from tests.support.edge import Edge

DOCUMENT = Path(__file__).parents[4] / "docs" / "command-line.md"
UNREACHABLE = ("jobs", "--key", "dk", "--url", "http://127.0.0.1:9")


async def run(words: Sequence[str], **environment: str) -> Result:
    return await asyncio.to_thread(CliRunner(env=environment).invoke, app, list(words))


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["jobs"], ExitCode.DONE),
        (["jobs", "--limt", "1"], ExitCode.USAGE),
        (["endpoints", "create", "own", "colour=red"], ExitCode.REFUSED),
        (["job", "unknown"], ExitCode.NOT_FOUND),
        (["watch", "unknown"], ExitCode.NOT_FOUND),
        (["jobs", "--key", "dk"], ExitCode.FORBIDDEN),
        (UNREACHABLE, ExitCode.UNAVAILABLE),
    ],
)
@pytest.mark.parametrize("option", [(), ("--json",)])
async def test_a_command_ends_with_its_code(
    edge: Edge, url: str, words: Sequence[str], code: ExitCode, option: Sequence[str]
) -> None:
    key = await edge.key("root", scopes=["admin", "read"])
    result = await run([*words, *option], DARKROOM_URL=url, DARKROOM_API_KEY=key)
    assert result.exit_code == code, result.output
    if option and code:
        error = json.loads(result.stderr)["error"]
        assert (error["exit_code"], result.stdout) == (code, "")
        assert error["message"]
        assert error["type"]
    elif option:
        assert json.loads(result.stdout) == {"jobs": []}


def test_what_is_found_wrong_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_PROT", "8001")
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == ExitCode.FAILED
    answer = json.loads(result.stdout)
    told = [each for each in answer["findings"] if "DARKROOM_PROT" in each["what"]]
    assert [each["level"] for each in told] == ["warning"]
    assert answer["healthy"] is False


def test_a_limit_has_a_code_of_its_own() -> None:
    assert code_of_status(429) == ExitCode.LIMITED


def test_ctrl_c_is_told_as_shells_have_it() -> None:
    assert ExitCode.INTERRUPTED == 130


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
