from collections.abc import AsyncGenerator

import pytest

from events.decisions import Start, Submit
from events.errors import LogUnavailable
from events.ids import new_id
from events.job import fold
from events.log import JobWriter, utc_now
from events.types import Cancelled, Flavour, Submitted
from serve_app.acceptance.withdrawals import Withdrawals
from tests.support.edge_services import RecordingJobQueue
from tests.support.failing_log import FailingLog

SUBMITTED = Submitted(
    flavour=Flavour.WORKFLOW,
    owner="alice",
    key_id="key",
    endpoint="default",
    lane=3,
    request={},
    fingerprint="x",
)


@pytest.fixture
def queue() -> RecordingJobQueue:
    return RecordingJobQueue()


@pytest.fixture
async def withdrawals(log: FailingLog, queue: RecordingJobQueue) -> AsyncGenerator[Withdrawals]:
    withdrawals = Withdrawals(
        log=log, writer=JobWriter(log), queue=queue, period_s=5, first_pause_s=0.001
    )
    yield withdrawals
    await withdrawals.stop()


async def test_what_was_stored_is_cancelled(
    log: FailingLog, queue: RecordingJobQueue, withdrawals: Withdrawals
) -> None:
    job_id = new_id()
    await JobWriter(log).submit(job_id, Submit(SUBMITTED))
    withdrawals.schedule(job_id)
    await withdrawals.join()
    job = fold(await log.read(job_id))
    assert job is not None
    assert isinstance(job.end, Cancelled)
    assert queue.removed == [("default", 3, job_id)]


async def test_what_is_stored_late_is_cancelled_too(
    log: FailingLog, queue: RecordingJobQueue, withdrawals: Withdrawals
) -> None:
    job_id = new_id()
    log.read_error = LogUnavailable()
    withdrawals.schedule(job_id)
    await log.last(job_id)
    log.recover()
    await JobWriter(log).submit(job_id, Submit(SUBMITTED))
    await withdrawals.join()
    assert queue.removed == [("default", 3, job_id)]


async def test_what_runs_already_is_asked_to_stop(
    log: FailingLog, withdrawals: Withdrawals
) -> None:
    job_id = new_id()
    writer = JobWriter(log)
    outcome = await writer.submit(job_id, Submit(SUBMITTED))
    assert outcome.job is not None
    await writer.execute(
        Start(actor="a", max_attempts=3, max_attempts_total=9, now=utc_now()), outcome.job
    )
    withdrawals.schedule(job_id)
    await withdrawals.join()
    job = fold(await log.read(job_id))
    assert job is not None
    assert job.cancel_requested


async def test_what_was_never_stored_is_given_up(log: FailingLog, queue: RecordingJobQueue) -> None:
    withdrawals = Withdrawals(
        log=log, writer=JobWriter(log), queue=queue, period_s=0.05, first_pause_s=0.001
    )
    withdrawals.schedule(new_id())
    await withdrawals.join()
    assert queue.removed == []
