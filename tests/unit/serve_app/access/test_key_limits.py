"""What a key may ask for: its rate, endpoints and callback hosts, over HTTP."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from events.log import utc_now
from events.store.records import Endpoint, KeyLimits
from events.types import Priority
from serve_app.access.api_keys import mint
from tests.support.edge import ALL_SCOPES, Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body

GENERATE = "/workflow/v1/generate"


@asynccontextmanager
async def limited(edge: Edge, **limits: Any) -> AsyncGenerator[httpx.AsyncClient]:
    chosen = KeyLimits(**limits)
    text, key = mint("alice", "test", ALL_SCOPES, created_at=utc_now(), limits=chosen)
    await edge.services.keys.add(key)
    async with edge.client_with(text) as client:
        yield client


async def submit(client: httpx.AsyncClient, **query: str) -> httpx.Response:
    return await client.post(GENERATE, params=query, json=workflow_body())


@pytest.mark.parametrize(("of_key", "of_settings"), [(None, False), (False, True)])
async def test_a_key_may_leave_out_of_its_images_how_they_were_made(
    tmp_path: Path, log: FailingLog, of_key: bool | None, of_settings: bool
) -> None:
    settings = {"key_embed_metadata": of_settings}
    async with (
        running_edge(tmp_path, log=log, **settings) as edge,
        limited(edge, embed_metadata=of_key) as bare,
        limited(edge, embed_metadata=True) as other,
    ):
        for client, expected in ((bare, True), (other, None)):
            job = await edge.job((await submit(client)).json()["request_id"])
            assert job.submitted.bare is expected


async def test_jobs_have_the_weight_and_the_class_of_their_key(edge: Edge) -> None:
    async with (
        limited(edge, weight=2.5, priority=Priority.HIGH) as heavy,
        limited(edge) as usual,
    ):
        for client, expected in ((heavy, (2.5, Priority.HIGH)), (usual, (None, None))):
            job = await edge.job((await submit(client)).json()["request_id"])
            assert (job.submitted.weight, job.submitted.priority) == expected


class TestRate:
    async def test_one_request_too_many_is_429(self, edge: Edge) -> None:
        async with limited(edge, rate_per_s=0.01, burst=2) as client:
            for path in ("/v1/jobs", "/v1/samplers"):
                assert (await client.get(path)).status_code == 200
            answer = await submit(client)
        assert answer.status_code == 429
        assert answer.json()["error"]["type"] == "rate_exceeded"
        assert 99 <= int(answer.headers["Retry-After"]) <= 100

    async def test_requests_that_are_refused_otherwise_count(self, edge: Edge) -> None:
        async with limited(edge, rate_per_s=0.01, burst=1) as client:
            assert (await client.get("/v1/keys")).status_code == 403
            assert (await client.get("/v1/keys")).status_code == 429

    async def test_a_key_without_a_rate_has_that_of_the_settings(
        self, tmp_path: Path, log: FailingLog
    ) -> None:
        async with running_edge(tmp_path, log=log, key_rate_per_s=0.01, key_burst=3) as edge:
            async with limited(edge) as client:
                statuses = [(await client.get("/v1/jobs")).status_code for _ in range(4)]
            assert statuses == [200, 200, 200, 429]
            async with limited(edge, rate_per_s=0) as client:
                for _ in range(10):
                    assert (await client.get("/v1/jobs")).status_code == 200


class TestEndpoints:
    @pytest.mark.parametrize(
        ("endpoints", "status"),
        [
            (None, 202),
            (("*",), 202),
            (("default",), 202),
            (("fast", "default"), 202),
            (("fast",), 403),
            ((), 403),
        ],
    )
    async def test_a_key_keeps_to_its_list(
        self, edge: Edge, endpoints: tuple[str, ...] | None, status: int
    ) -> None:
        async with limited(edge, endpoints=endpoints) as client:
            answer = await submit(client)
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["type"] == "forbidden"
            assert answer.json()["error"]["extra_info"] == {"parameter": "endpoint"}

    async def test_it_is_not_told_which_others_there_are(self, edge: Edge) -> None:
        await edge.services.endpoints.put(Endpoint(id="there"))
        async with limited(edge, endpoints=("default",)) as client:
            there, nowhere = [await submit(client, endpoint=id) for id in ("there", "nowhere")]
        assert (there.status_code, there.json()) == (403, nowhere.json())

    async def test_a_key_without_a_list_has_that_of_the_settings(
        self, tmp_path: Path, log: FailingLog
    ) -> None:
        async with running_edge(tmp_path, log=log, key_endpoints=("fast",)) as edge:
            async with limited(edge) as client:
                assert (await submit(client)).status_code == 403
            async with limited(edge, endpoints=("*",)) as client:
                assert (await submit(client)).status_code == 202


class TestCallbackHosts:
    @pytest.mark.parametrize(
        ("hosts", "host", "status"),
        [
            (None, "a.example.com", 202),
            (("*",), "a.example.com", 202),
            (("a.example.com",), "a.example.com", 202),
            (("a.example.com",), "A.EXAMPLE.com", 202),
            (("a.example.com",), "a.example.com:8443", 202),
            (("a.example.com",), "b.a.example.com", 403),
            (("*.example.com",), "a.example.com", 202),
            (("*.example.com",), "b.a.example.com", 202),
            (("*.example.com",), "example.com", 403),
            (("*.example.com",), "badexample.com", 403),
            (("*.example.com",), "example.com.evil.test", 403),
            (("other.test", "*.example.com"), "a.example.com", 202),
            (("127.0.0.1",), "127.0.0.1", 202),
            (("127.0.0.1",), "127.0.0.2", 403),
            ((), "a.example.com", 403),
        ],
    )
    async def test_a_key_keeps_to_its_list(
        self, edge: Edge, hosts: tuple[str, ...] | None, host: str, status: int
    ) -> None:
        name = host.partition(":")[0].lower()
        edge.name_server.answers[name] = ("8.8.8.8",)
        async with limited(edge, callback_hosts=hosts) as client:
            answer = await submit(client, callback_url=f"https://{host}/done")
            assert answer.status_code == status
            if status == 403:
                assert answer.json()["error"]["extra_info"] == {"parameter": "callback_url"}
            assert (await submit(client)).status_code == 202

    async def test_a_host_that_is_not_listed_is_not_looked_up(self, edge: Edge) -> None:
        async with limited(edge, callback_hosts=("a.example.com",)) as client:
            answer = await submit(client, callback_url="https://unresolved.example.org/")
        assert answer.status_code == 403

    async def test_a_list_opens_no_address_that_is_not_allowed(self, edge: Edge) -> None:
        async with limited(edge, callback_hosts=("*",)) as client:
            answer = await submit(client, callback_url="http://169.254.169.254/")
        assert answer.status_code == 400

    async def test_a_key_without_a_list_has_that_of_the_settings(
        self, tmp_path: Path, log: FailingLog
    ) -> None:
        async with (
            running_edge(tmp_path, log=log, key_callback_hosts=("A.Example.com",)) as edge,
            limited(edge) as client,
        ):
            edge.name_server.answers["a.example.com"] = ("8.8.8.8",)
            for host, status in (("a.example.com", 202), ("b.example.com", 403)):
                answer = await submit(client, callback_url=f"https://{host}/")
                assert answer.status_code == status
