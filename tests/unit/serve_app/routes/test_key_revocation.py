import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from events.memory.log import MemoryLog, MemorySubscription
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import Scope
from serve_app.access.authenticator import Authenticator
from serve_app.refusals import KeyInvalid
from tests.support.api_keys import created
from tests.support.edge import Edge, running_edge
from tests.support.generate_bodies import workflow_body

GENERATE = "/workflow/v1/generate"


class WatchedLog(MemoryLog):
    """Says when somebody waits for a job."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = asyncio.Event()

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[MemorySubscription]:
        async with super().watch(job_id) as subscription:
            self.watched.set()
            yield subscription


class TestRevoke:
    async def test_it_holds_here_at_once_and_the_first_time_stands(
        self, edge: Edge, admin: httpx.AsyncClient
    ) -> None:
        body = await created(admin)
        async with edge.client_with(body["key"]) as alice:
            assert (await alice.get("/v1/jobs")).status_code == 200
            first = await admin.delete(f"/v1/keys/{body['id']}")
            assert (await alice.get("/v1/jobs")).status_code == 401
        assert first.json()["state"] == "revoked"
        again = await admin.delete(f"/v1/keys/{body['id']}")
        assert (again.status_code, again.json()) == (200, first.json())

    async def test_it_holds_on_every_replica_within_ten_seconds(
        self, edge: Edge, admin: httpx.AsyncClient, tmp_path: Path
    ) -> None:
        """Each with a connection and a cache of its own, on one clock."""
        clock_s = 0.0
        body = await created(admin)
        header = f"Bearer {body['key']}"
        settings = edge.services.key_settings
        async with AsyncExitStack() as stack:
            replicas = []
            for _ in range(2):
                database = Database(f"sqlite+aiosqlite:///{tmp_path / 'darkroom.sqlite3'}")
                stack.push_async_callback(database.close)
                replicas.append(
                    Authenticator(ApiKeys(database), ttl_s=settings.cache_s, clock=lambda: clock_s)
                )
            for replica in replicas:
                await replica.authenticate(header)
            await admin.delete(f"/v1/keys/{body['id']}")
            for replica in replicas:  # remembered: nobody was asked
                assert (await replica.authenticate(header)).revoked_at is None
            clock_s = settings.cache_s
            assert clock_s < 10
            for replica in replicas:
                with pytest.raises(KeyInvalid, match="revoked"):
                    await replica.authenticate(header)

    async def test_an_answer_that_waited_asks_again(self, tmp_path: Path) -> None:
        log = WatchedLog()
        async with AsyncExitStack() as stack:
            edge = await stack.enter_async_context(running_edge(tmp_path, log=log))
            admin = await stack.enter_async_context(await edge.client(scopes=[Scope.ADMIN]))
            body = await created(admin)
            alice = await stack.enter_async_context(edge.client_with(body["key"]))
            job_id = (await alice.post(GENERATE, json=workflow_body())).json()["request_id"]
            path = f"/workflow/v1/result?request_id={job_id}&wait=60"
            waiting = asyncio.create_task(alice.get(path))
            await asyncio.wait_for(log.watched.wait(), 10)
            await admin.delete(f"/v1/keys/{body['id']}")
            await edge.run(job_id)
            assert (await asyncio.wait_for(waiting, 10)).status_code == 401
