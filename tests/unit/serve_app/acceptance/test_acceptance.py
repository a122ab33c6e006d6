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
async def acceptance(edge: Edge) -> AsyncGenerator[Acceptance]:
    """Acceptance of another replica, which looks for abandoned jobs after a short time."""
    services = edge.services
    acceptance = services.replica().submission.acceptance
    acceptance._abandoned_jobs = AbandonedJobs(
        log=services.log,
        writer=services.writer,
        queue=edge.queue,
        period_s=5,
        first_pause_s=0.001,
    )
    yield acceptance
    await acceptance.stop()
    await acceptance._abandoned_jobs.stop()


@pytest.mark.parametrize(
    ("body", "is_quick"),
    [(b'"KSampler"', True), (b'"ComfyMathExpression"', False), (b'{"subgraphs"', False)],
)
def test_expressions_are_checked_beside_the_loop(body: bytes, is_quick: bool) -> None:
    assert replace(REQUEST, body=body).is_quick_to_check is is_quick


class TestACallerWhoHangsUp:
    """Serve cancels the task that handles the request."""

    async def hang_up(
        self,
        acceptance: Acceptance,
        log: SlowLog,
        request: GenerateRequest,
        *,
        cancels_within_s: float = 5,
    ) -> None:
        """While the append is under way; the append then goes on, and what follows from it."""
        caller = asyncio.create_task(acceptance.accept(request))
        await asyncio.wait_for(log.begun.wait(), 5)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        log.may_go_on.set()
        await asyncio.wait_for(acceptance.join(), 5)
        log.recover()
        await asyncio.wait_for(acceptance._abandoned_jobs.join(), cancels_within_s)

    @pytest.mark.parametrize("is_answered", [True, False])
    async def test_without_a_key_a_job_that_was_perhaps_stored_is_withdrawn(
        self, acceptance: Acceptance, log: SlowLog, edge: Edge, is_answered: bool
    ) -> None:
        if not is_answered:
            log.lose_answers()
        await self.hang_up(acceptance, log, REQUEST)
        job = await log.job()
        assert job is not None
        assert isinstance(job.end, Cancelled)
        assert edge.queue.removed == [("default", job.submitted.lane, job.id)]

    async def test_with_a_key_the_job_is_stored_for_the_repeat(
        self, acceptance: Acceptance, log: SlowLog
    ) -> None:
        await self.hang_up(acceptance, log, KEYED)
        repeated = await acceptance.accept(KEYED)
        assert repeated == await log.job()
        assert repeated.end is None

    @pytest.mark.parametrize("request_", [REQUEST, KEYED], ids=["without a key", "with a key"])
    async def test_what_was_not_stored_needs_nothing(
        self, acceptance: Acceptance, log: SlowLog, request_: GenerateRequest
    ) -> None:
        log.append_error = LogUnavailable()
        await self.hang_up(acceptance, log, request_, cancels_within_s=0.5)
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
    @pytest.mark.parametrize(
        ("code", "refusal"),
        [
            (socket.EAI_AGAIN, NameServerUnavailable),
            (socket.EAI_SYSTEM, NameServerUnavailable),
            (socket.EAI_MEMORY, NameServerUnavailable),
            (socket.EAI_NONAME, AddressNotAllowed),
            (socket.EAI_NODATA, AddressNotAllowed),
        ],
    )
    async def test_that_it_is_away_is_not_the_callers_fault_and_an_unknown_name_is(
        self, edge: Edge, code: int, refusal: type[Exception]
    ) -> None:
        services = edge.services.with_resolver(name_server_says(code))
        with pytest.raises(refusal):
            await services.replica().submission.acceptance.accept(CALLED_BACK)

    async def test_that_it_hangs_is_not_either(
        self, edge: Edge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        services = edge.services.with_resolver(BrokenNameServer().resolve)
        acceptance = services.replica().submission.acceptance
        monkeypatch.setattr(acceptance._addresses, "_timeout_s", 0.01)
        with pytest.raises(NameServerUnavailable):
            await acceptance.accept(CALLED_BACK)

    async def test_a_job_that_is_known_needs_none(self, edge: Edge, log: SlowLog) -> None:
        log.may_go_on.set()
        edge.name_server.answers["hooks.example.com"] = ("8.8.8.8",)
        request = replace(CALLED_BACK, idempotency_key="a")
        first = await edge.services.replica().submission.acceptance.accept(request)
        services = edge.services.with_resolver(name_server_says(socket.EAI_AGAIN))
        assert await services.replica().submission.acceptance.accept(request) == first
