import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

import pytest

from events.callback_address import Resolve
from events.errors import AddressNotAllowed, LogUnavailable
from events.job import Job, fold
from events.log import Appended, Conflict, utc_now
from events.store.records import Scope
from events.types import Cancelled, Event, Flavour
from serve_app.acceptance.abandoned_jobs import AbandonedJobs
from serve_app.acceptance.acceptance import Acceptance, GenerateRequest
from serve_app.access.api_keys import mint
from serve_app.refusals import NameServerUnavailable
from tests.support.edge import Edge
from tests.support.edge_services import Services
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body

_, KEY = mint("alice", "test", Scope, created_at=utc_now())
REQUEST = GenerateRequest(
    flavour=Flavour.WORKFLOW,
    key=KEY,
    endpoint="default",
    callback_url=None,
    callback_events=None,
    alone=False,
    preview=False,
    idempotency_key=None,
    body=b"{}",
    content=workflow_body(),
    traceparent=None,
)
KEYED = replace(REQUEST, idempotency_key="a")
CALLED_BACK = replace(REQUEST, callback_url="https://hooks.example.com/done")


class SlowLog(FailingLog):
    """An append begins, and goes on when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.job_id = ""

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        self.job_id = event.job_id
        self.begun.set()
        await self.may_go_on.wait()
        return await super().append(event, expected=expected)

    async def job(self) -> Job | None:
        return fold(await self.read(self.job_id))


@pytest.fixture
def log() -> SlowLog:
    return SlowLog()


@pytest.fixture
async def abandoned_jobs(edge: Edge) -> AsyncGenerator[AbandonedJobs]:
    services = edge.services
    abandoned_jobs = AbandonedJobs(
        log=services.log,
        writer=services.writer,
        queue=edge.queue,
        period_s=5,
        first_pause_s=0.001,
    )
    yield abandoned_jobs
    await abandoned_jobs.stop()


def acceptance_of(services: Services, abandoned_jobs: AbandonedJobs) -> Acceptance:
    """The acceptance of another replica, with these abandoned_jobs."""
    acceptance = services.replica().submission.acceptance
    acceptance._abandoned_jobs = abandoned_jobs
    return acceptance


@pytest.fixture
async def acceptance(edge: Edge, abandoned_jobs: AbandonedJobs) -> AsyncGenerator[Acceptance]:
    acceptance = acceptance_of(edge.services, abandoned_jobs)
    yield acceptance
    await acceptance.stop()


@pytest.mark.parametrize(
    ("body", "is_quick"), [(b'"KSampler"', True), (b'"ComfyMathExpression"', False)]
)
def test_expressions_are_checked_beside_the_loop(body: bytes, is_quick: bool) -> None:
    assert replace(REQUEST, body=body).is_quick_to_check is is_quick


class TestACallerWhoHangsUp:
    """Serve cancels the task that handles the request."""

    async def hang_up(self, acceptance: Acceptance, log: SlowLog, request: GenerateRequest) -> None:
        """While the append is under way; the append then goes on."""
        caller = asyncio.create_task(acceptance.accept(request))
        await asyncio.wait_for(log.begun.wait(), 5)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        log.may_go_on.set()
        await asyncio.wait_for(acceptance.join(), 5)

    async def test_without_a_key_the_job_is_withdrawn(
        self, acceptance: Acceptance, abandoned_jobs: AbandonedJobs, log: SlowLog, edge: Edge
    ) -> None:
        await self.hang_up(acceptance, log, REQUEST)
        await asyncio.wait_for(abandoned_jobs.join(), 5)
        job = await log.job()
        assert job is not None
        assert isinstance(job.end, Cancelled)
        assert edge.queue.removed == [("default", job.submitted.lane, job.id)]

    async def test_with_a_key_the_job_is_stored_for_the_repeat(
        self, acceptance: Acceptance, abandoned_jobs: AbandonedJobs, log: SlowLog
    ) -> None:
        await self.hang_up(acceptance, log, KEYED)
        await asyncio.wait_for(abandoned_jobs.join(), 5)
        repeated = await acceptance.accept(KEYED)
        assert repeated == await log.job()
        assert repeated.end is None

    async def test_what_was_perhaps_stored_is_withdrawn(
        self, acceptance: Acceptance, abandoned_jobs: AbandonedJobs, log: SlowLog
    ) -> None:
        log.lose_answers()
        await self.hang_up(acceptance, log, REQUEST)
        log.recover()
        await asyncio.wait_for(abandoned_jobs.join(), 5)
        job = await log.job()
        assert job is not None
        assert isinstance(job.end, Cancelled)

    @pytest.mark.parametrize("generate_request", [REQUEST, KEYED])
    async def test_what_was_not_stored_needs_nothing(
        self,
        acceptance: Acceptance,
        abandoned_jobs: AbandonedJobs,
        log: SlowLog,
        generate_request: GenerateRequest,
    ) -> None:
        log.append_error = LogUnavailable()
        await self.hang_up(acceptance, log, generate_request)
        await asyncio.wait_for(abandoned_jobs.join(), 0.5)
        assert await log.job() is None

    async def test_the_end_of_the_service_ends_its_append(
        self, acceptance: Acceptance, log: SlowLog
    ) -> None:
        caller = asyncio.create_task(acceptance.accept(REQUEST))
        await asyncio.wait_for(log.begun.wait(), 5)
        await asyncio.wait_for(acceptance.stop(), 5)
        with pytest.raises(asyncio.CancelledError):
            await caller


@dataclass
class BrokenNameServer:
    error: OSError | None = None
    """None: it hangs."""

    async def resolve(self, host: str) -> Sequence[str]:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        return []


def name_server_says(code: int) -> Resolve:
    return BrokenNameServer(socket.gaierror(code, "said by a test")).resolve


class TestNameServer:
    @pytest.mark.parametrize("code", [socket.EAI_AGAIN, socket.EAI_SYSTEM, socket.EAI_MEMORY])
    async def test_that_it_is_away_is_not_the_callers_fault(
        self, edge: Edge, abandoned_jobs: AbandonedJobs, code: int
    ) -> None:
        services = edge.services.with_resolver(name_server_says(code))
        with pytest.raises(NameServerUnavailable) as refusal:
            await acceptance_of(services, abandoned_jobs).accept(CALLED_BACK)
        assert refusal.value.retry_after_s > 0

    async def test_that_it_hangs_is_not_either(
        self, edge: Edge, abandoned_jobs: AbandonedJobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        services = edge.services.with_resolver(BrokenNameServer().resolve)
        acceptance = acceptance_of(services, abandoned_jobs)
        monkeypatch.setattr(acceptance._addresses, "_timeout_s", 0.01)
        with pytest.raises(NameServerUnavailable):
            await acceptance.accept(CALLED_BACK)

    @pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_NODATA])
    async def test_a_name_that_does_not_exist_is_refused(
        self, edge: Edge, abandoned_jobs: AbandonedJobs, code: int
    ) -> None:
        services = edge.services.with_resolver(name_server_says(code))
        with pytest.raises(AddressNotAllowed, match="does not resolve"):
            await acceptance_of(services, abandoned_jobs).accept(CALLED_BACK)

    async def test_a_job_that_is_known_needs_none(
        self, edge: Edge, abandoned_jobs: AbandonedJobs, log: SlowLog
    ) -> None:
        log.may_go_on.set()
        edge.name_server.answers["hooks.example.com"] = ("8.8.8.8",)
        request = replace(CALLED_BACK, idempotency_key="a")
        first = await acceptance_of(edge.services, abandoned_jobs).accept(request)
        services = edge.services.with_resolver(name_server_says(socket.EAI_AGAIN))
        assert await acceptance_of(services, abandoned_jobs).accept(request) == first
