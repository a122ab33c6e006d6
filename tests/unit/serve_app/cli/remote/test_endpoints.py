"""`darkroom endpoints` on an edge that listens on a free port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from events.store.records import Scope
from serve_app.cli.main import app
from tests.support.edge import Edge
from tests.unit.serve_app.cli.conftest import Run

Darkroom = Callable[..., Awaitable[Result]]


@pytest.fixture
async def darkroom(edge: Edge, run: Run) -> Darkroom:
    return partial(run, await edge.key("root", scopes=[Scope.ADMIN]), "endpoints")


async def test_an_endpoint_is_made_changed_drained_and_deleted(
    edge: Edge, darkroom: Darkroom
) -> None:
    made = await darkroom("create", "own", "gpus=0.5", "labels={zone: a}", "--owner", "alice")
    assert made.exit_code == 0, made.output
    said = {"gpus": 0.5, "labels": {"zone": "a"}, "owner": "alice", "revision": 1}
    assert said.items() <= json.loads(made.output).items()
    changed = await darkroom("update", "own", "gpus=1", "labels=null", "--revision", "1")
    assert json.loads(changed.output)["gpus"] == 1
    assert "labels" not in json.loads(changed.output)
    assert "takes no more jobs" in (await darkroom("drain", "own")).output
    assert "draining" in (await darkroom("list")).output
    assert "takes jobs again" in (await darkroom("drain", "own", "--undo")).output
    assert json.loads((await darkroom("show", "own")).output)["state"] == "open"
    assert "Those that wait" in (await darkroom("delete", "own", "--drain", "5")).output
    stored = await edge.services.endpoints.stored_one("own")
    assert stored is not None
    assert stored.endpoint.ends_at is not None


async def test_what_is_refused_is_told(darkroom: Darkroom) -> None:
    for words, why, code in (
        (("create", "own", "gpus"), "member=value", 2),
        (("create", "own", "gpus={"), "the value of gpus", 2),
        (("create", "own", "checkpoint=2026-01-01"), "the value of checkpoint", 2),
        (("create", "own", "max_cost=.inf"), "the value of max_cost", 2),
        (("create", "own", "checkpoints=" + "[" * 5000), "the value of checkpoints", 2),
        (("create", "own", "colour=red"), "colour", 3),
        (("update", "unknown", "gpus=1"), "404", 4),
        (("delete", "default"), "409", 3),
    ):
        result = await darkroom(*words)
        assert result.exit_code == code
        assert why in result.output


async def test_an_endpoints_file_that_makes_no_sense_stops_a_start(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: {own: {colour: red}}")
    environment = {"DARKROOM_ENDPOINTS_FILE": str(tmp_path / "endpoints.yaml")}
    result = await asyncio.to_thread(CliRunner(env=environment).invoke, app, ["up"])
    assert result.exit_code == 2
    assert "'own': colour:" in result.output
