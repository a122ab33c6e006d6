"""One attempt: what the machine or a neighbour does is not charged to the job, and what the job
holds ends that job at most, never the actor that runs it.
"""

from __future__ import annotations

import asyncio
import errno
import io
import pickle
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from actors.worker.attempt import AttemptLimits
from actors.worker.engine_host import EngineState, EngineTaken, RunRequest
from actors.worker.job_runner import RunOutcome
from actors.worker.plan import Plan, planner
from cli.infotext import user_comment
from engine.activity import ActivityKind
from engine.errors import EngineError, MachineFailed, ModelsUnavailable, OutOfMemory
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.reports import EngineEvent, Errored, Finished
from events.decisions import Cancel
from events.job import Job
from events.types import Cancelled, Completed, Failed, Flavour
from storage.keys import JPEG, WEBP
from tests.support.engine.diffusion_requests import compiled_members
from tests.support.engine.workflows import text_to_image
from tests.support.polling import eventually
from tests.support.runners import LIMITS, RunnersBench
from tests.support.worker import ScriptedEngine, pictures

FULL = OSError(errno.EMFILE, "Too many open files")


@pytest.fixture
async def job_id(bench: RunnersBench) -> str:
    return (await bench.submit()).id


async def failure(bench: RunnersBench, job_id: str) -> str:
    """Why the job failed."""
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
    assert await bench.queue.job_ids() == set()
    return end.message


# What the machine does.


def no_files(_: Job) -> Plan:
    raise FULL


class NoThreads(ScriptedEngine):
    async def check(self) -> EngineState:
        raise RuntimeError("can't start new thread")


class Taken(ScriptedEngine):
    async def run(self, order: RunRequest) -> Any:
        raise EngineTaken("its node has died")
        yield


@pytest.mark.parametrize(
    ("engine", "options", "told"),
    [
        (ScriptedEngine([]), {"plan": no_files}, "The machine failed: [Errno 24] Too many open"),
        (NoThreads([Finished(0)], gated=True), {}, "The machine failed: can't start new thread"),
        (ScriptedEngine([Errored(MachineFailed("No room"))]), {}, "No room"),
        (Taken([]), {}, "its node has died"),
    ],
    ids=["no files", "no threads", "no room for the engine", "the engine was taken away"],
)
async def test_what_the_machine_does_costs_a_job_nothing(
    bench: RunnersBench,
    job_id: str,
    engine: ScriptedEngine,
    options: dict[str, Any],
    told: str,
) -> None:
    for _ in range(4):
        assert await bench.run(engine, **options, max_attempts=1) is RunOutcome.RETRY
    job = await bench.job(job_id)
    assert (job.blamed_attempts, job.bystander_attempts, job.is_suspect) == (0, 4, False)
    assert told in str(job.last_failure)
    assert await bench.run() is RunOutcome.COMPLETED


async def test_a_job_that_is_held_meanwhile_can_be_cancelled(
    bench: RunnersBench, job_id: str
) -> None:
    engine = ScriptedEngine([Errored(MachineFailed("no room"))])
    patient = replace(LIMITS, longest_machine_pause_s=3600)
    run = asyncio.create_task(bench.run(engine, limits=patient))

    async def is_spared() -> bool:
        return (await bench.job(job_id)).bystander_attempts == 1

    await eventually(is_spared)
    await bench.writer.execute(Cancel(), await bench.job(job_id))
    assert await run is RunOutcome.ENDED
    assert isinstance((await bench.job(job_id)).end, Cancelled)


async def test_a_job_that_is_held_meanwhile_kills_no_engine(
    bench: RunnersBench, job_id: str
) -> None:
    engine = ScriptedEngine([Errored(MachineFailed("no room"))])
    hasty = AttemptLimits(silence_s=0.5, longest_machine_pause_s=1.5)
    assert await bench.run(engine, limits=hasty) is RunOutcome.RETRY
    assert engine.kills == 0
    assert (await bench.job(job_id)).bystander_attempts == 1


async def test_memory_that_ran_out_beside_others_is_tried_alone(
    bench: RunnersBench, job_id: str
) -> None:
    full = ScriptedEngine([Errored(OutOfMemory("no room", True))])
    assert await bench.run(full) is RunOutcome.RETRY
    again = ScriptedEngine(pictures(1))
    assert await bench.run(again) is RunOutcome.COMPLETED
    assert again.orders[0].is_exclusive
    assert isinstance((await bench.job(job_id)).end, Completed)


async def test_memory_that_ran_out_alone_fails_the_job(bench: RunnersBench, job_id: str) -> None:
    assert await bench.run(ScriptedEngine([Errored(OutOfMemory())])) is RunOutcome.ENDED
    end = (await bench.job(job_id)).end
    assert end == Failed(message=str(OutOfMemory()), code="out_of_memory")


