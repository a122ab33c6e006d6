"""`darkroom verify` and `darkroom inspect` on a real nats-server and a database in a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import JetStreamJobQueue
from events.bus.streams import job_subject
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter
from events.store.read_model import ReadModel
from events.wire.cloud_events import decode_stored
from serve_app.cli.main import app
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.database import database_in
from tests.support.events import submitted

Verify = Callable[..., Awaitable[Result]]


@pytest.fixture
async def job_id(nats_server: NatsServer, tmp_path: Path) -> str:
    """A job that waits; the service's data folder is `tmp_path`."""
    job_id = new_id()
    async with connected(nats_server) as bus, database_in(tmp_path) as database:
        log, model = JetStreamLog(bus), ReadModel(database)
        await JobWriter(log).submit(job_id, Submit(submitted()))
        await JetStreamJobQueue(bus, lease_s=30).add("default", 3, job_id)
        assert await model.apply(await log.read(job_id), expected=0)
    return job_id


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    async def run(*words: str) -> Result:
        call = CliRunner(env={"DARKROOM_DATA_DIR": str(tmp_path)}).invoke
        return await asyncio.to_thread(call, app, ["verify", "--settle-s", "0", *words])

    return run


async def test_where_all_agree_it_exits_with_0(job_id: str, verify: Verify) -> None:
    result = await verify("--json", "--images")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    assert (await verify()).stderr == "No disagreement.\n"


async def test_what_disagrees_is_listed_with_exit_code_1(
    job_id: str, verify: Verify, nats_server: NatsServer, tmp_path: Path
) -> None:
    broken_id = new_id()
    async with connected(nats_server) as bus, database_in(tmp_path) as database:
        await JetStreamJobQueue(bus, lease_s=30).remove("default", 3, job_id)
        at = await bus.store(job_subject(broken_id), b"no event", timeout_s=5)
        broken = decode_stored(b"no event", job_id=broken_id, position=at)
        assert await ReadModel(database).apply([broken], expected=at - 1)
    result = await verify("--json")
    found = {each["kind"]: each.get("job_id") for each in json.loads(result.stdout)}
    assert found == {"open_without_entry": job_id, "unreadable_event": broken_id}
    assert result.exit_code == 1
    lines = await verify()
    assert f"open_without_entry  {job_id}  It has not ended" in lines.stdout
    assert lines.stderr == "1 open_without_entry, 1 unreadable_event\n"


async def test_where_it_cannot_look_it_exits_with_2(
    job_id: str, verify: Verify, nats_server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "darkroom.sqlite3").rename(tmp_path / "elsewhere")
    result = await verify("--json")
    assert (result.exit_code, "There is no database" in result.stderr) == (6, True)
    assert not (tmp_path / "darkroom.sqlite3").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "darkroom.sqlite3")
    (tmp_path / "nats" / "port").unlink()
    result = await verify()
    assert (result.exit_code, "There is no event log" in result.stderr) == (6, True)


async def test_the_story_of_a_job_is_told_without_its_prompt(
    job_id: str, tmp_path: Path, nats_server: NatsServer
) -> None:
    async def inspect(*words: str) -> Result:
        call = CliRunner(env={"DARKROOM_DATA_DIR": str(tmp_path)}).invoke
        return await asyncio.to_thread(call, app, ["inspect", *words])

    shown = await inspect(job_id)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "+0.000 s  alice, key k1: submitted a diffusion job to default" in shown.stdout
    assert "state: waiting" in shown.stdout
    assert "red circle" not in shown.stdout
    body = json.loads((await inspect(job_id, "--json", "--request")).stdout)
    assert body["request"]["prompt"] == "a red circle"
    assert [step["type"] for step in body["steps"]] == ["darkroom.job.submitted.v1"]
    assert body["now"]["job_queue"] is True
    assert (await inspect(new_id())).exit_code == 4
    assert "is no request id" in (await inspect("x")).stderr
