"""`darkroom verify`, `inspect` and `rebuild` on a real nats-server and a database in a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import JobQueue
from events.bus.streams import job_subject
from events.cloud_events import decode_stored
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.tables import JOBS
from local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.database import database_in
from tests.support.events import LATER, submitted

Command = Callable[..., Awaitable[Result]]


@pytest.fixture
async def job_id(nats_server: NatsServer, tmp_path: Path) -> str:
    """A job that waits; the service's data folder is `tmp_path`."""
    job_id = new_id()
    async with connected(nats_server) as bus, database_in(tmp_path) as database:
        log, model = JetStreamLog(bus), ReadModel(database)
        await JobWriter(log).submit(job_id, Submit(submitted()))
        await JobQueue(bus, lease_s=30).add("default", 3, job_id, deadline=LATER)
        assert await model.apply(await log.read(job_id), expected=0)
    return job_id


@pytest.fixture
def darkroom(tmp_path: Path) -> Command:
    async def run(*words: str) -> Result:
        call = CliRunner(env={"DARKROOM_DATA_DIR": str(tmp_path)}).invoke
        return await asyncio.to_thread(call, app, words)

    return run


VERIFY = ("verify", "--settle-s", "0")


async def test_where_all_agree_it_exits_with_0(job_id: str, darkroom: Command) -> None:
    result = await darkroom(*VERIFY, "--json", "--images")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
    assert (await darkroom(*VERIFY)).stderr == "No disagreement.\n"


async def test_what_disagrees_is_listed_with_exit_code_1(
    job_id: str, darkroom: Command, nats_server: NatsServer, tmp_path: Path
) -> None:
    broken_id = new_id()
    async with connected(nats_server) as bus, database_in(tmp_path) as database:
        await JobQueue(bus, lease_s=30).remove("default", 3, job_id)
        at = await bus.store(job_subject(broken_id), b"no event", timeout_s=5)
        broken = decode_stored(b"no event", job_id=broken_id, position=at)
        assert await ReadModel(database).apply([broken], expected=at - 1)
    result = await darkroom(*VERIFY, "--json")
    found = {each["kind"]: each.get("job_id") for each in json.loads(result.stdout)}
    assert found == {"open_without_entry": job_id, "unreadable_event": broken_id}
    assert result.exit_code == 1
    lines = await darkroom(*VERIFY)
    assert f"open_without_entry  {job_id}  The job has not ended" in lines.stdout
    assert lines.stderr == "1 open_without_entry, 1 unreadable_event\n"


async def test_where_it_cannot_look_it_says_what_there_is_not(
    job_id: str, darkroom: Command, tmp_path: Path
) -> None:
    (tmp_path / "darkroom.sqlite3").rename(tmp_path / "elsewhere")
    result = await darkroom(*VERIFY, "--json")
    assert (result.exit_code, "There is no database" in result.stderr) == (6, True)
    assert not (tmp_path / "darkroom.sqlite3").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "darkroom.sqlite3")
    (tmp_path / "nats" / "port").unlink()
    result = await darkroom(*VERIFY)
    assert (result.exit_code, "There is no event log" in result.stderr) == (6, True)


async def test_the_story_of_a_job_is_told_without_its_prompt(
    job_id: str, darkroom: Command
) -> None:
    shown = await darkroom("inspect", job_id)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "+0.000 s  alice, key k1: submitted a diffusion job to default" in shown.stdout
    assert "state: waiting" in shown.stdout
    assert "red circle" not in shown.stdout
    body = json.loads((await darkroom("inspect", job_id, "--json", "--request")).stdout)
    assert body["request"]["prompt"] == "a red circle"
    assert [step["type"] for step in body["steps"]] == ["darkroom.job.submitted.v1"]
    assert body["now"]["job_queue"] is True
    assert (await darkroom("inspect", new_id())).exit_code == 4
    assert "is not a request id" in (await darkroom("inspect", "x")).stderr


async def test_wrong_rows_are_mended_while_another_rebuild_waits(
    job_id: str, darkroom: Command, tmp_path: Path
) -> None:
    async with database_in(tmp_path) as database:
        model, leases = ReadModel(database), Leases(database)
        before = await model.job(job_id)
        await database.execute(sa.update(JOBS).values(state="{}", owner="mallory"))

        assert await leases.acquire("rebuild", "another", ttl_s=60)
        result = await darkroom("rebuild")
        assert (result.exit_code, "Another rebuild" in result.stderr) == (1, True)
        await leases.release("rebuild", "another")

        result = await darkroom("rebuild")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "1 jobs of the log and 0 histories" in result.stdout
        assert await model.job(job_id) == before
        assert len(await model.jobs("alice")) == 1
        assert await leases.acquire("rebuild", "the next", ttl_s=60)
