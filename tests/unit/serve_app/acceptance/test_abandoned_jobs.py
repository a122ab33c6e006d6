from collections.abc import AsyncGenerator

import pytest

from events.decisions import Start, Submit
from events.errors import LogUnavailable
from events.ids import new_id
from events.job import fold
from events.log import JobWriter, utc_now
from events.types import Flavour
from serve_app.acceptance.abandoned_jobs import AbandonedJobs
from tests.support.edge_services import RecordingJobQueue
from tests.support.events import submitted
from tests.support.failing_log import FailingLog

SUBMITTED = submitted(flavour=Flavour.WORKFLOW, request={})


@pytest.fixture
def queue() -> RecordingJobQueue:
    return RecordingJobQueue()


@pytest.fixture
async def abandoned_jobs(
    log: FailingLog, queue: RecordingJobQueue
) -> AsyncGenerator[AbandonedJobs]:
    abandoned_jobs = AbandonedJobs(
        log=log, writer=JobWriter(log), queue=queue, period_s=5, first_pause_s=0.001
    )
    yield abandoned_jobs
    await abandoned_jobs.stop()


async def test_what_is_stored_late_is_cancelled_too(
    log: FailingLog, queue: RecordingJobQueue, abandoned_jobs: AbandonedJobs
) -> None:
    job_id = new_id()
    log.read_error = LogUnavailable()
    abandoned_jobs.cancel(job_id)
    await log.last(job_id)
    log.recover()
    await JobWriter(log).submit(job_id, Submit(SUBMITTED))
    await abandoned_jobs.join()
    assert queue.removed == [("default", 3, job_id)]


async def test_what_runs_already_is_asked_to_stop(
    log: FailingLog, abandoned_jobs: AbandonedJobs
) -> None:
    job_id = new_id()
    writer = JobWriter(log)
    outcome = await writer.submit(job_id, Submit(SUBMITTED))
    assert outcome.job is not None
    start = Start(actor="a", max_attempts=3, max_attempts_total=9, now=utc_now())
    await writer.execute(start, outcome.job)
    abandoned_jobs.cancel(job_id)
    await abandoned_jobs.join()
    job = fold(await log.read(job_id))
    assert job is not None
    assert job.cancel_requested


async def test_what_was_never_stored_is_given_up(log: FailingLog, queue: RecordingJobQueue) -> None:
    abandoned_jobs = AbandonedJobs(
        log=log, writer=JobWriter(log), queue=queue, period_s=0.05, first_pause_s=0.001
    )
    abandoned_jobs.cancel(new_id())
    await abandoned_jobs.join()
    assert queue.removed == []
