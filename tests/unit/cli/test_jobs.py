"""The commands on an edge that listens on a free port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from cli.main import app
from cli.terminal import console, printable
from events.decisions import Quarantine
from events.ids import new_id
from events.store.records import Scope
from events.types import Cancelled, Unknown
from tests.support.edge import Edge, submit
from tests.support.events import History
from tests.support.generate_bodies import CHECKPOINT
from tests.support.uploads import MP4
from tests.unit.cli.conftest import Run

Darkroom = Callable[..., Awaitable[Result]]


@pytest.fixture
async def darkroom(edge: Edge, run: Run) -> Darkroom:
    admin = await edge.key("root", scopes=[Scope.ADMIN])
    bob = await edge.key("bob")

    async def jobs(*words: str, as_admin: bool = True) -> Result:
        return await run(admin if as_admin else bob, "jobs", *words)

    return jobs


async def test_own_jobs_are_listed_and_for_an_administrator_those_of_every_owner(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    waiting, dead = await submit(client), await submit(client)
    await edge.execute(dead, Quarantine("It floods the [red]disk."))
    await edge.project()
    async with await edge.client("bob") as bob:
        own = await submit(bob)
    await edge.project()
    mine = await darkroom(as_admin=False)
    assert (mine.exit_code, mine.stderr) == (0, "")
    assert (own in mine.stdout, waiting in mine.stdout) == (True, False)
    for words in (["--all"], ["resubmit", "x"], ["cancel", "x", "--all"]):
        refused = await darkroom(*words, as_admin=False)
        assert (refused.exit_code, "403 forbidden" in refused.stderr) == (5, True)
    every = (await darkroom("--all")).stdout
    assert waiting in every
    assert "alice" in every
    letters = (await darkroom("--dead-letters")).stdout
    assert "quarantined" in letters
    assert "floods the [red]disk." in letters
    failed = (await darkroom("--owner", "alice", "--state", "failed")).stdout
    for listed in (letters, failed):
        assert (dead in listed, waiting in listed) == (True, False)
    page = (await darkroom("--owner", "alice", "--limit", "1")).stdout
    assert f"--cursor {dead}" in page
    assert waiting in (await darkroom("--all", "--cursor", dead)).stdout


async def test_a_narrow_terminal_cuts_nothing(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await submit(client)
    await edge.execute(dead, Quarantine("It floods the disk."))
    await edge.project()
    monkeypatch.setattr(console, "width", 80)
    table = (await darkroom("--all")).stdout
    assert dead in table
    assert "\u2026" not in table


async def test_a_job_is_shown_and_cancelled(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    job_id = await submit(client)
    shown = await darkroom("show", job_id, "--all")
    assert '"owner": "alice"' in shown.stdout
    assert "404" in (await darkroom("cancel", job_id)).stderr
    result = await darkroom("cancel", job_id, "--all")
    assert (result.exit_code, result.stdout.strip()) == (0, f"{job_id} is cancelled.")
    assert isinstance((await edge.job(job_id)).end, Cancelled)


async def test_a_job_is_quarantined_and_sent_again(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    job_id = await submit(client)
    assert (await darkroom("quarantine", job_id)).exit_code == 2
    result = await darkroom("quarantine", job_id, "--reason", "It floods the disk.")
    assert (result.exit_code, result.stdout.strip()) == (0, f"{job_id} is quarantined.")
    again = await darkroom("resubmit", job_id)
    new_id = again.stdout.strip().removesuffix(".").rpartition(" ")[2]
    assert (await edge.job(new_id)).submitted.retry_of == job_id
    late = await darkroom("cancel", job_id, "--all")
    assert (late.exit_code, "had already ended" in late.stderr) == (1, True)


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    assert printable("a\x1b[31m\x9bb é") == "a�[31m�b é"


async def test_blocked_jobs_are_listed_with_the_reason(edge: Edge, darkroom: Darkroom) -> None:
    unknown = Unknown(original_type="darkroom.job.paused.v1")
    [event] = History().add(new_id(), unknown)
    await edge.services.read_model.apply([event], expected=0)
    printed = (await darkroom("blocked")).stdout
    assert event.job_id in printed
    assert "a later version" in printed
    assert "Jobs in all: 1" in printed
    assert (await darkroom("blocked", as_admin=False)).exit_code == 5


# `watch`, `upload`, `uploads` and `models`.


@pytest.fixture
async def as_alice(edge: Edge, run: Run) -> Darkroom:
    return partial(run, await edge.key("alice"))


async def test_a_job_is_told_until_its_end(
    edge: Edge, client: httpx.AsyncClient, as_alice: Darkroom
) -> None:
    job_id = await submit(client)
    await edge.run(job_id)
    told = await as_alice("watch", job_id)
    assert told.exit_code == 0, told.output
    lines = told.stdout.splitlines()
    kinds = ["submitted", "started", "image_stored", "completed"]
    assert [line.split("  ")[2] for line in lines] == kinds
    assert all(job_id in line for line in lines)
    lines = (await as_alice("watch", job_id, "--json")).stdout.splitlines()
    assert json.loads(lines[-1])["event"] == "completed"
    assert json.loads(lines[0])["data"]["subject"] == job_id


async def test_a_job_that_was_cancelled_ends_it_with_a_failure(
    client: httpx.AsyncClient, as_alice: Darkroom
) -> None:
    job_id = await submit(client)
    cancelled = await as_alice("cancel", job_id, "--json")
    assert json.loads(cancelled.stdout) == {"request_id": job_id, "cancelled": True}
    told = await as_alice("watch", job_id)
    assert (told.exit_code, "cancelled" in told.stdout) == (1, True)


async def test_an_image_is_uploaded_listed_and_removed(as_alice: Darkroom, tmp_path: Path) -> None:
    Image.new("RGB", (8, 16), "red").save(tmp_path / "cat.png")
    stored = await as_alice("upload", str(tmp_path / "cat.png"), "--json")
    assert json.loads(stored.stdout)["uploads"][0]["height"] == 16
    assert "8 x 16" in (await as_alice("uploads", "list")).stdout
    (tmp_path / "clip.mp4").write_bytes(MP4)
    assert "video/mp4" in (await as_alice("upload", str(tmp_path / "clip.mp4"))).stdout
    await as_alice("uploads", "remove", "clip.mp4")
    assert (await as_alice("uploads", "remove", "cat.png")).stdout == "cat.png is removed.\n"
    assert json.loads((await as_alice("uploads", "list", "--json")).stdout) == {"uploads": []}
    assert (await as_alice("upload", str(tmp_path / "none.png"))).exit_code == 2


async def test_models_are_listed_by_kind(as_alice: Darkroom) -> None:
    assert CHECKPOINT in (await as_alice("models")).stdout
    listed = await as_alice("models", "--kind", "loras", "--json")
    assert json.loads(listed.stdout) == {"models": []}


# `endpoints`.


@pytest.fixture
async def endpoints(edge: Edge, run: Run) -> Darkroom:
    return partial(run, await edge.key("root", scopes=[Scope.ADMIN]), "endpoints")


async def test_an_endpoint_is_made_changed_drained_and_deleted(
    edge: Edge, endpoints: Darkroom
) -> None:
    made = await endpoints("create", "own", "gpus=0.5", "labels={zone: a}", "--owner", "alice")
    assert made.exit_code == 0, made.output
    said = {"gpus": 0.5, "labels": {"zone": "a"}, "owner": "alice", "revision": 1}
    assert said.items() <= json.loads(made.output).items()
    words = ("gpus=1", "labels=null", "--revision", "1")
    changed = json.loads((await endpoints("update", "own", *words)).output)
    assert (changed["gpus"], changed.get("labels")) == (1, None)
    assert "accepts no more jobs" in (await endpoints("drain", "own")).output
    assert "draining" in (await endpoints("list")).output
    assert "accepts jobs again" in (await endpoints("drain", "own", "--undo")).output
    assert json.loads((await endpoints("show", "own")).output)["state"] == "open"
    assert "still queued" in (await endpoints("delete", "own", "--drain", "5")).output
    stored = await edge.services.endpoints.stored_one("own")
    assert stored is not None
    assert stored.endpoint.ends_at is not None


async def test_what_is_refused_is_told(endpoints: Darkroom) -> None:
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
        result = await endpoints(*words)
        assert result.exit_code == code
        assert why in result.output


async def test_an_endpoints_file_that_makes_no_sense_stops_a_start(tmp_path: Path) -> None:
    (tmp_path / "endpoints.yaml").write_text("endpoints: {own: {colour: red}}")
    environment = {"DARKROOM_ENDPOINTS_FILE": str(tmp_path / "endpoints.yaml")}
    result = await asyncio.to_thread(CliRunner(env=environment).invoke, app, ["up"])
    assert result.exit_code == 2
    assert "'own': colour:" in result.output
