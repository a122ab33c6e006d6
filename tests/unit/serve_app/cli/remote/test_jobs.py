"""The commands on an edge that listens on a free port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest
from click.testing import Result

from events.decisions import Quarantine
from events.ids import new_id
from events.store.records import Scope
from events.types import Cancelled, Unknown
from serve_app.cli.terminal import console, printable
from tests.support.edge import Edge
from tests.support.events import History
from tests.support.generate_bodies import diffusion_body
from tests.unit.serve_app.cli.conftest import Run

Darkroom = Callable[..., Awaitable[Result]]


@pytest.fixture
async def darkroom(edge: Edge, run: Run) -> Darkroom:
    admin = await edge.key("root", scopes=[Scope.ADMIN])
    bob = await edge.key("bob")

    async def jobs(*words: str, as_admin: bool = True) -> Result:
        return await run(admin if as_admin else bob, "jobs", *words)

    return jobs


async def submit(client: httpx.AsyncClient) -> str:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    return str(answer.json()["request_id"])


async def test_own_jobs_are_listed(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    alices = await submit(client)
    async with await edge.client("bob") as bob:
        bobs = await submit(bob)
    await edge.project()
    result = await darkroom(as_admin=False)
    assert (result.exit_code, result.stderr) == (0, "")
    assert bobs in result.stdout
    assert "queued" in result.stdout
    assert alices not in result.stdout


async def test_an_administrator_lists_those_of_every_owner(
    edge: Edge, client: httpx.AsyncClient, darkroom: Darkroom
) -> None:
    waiting, dead = await submit(client), await submit(client)
    await edge.execute(dead, Quarantine("It floods the [red]disk."))
    await edge.project()
    every = (await darkroom("--all")).stdout
    assert waiting in every
    assert "alice" in every
    letters = (await darkroom("--dead-letters")).stdout
    assert dead in letters
    assert "quarantined" in letters
    assert "floods the [red]disk." in letters
    assert waiting not in letters
    failed = (await darkroom("--owner", "alice", "--state", "failed")).stdout
    assert dead in failed
    assert waiting not in failed
    page = (await darkroom("--all", "--limit", "1")).stdout
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


async def test_without_the_scope_it_says_so(darkroom: Darkroom) -> None:
    for words in (["--all"], ["resubmit", "x"], ["cancel", "x", "--all"]):
        result = await darkroom(*words, as_admin=False)
        assert result.exit_code == 5
        assert "403 forbidden" in result.stderr


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
    assert (late.exit_code, "had ended" in late.stderr) == (1, True)


def test_nothing_that_a_terminal_obeys_is_printed() -> None:
    assert printable("a\x1b[31m\x9bb é") == "a�[31m�b é"


async def test_blocked_jobs_are_listed_with_the_reason(edge: Edge, darkroom: Darkroom) -> None:
    unknown = Unknown(original_type="darkroom.job.paused.v1")
    [event] = History().add(new_id(), unknown)
    await edge.services.read_model.apply([event], expected=0)
    printed = (await darkroom("blocked")).stdout
    assert event.job_id in printed
    assert "a later version" in printed
    assert "1 in all" in printed
    assert (await darkroom("blocked", as_admin=False)).exit_code == 5
