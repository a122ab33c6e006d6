from typing import Any

import pytest

from events.decisions import Submit
from events.errors import DatabaseUnavailable, JobDamaged, JobOfLaterVersion, LogUnavailable
from events.ids import new_id
from events.types import Flavour
from serve_app.jobs import Jobs
from tests.support.edge import Edge
from tests.support.events import submitted
from tests.support.failing_log import FailingLog

SUBMITTED = submitted(flavour=Flavour.WORKFLOW, request={})


class AwayReadModel:
    """A read model whose database does not answer."""

    async def job(self, job_id: str, *, with_request: bool = True) -> None:
        raise DatabaseUnavailable


@pytest.fixture
async def job_id(edge: Edge) -> str:
    job_id = new_id()
    await edge.services.writer.submit(job_id, Submit(SUBMITTED))
    return job_id


@pytest.fixture
def without_database(edge: Edge) -> Jobs:
    away: Any = AwayReadModel()
    services = edge.services
    return Jobs(
        log=services.log,
        writer=services.writer,
        queue=edge.queue,
        read_model=away,
        removal=services.removal,
    )


async def test_a_job_is_found_in_the_log_while_the_database_is_away_and_with_both_away_nobody_knows(
    without_database: Jobs, job_id: str, log: FailingLog
) -> None:
    job = await without_database.current(job_id)
    assert job is not None
    assert job.id == job_id
    assert await without_database.current(new_id()) is None
    log.read_error = LogUnavailable()
    with pytest.raises(LogUnavailable):
        await without_database.current(job_id)


async def test_a_job_that_has_ended_is_not_read_from_the_log(
    edge: Edge, job_id: str, log: FailingLog
) -> None:
    await edge.run(job_id)
    await edge.project()
    log.read_error = LogUnavailable()
    job = await edge.app.state.replica.job_access.jobs.current(job_id)
    assert job is not None
    assert job.end is not None


async def test_of_an_open_job_the_log_is_read_only_where_its_row_is_behind(
    edge: Edge, job_id: str, log: FailingLog
) -> None:
    await edge.start(job_id)
    await edge.project()
    log.reads.clear()
    projected = await edge.app.state.replica.job_access.jobs.current(job_id)
    assert projected is not None
    assert (projected.attempts, log.reads[job_id]) == (1, 0)
    assert projected.submitted == SUBMITTED
    await edge.complete(job_id)
    ended = await edge.app.state.replica.job_access.jobs.current(job_id)
    assert ended is not None
    assert ended.end is not None


async def test_the_request_is_left_out_where_it_is_not_needed(edge: Edge) -> None:
    job_id = new_id()
    asked = SUBMITTED.model_copy(update={"request": {"prompt": {}}})
    await edge.services.writer.submit(job_id, Submit(asked))
    await edge.project()
    job = await edge.app.state.replica.job_access.jobs.current(job_id, with_request=False)
    assert job is not None
    assert job.submitted == SUBMITTED


async def test_a_job_is_shown_as_far_as_it_can_be_read(
    edge: Edge, job_id: str, log: FailingLog
) -> None:
    for unreadable in (log.of_later_version, log.unreadable):
        unreadable.add(job_id)
        job = await edge.app.state.replica.job_access.jobs.current(job_id)
        assert job is not None
        assert (job.version, job.end) == (1, None)
        unreadable.clear()


async def test_a_job_of_which_nothing_can_be_read_is_not_taken_for_an_unknown_one(
    edge: Edge, log: FailingLog
) -> None:
    later, damaged = new_id(), new_id()
    log.of_later_version.add(later)
    log.unreadable.add(damaged)
    with pytest.raises(JobOfLaterVersion):
        await edge.app.state.replica.job_access.jobs.current(later)
    with pytest.raises(JobDamaged):
        await edge.app.state.replica.job_access.jobs.current(damaged)
