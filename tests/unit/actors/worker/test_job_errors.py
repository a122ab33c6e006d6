"""What one job holds ends at most that job, never the actor that runs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from actors.worker.engine_host import Order
from actors.worker.job import JobRunner, RunOutcome
from actors.worker.plan import Plan, planner
from engine.errors import ModelsUnavailable
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.reports import EngineEvent, Errored
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.memory.queues import MemoryJobQueue
from events.types import Failed, Flavour
from events.wire.progress import JobProgress
from storage.images import ImageStore
from tests.support.engine.workflows import text_to_image
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.worker import LANE, QUICK, ScriptedEngine, pictures


class Bench:
    """A job runner with the plans of the service, over a log and a queue in memory."""

    def __init__(
        self, folder: Path, plan: Any = None, engine: ScriptedEngine | None = None
    ) -> None:
        self.log = FailingLog()
        self.writer = JobWriter(self.log)
        self.queue = MemoryJobQueue()
        self.runner = JobRunner(
            actor="a",
            log=self.log,
            images=ImageStore(folder.as_uri()),
            engine=engine or ScriptedEngine(pictures(1)),
            plan=plan or planner(Catalogue(ModelsFolder(folder)), Limits(), None),
            report_progress=self._report,
            limits=QUICK,
            lease_renew_s=10,
            max_attempts=3,
            max_attempts_total=5,
            now=utc_now,
        )

    async def _report(self, job_id: str, progress: JobProgress) -> None:
        pass

    async def run(self, *, is_readable: bool = True, **changes: Any) -> tuple[RunOutcome, str]:
        """How the run of a job ended, and the message of its end."""
        job_id = new_id()
        await self.writer.submit(job_id, Submit(submitted(lane=LANE, **changes)))
        await self.queue.add("default", LANE, job_id)
        if not is_readable:
            self.log.unreadable.add(job_id)
        async with self.queue.reader("default", LANE) as lane:
            [entry] = await lane.next(most=1, timeout_s=5)
            outcome = await self.runner.run(entry)
        assert await self.queue.job_ids() == set()
        self.log.unreadable.clear()
        job = await self.writer.load(job_id)
        assert job is not None
        return outcome, job.end.message if isinstance(job.end, Failed) else ""


def workflow(extra_pnginfo: Any) -> dict[str, Any]:
    extra_data = {"extra_pnginfo": extra_pnginfo}
    return {
        "flavour": Flavour.WORKFLOW,
        "request": {"prompt": text_to_image(), "extra_data": extra_data},
    }


@pytest.mark.parametrize("extra_pnginfo", ["abc", [1], {"日本": 1}])
async def test_texts_that_no_png_can_hold_end_the_job(tmp_path: Path, extra_pnginfo: Any) -> None:
    outcome, message = await Bench(tmp_path).run(**workflow(extra_pnginfo))
    assert outcome is RunOutcome.ENDED
    assert "extra_data.extra_pnginfo" in message


@pytest.mark.parametrize("error", [KeyError("prompt"), TypeError("no"), RecursionError()])
async def test_a_plan_that_fails_in_any_way_ends_the_job(tmp_path: Path, error: Exception) -> None:
    def plan(_job: object) -> None:
        raise error

    outcome, message = await Bench(tmp_path, plan).run()
    assert outcome is RunOutcome.ENDED
    assert type(error).__name__ in message
    assert "Submit it again" in message


async def test_a_plan_waits_for_a_models_folder_that_does_not_answer(tmp_path: Path) -> None:
    silences = [ModelsUnavailable("silent"), ModelsUnavailable("silent")]

    def plan(_job: object) -> Plan:
        if silences:
            raise silences.pop()
        return Plan({}, None, {})

    assert await Bench(tmp_path, plan).run() == (RunOutcome.COMPLETED, "")


async def test_a_run_that_needs_a_silent_models_folder_is_tried_again_in_the_same_attempt(
    tmp_path: Path,
) -> None:
    class SilentOnce(ScriptedEngine):
        async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
            if not self.orders:
                self.orders.append(order)
                yield Errored(ModelsUnavailable("silent"))
                return
            async for event in super().run(order):
                yield event

    engine = SilentOnce(pictures(1))
    bench = Bench(tmp_path, lambda _: Plan({}, None, {}), engine)
    assert await bench.run() == (RunOutcome.COMPLETED, "")
    assert [order.attempt for order in engine.orders] == [1, 1]


async def test_a_job_whose_events_cannot_be_read_leaves_the_queue(tmp_path: Path) -> None:
    outcome, _ = await Bench(tmp_path).run(is_readable=False)
    assert outcome is RunOutcome.ENDED


async def test_a_job_of_a_later_version_keeps_its_entry(tmp_path: Path) -> None:
    bench, job_id = Bench(tmp_path), new_id()
    await bench.writer.submit(job_id, Submit(submitted(lane=LANE)))
    await bench.queue.add("default", LANE, job_id)
    bench.log.of_later_version.add(job_id)
    async with bench.queue.reader("default", LANE) as lane:
        [entry] = await lane.next(most=1, timeout_s=5)
        assert await bench.runner.run(entry) is RunOutcome.LOST
    assert await bench.queue.job_ids() == {job_id}
    bench.log.of_later_version.clear()
    assert len(await bench.log.read(job_id)) == 1


async def test_a_picture_that_cannot_be_written_ends_the_job(tmp_path: Path) -> None:
    def plan(_job: object) -> Any:
        return Plan({}, None, {"日本": 1})

    outcome, message = await Bench(tmp_path, plan).run()
    assert outcome is RunOutcome.ENDED
    assert "UnicodeEncodeError" in message
