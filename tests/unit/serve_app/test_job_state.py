from dataclasses import replace
from typing import Any

import pytest

from events.decisions import Submit
from events.errors import DatabaseUnavailable, JobDamaged, JobOfLaterVersion, LogUnavailable
from events.ids import new_id
from events.types import Flavour, Submitted
from serve_app.job_state import current_job
from serve_app.services import Services
from tests.support.edge import Edge
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


class AwayReadModel:
    """A read model whose database does not answer."""

    async def job(self, job_id: str) -> None:
        raise DatabaseUnavailable


@pytest.fixture
async def job_id(edge: Edge) -> str:
    job_id = new_id()
    await edge.services.writer.submit(job_id, Submit(SUBMITTED))
    return job_id


@pytest.fixture
def without_database(edge: Edge) -> Services:
    away: Any = AwayReadModel()
    return replace(edge.services, read_model=away)


async def test_a_job_is_found_in_the_log_while_the_database_is_away(
    without_database: Services, job_id: str
) -> None:
    job = await current_job(without_database, job_id)
    assert job is not None
    assert job.id == job_id
    assert await current_job(without_database, new_id()) is None


async def test_with_both_away_nobody_knows(
    without_database: Services, job_id: str, log: FailingLog
) -> None:
    log.read_error = LogUnavailable()
    with pytest.raises(LogUnavailable):
        await current_job(without_database, job_id)


async def test_a_job_that_has_ended_is_not_read_from_the_log(
    edge: Edge, job_id: str, log: FailingLog
) -> None:
    await edge.run(job_id)
    await edge.project()
    log.read_error = LogUnavailable()
    job = await current_job(edge.services, job_id)
    assert job is not None
    assert job.end is not None


async def test_a_job_is_shown_as_far_as_it_can_be_read(
    edge: Edge, job_id: str, log: FailingLog
) -> None:
    for unreadable in (log.of_later_version, log.unreadable):
        unreadable.add(job_id)
        job = await current_job(edge.services, job_id)
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
        await current_job(edge.services, later)
    with pytest.raises(JobDamaged):
        await current_job(edge.services, damaged)
