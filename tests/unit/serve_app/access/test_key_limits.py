"""What a key may ask for: its rate, endpoints and callback hosts, over HTTP."""

from pathlib import Path

import httpx
import pytest

from events.store.records import Endpoint
from events.types import Priority
from tests.support.edge import Client, Edge, running_edge
from tests.support.failing_log import FailingLog
from tests.support.generate_bodies import workflow_body

GENERATE = "/workflow/v1/generate"


async def submit(client: Client, **query: str) -> httpx.Response:
    return await client.post(GENERATE, params=query, json=workflow_body())


@pytest.mark.parametrize(("of_key", "of_settings"), [(None, False), (False, True)])
async def test_a_key_may_leave_out_of_its_images_how_they_were_made(
    tmp_path: Path, log: FailingLog, of_key: bool | None, of_settings: bool
) -> None:
    settings = {"key_embed_metadata": of_settings}
    async with (
        running_edge(tmp_path, log=log, **settings) as edge,
        await edge.client(embed_metadata=of_key) as bare,
        await edge.client(embed_metadata=True) as other,
    ):
        for client, expected in ((bare, True), (other, None)):
            job = await edge.job((await submit(client)).json()["request_id"])
            assert job.submitted.bare is expected


async def test_jobs_have_the_weight_and_the_class_of_their_key(edge: Edge) -> None:
    async with (
        await edge.client(weight=2.5, priority=Priority.HIGH) as heavy,
        await edge.client() as usual,
    ):
        for client, expected in ((heavy, (2.5, Priority.HIGH)), (usual, (None, None))):
            job = await edge.job((await submit(client)).json()["request_id"])
            assert (job.submitted.weight, job.submitted.priority) == expected


async def test_requests_that_are_refused_otherwise_count_for_the_rate(edge: Edge) -> None:
    async with await edge.client(rate_per_s=0.01, burst=1) as client:
        assert (await client.get("/v1/keys")).status_code == 403
        assert (await client.get("/v1/keys")).status_code == 429


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
        async with await edge.client(endpoints=endpoints) as client:
            assert (await submit(client)).status_code == status

    async def test_it_is_not_told_which_others_there_are(self, edge: Edge) -> None:
        await edge.services.endpoints.put(Endpoint(id="there"))
        async with await edge.client(endpoints=("default",)) as client:
            there, nowhere = [await submit(client, endpoint=id) for id in ("there", "nowhere")]
        assert (there.status_code, there.json()) == (403, nowhere.json())


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
        if status == 202:  # what is not listed is not looked up
            edge.name_server.answers[host.partition(":")[0].lower()] = ("8.8.8.8",)
        async with await edge.client(callback_hosts=hosts) as client:
            answer = await submit(client, callback_url=f"https://{host}/done")
            assert answer.status_code == status
            assert (await submit(client)).status_code == 202

    async def test_a_list_opens_no_address_that_is_not_allowed(self, edge: Edge) -> None:
        async with await edge.client(callback_hosts=("*",)) as client:
            answer = await submit(client, callback_url="http://169.254.169.254/")
        assert answer.status_code == 400

    @pytest.mark.edge(key_callback_hosts=("A.Example.com",))
    async def test_a_key_without_a_list_has_that_of_the_settings(
        self, edge: Edge, client: Client
    ) -> None:
        edge.name_server.answers["a.example.com"] = ("8.8.8.8",)
        for host, status in (("a.example.com", 202), ("b.example.com", 403)):
            assert (await submit(client, callback_url=f"https://{host}/")).status_code == status