@pytest.mark.usefixtures("job_id")
async def test_a_neighbours_load_of_two_minutes_is_waited_for(bench: RunnersBench) -> None:
    class Loading(ScriptedEngine):
        """Once it was asked, the load leaves it no time to answer."""

        asked = 0

        async def check(self) -> EngineState:
            self.asked += 1
            self.silent = self.asked > 1
            return await super().check()

    engine = Loading(pictures(1), gated=True)
    engine.state = EngineState(ActivityKind.LOAD, 470.0, jobs=4)
    quick = AttemptLimits(silence_s=0.05, start_s=30, heartbeat_s=0.01)
    run = asyncio.create_task(bench.run(engine, limits=quick))
    await eventually(lambda: engine.asked > 30)
    assert not run.done()
    engine.advance(5)
    assert await run is RunOutcome.COMPLETED
    assert engine.kills == 0


def test_a_neighbour_is_told_of_in_the_error_that_travels() -> None:
    errors: list[EngineError] = [OutOfMemory("no room", True), MachineFailed("no room")]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


# What a job holds.


@pytest.mark.parametrize("extra_pnginfo", ["abc", [1], {"日本": 1}])
async def test_texts_that_no_png_can_hold_end_the_job(
    bench: RunnersBench, tmp_path: Path, extra_pnginfo: Any
) -> None:
    request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": extra_pnginfo}}
    job = await bench.submit(flavour=Flavour.WORKFLOW, request=request)
    plan = planner(ModelsFolder(tmp_path), Limits())
    assert await bench.run(plan=plan) is RunOutcome.ENDED
    assert "extra_data.extra_pnginfo" in await failure(bench, job.id)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("prompt"),
        TypeError("no"),
        RecursionError(),
        OSError(errno.ENAMETOOLONG, "File name too long"),
    ],
)
async def test_a_plan_that_fails_in_any_way_ends_the_job(
    bench: RunnersBench, job_id: str, error: Exception
) -> None:
    def plan(_: Job) -> Plan:
        raise error

    assert await bench.run(plan=plan) is RunOutcome.ENDED
    message = await failure(bench, job_id)
    assert type(error).__name__ in message
    assert "Submit the job again" in message


async def test_a_picture_that_cannot_be_written_ends_the_job(
    bench: RunnersBench, job_id: str
) -> None:
    texts: Any = {"日本": 1}
    assert await bench.run(plan=lambda _: Plan({}, None, texts, Limits())) is RunOutcome.ENDED
    assert "UnicodeEncodeError" in await failure(bench, job_id)


@pytest.mark.usefixtures("job_id")
async def test_a_plan_waits_for_a_models_folder_that_does_not_answer(bench: RunnersBench) -> None:
    silences = [ModelsUnavailable("silent"), ModelsUnavailable("silent")]

    def plan(_: Job) -> Plan:
        if silences:
            raise silences.pop()
        return Plan({}, None, {}, Limits())

    assert await bench.run(plan=plan) is RunOutcome.COMPLETED


@pytest.mark.usefixtures("job_id")
async def test_a_run_that_needs_a_silent_models_folder_is_tried_again_in_the_same_attempt(
    bench: RunnersBench,
) -> None:
    class SilentOnce(ScriptedEngine):
        async def run(self, order: RunRequest) -> AsyncGenerator[EngineEvent]:
            if not self.orders:
                self.orders.append(order)
                yield Errored(ModelsUnavailable("silent"))
                return
            async for event in super().run(order):
                yield event

    engine = SilentOnce(pictures(1))
    assert await bench.run(engine) is RunOutcome.COMPLETED
    assert [order.attempt for order in engine.orders] == [1, 1]


async def test_a_job_whose_events_cannot_be_read_leaves_the_queue(
    bench: RunnersBench, job_id: str
) -> None:
    bench.log.unreadable.add(job_id)
    assert await bench.run() is RunOutcome.ENDED
    assert await bench.queue.job_ids() == set()


async def test_a_job_of_a_later_version_keeps_its_entry(bench: RunnersBench, job_id: str) -> None:
    bench.log.of_later_version.add(job_id)
    assert await bench.run() is RunOutcome.LOST
    assert await bench.queue.job_ids() == {job_id}
    bench.log.of_later_version.clear()
    assert len(await bench.log.read(job_id)) == 1


@pytest.mark.parametrize(
    ("image_format", "media_type", "suffix"),
    [("webp", WEBP, "webp"), ("jpeg", JPEG, "jpg"), (None, None, "png")],
)
async def test_an_image_is_stored_in_the_format_that_its_job_says(
    bench: RunnersBench,
    tmp_path: Path,
    image_format: str | None,
    media_type: str | None,
    suffix: str,
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "example.safetensors").touch()
    models = ModelsFolder(tmp_path / "models")
    request = {"prompt": "a red circle", "seed": 7}
    asked = compiled_members(Catalogue(models), "example.safetensors", **request)
    quality = 80 if image_format else None
    job = await bench.submit(**asked, image_format=image_format, image_quality=quality)
    assert await bench.run(plan=planner(models, Limits())) is RunOutcome.COMPLETED
    [stored] = (await bench.job(job.id)).images
    assert (stored.media_type, stored.key.rpartition("/")[2]) == (media_type, f"0.{suffix}")
    made = Image.open(io.BytesIO(await bench.images.get(stored.key)))
    said = made.info["parameters"] if media_type is None else user_comment(made)
    assert said is not None
    assert said.startswith("a red circle\nSteps: 20")
