"""A job actor: what it makes of the job that its dispatcher hands over, and what it loads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pydantic import SecretStr

from actors.worker.job_actor import JobProcess, RunOutcome
from engine.reports import Finished, Note
from events.decisions import Cancel, Erase, FailAttempt, Start
from events.log import utc_now
from events.types import Cancelled, ComfyUIServer, Completed, Started
from telemetry.spans import TraceIds
from tests.support.polling import eventually
from tests.support.runners import RunnersBench
from tests.support.worker import ScriptedEngine, picture, pictures


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(pictures(1))


def start(actor: str) -> Start:
    return Start(actor, max_attempts=3, max_attempts_total=9, now=utc_now())


async def test_it_is_not_read_again(bench: RunnersBench) -> None:
    job = await bench.submit()
    assert await bench.run(job=job, lease_renew_s=9) is RunOutcome.COMPLETED
    assert (bench.log.reads[job.id], bench.log.looks) == (0, 0)
    assert isinstance((await bench.job(job.id)).end, Completed)
    assert await bench.queue.job_ids() == set()


async def test_its_extra_data_is_passed_to_the_engine(
    bench: RunnersBench, engine: ScriptedEngine
) -> None:
    await bench.submit()
    entry, extra_data = await bench.entry(), SecretStr("{}")
    run = bench.runner(engine).run
    assert await run(entry.job_id, entry.ack_subject, extra_data=extra_data) is RunOutcome.COMPLETED
    assert engine.requests[0].extra_data == extra_data


@pytest.mark.parametrize("command", [Cancel(), Erase()], ids=["cancelled", "erased"])
async def test_what_became_of_it_meanwhile_counts(
    bench: RunnersBench, engine: ScriptedEngine, command: Cancel | Erase
) -> None:
    job = await bench.submit()
    await bench.execute(job, command)
    assert await bench.run(engine, job=job) is RunOutcome.ENDED
    assert engine.requests == []
    assert isinstance((await bench.job(job.id)).end, Cancelled)
    assert await bench.queue.job_ids() == set()


async def test_an_attempt_that_it_did_not_know_of_is_counted(bench: RunnersBench) -> None:
    job = await bench.submit()
    await bench.execute(job, start("other"))
    assert await bench.run(job=job) is RunOutcome.COMPLETED
    assert (await bench.job(job.id)).attempts == 2


@pytest.mark.parametrize("actor", ["other", "a"], ids=["another actor", "the same one before"])
@pytest.mark.parametrize("runs", [True, False])
async def test_one_that_was_started_since_it_was_handed_out_is_left_to_who_did(
    bench: RunnersBench, engine: ScriptedEngine, actor: str, *, runs: bool
) -> None:
    job = await bench.submit()
    started = await bench.execute(job, start(actor))
    if not runs:
        started = await bench.execute(started, FailAttempt(actor, "It broke.", final=False))
    assert await bench.run(engine, job=job, actor="a", after_attempts=0) is RunOutcome.LOST
    assert engine.requests == []
    assert await bench.job(job.id) == started
    assert await bench.queue.job_ids() == {job.id}


@pytest.mark.parametrize("is_traced", [True, False])
async def test_its_events_say_for_its_trace_what_only_that_tells(
    bench: RunnersBench, engine: ScriptedEngine, *, is_traced: bool
) -> None:
    job, given_at = await bench.submit(), utc_now()
    beside = ("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",) if is_traced else ()
    end = Finished(
        1, {"denoise": 0.5}, steps=20, runs_in_shared_calls=beside, notes=(Note.VAE_TILED,)
    )
    engine.script = [picture(), end]
    await bench.run(engine, job=job, is_traced=is_traced, given_at=given_at)
    _, started, _, completed = [event.data for event in await bench.log.read(job.id)]
    assert isinstance(started, Started)
    assert isinstance(completed, Completed)
    assert completed.timing is not None
    assert completed.timing.steps == 20
    assert completed.notes == ("vae_tiled",)
    [request] = engine.requests
    if is_traced:
        assert request.options.span_link == TraceIds.of(job).attempt_link(1)
        assert (started.given_at, completed.beside) == (given_at, beside)
    else:
        assert request.options.span_link == ""
        assert (started.given_at, completed.beside) == (None, None)


@pytest.mark.parametrize("has_comfyui", [True, False])
async def test_an_attempt_names_its_comfyui_server(
    bench: RunnersBench, engine: ScriptedEngine, *, has_comfyui: bool
) -> None:
    job = await bench.submit()
    engine.server = ComfyUIServer(version="0.3.64", packs={"a": "0123456789ab"})

    await bench.run(engine, has_comfyui=has_comfyui)

    started = (await bench.log.read(job.id))[1].data
    expected = engine.server if has_comfyui else None
    assert isinstance(started, Started)
    assert started.comfyui == (await bench.job(job.id)).comfyui == expected


async def test_a_job_actor_takes_one_job_at_a_time_and_none_once_it_has_retired(
    bench: RunnersBench,
) -> None:
    """Two dispatchers may believe that it is theirs."""
    job = await bench.submit()
    entry = await bench.entry()
    engine = ScriptedEngine(pictures(1), gated=True)
    runner = bench.runner(engine)
    run = asyncio.create_task(runner.run(job.id, entry.ack_subject))
    await eventually(lambda: engine.requests)
    assert await runner.state() == (job.id, 1)
    assert await runner.run("another", "2") is RunOutcome.BUSY
    assert not await runner.retire()
    engine.advance(10)
    assert await run is RunOutcome.COMPLETED
    assert await runner.retire()
    assert await runner.run("another", "2") is RunOutcome.BUSY
    assert await runner.state() == (None, 1)


# There are many of them, and they start while jobs wait.
FORBIDDEN = ("diffusers", "fastapi", "httpx", "sqlalchemy", "torch", "transformers")


def test_the_actors_load_neither_torch_nor_the_database() -> None:
    code = (
        "import sys, actors.worker.engine_process, actors.worker.job_actor;"
        f"print([m for m in {FORBIDDEN} if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


async def test_an_actor_that_was_connected_says_its_name_also_without_nats() -> None:
    connected = asyncio.Event()
    actor = JobProcess.__new__(JobProcess)  # without what its constructor starts
    actor._actor = "a"
    actor._was_connected = False
    actor._finding = asyncio.create_task(asyncio.sleep(0))
    bus = SimpleNamespace(wait_connected=connected.wait)
    actor._connections = SimpleNamespace(bus=bus)  # type: ignore[assignment]
    first = asyncio.create_task(actor.ready())
    await asyncio.sleep(0.01)
    assert not first.done()
    connected.set()
    assert await first == "a"
    connected.clear()
    async with asyncio.timeout(5):
        assert await actor.ready() == "a"
