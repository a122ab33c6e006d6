from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from events.ids import new_id
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    DeliveryEvent,
    Event,
    RedeliveryRequested,
)
from serve_app.assembly import CALLBACK_TESTS_PER_MINUTE
from tests.support.edge import Client, Edge, refusal, running_edge
from tests.support.generate_bodies import diffusion_body

URL = "http://127.0.0.1:9000/hook"
LOCAL = "127.0.0.0/8"
RETRY_AT = datetime(2030, 1, 1, tzinfo=UTC)


async def submit(client: Client, callback_url: str | None = URL) -> str:
    query = {} if callback_url is None else {"callback_url": callback_url}
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body(), params=query)
    assert answer.status_code == 202
    return str(answer.json()["request_id"])


async def ended(edge: Edge, client: Client) -> str:
    job_id = await submit(client)
    await edge.run(job_id)
    return job_id


async def record(edge: Edge, job_id: str, *events: DeliveryEvent) -> None:
    log = edge.services.deliveries
    history = await log.read(job_id)
    for version, data in enumerate(events, len(history) + 1):
        event = Event(
            id=new_id(), job_id=job_id, version=version, time=datetime.now(UTC), data=data
        )
        last = await log.last(job_id)
        await log.append(event, expected=last.position if last else 0)


async def events_of(edge: Edge, job_id: str) -> list[object]:
    return [event.data for event in await edge.services.deliveries.read(job_id)]


def tried(attempt: int, status: int | None, error: str | None = None) -> CallbackAttempted:
    return CallbackAttempted(
        attempt=attempt, status=status, latency_s=0.5, error=error, retry_at=RETRY_AT
    )


class TestTries:
    async def test_each_is_shown_with_time_status_latency_and_error(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await ended(edge, client)
        await record(edge, job_id, tried(1, 503), CallbackWithheld(), tried(2, None, "reset"))
        report = (await client.get(f"/v1/jobs/{job_id}/callbacks")).json()
        times = [datetime.fromisoformat(each.pop("at")) for each in report["tries"]]
        assert times == sorted(times)
        assert datetime.now(UTC) - times[0] < timedelta(minutes=1)
        assert datetime.fromisoformat(report.pop("withheld_since")) >= times[0]
        assert report == {
            "state": "pending",
            "callback_url": URL,
            "tries": [{"status": 503, "latency_s": 0.5}, {"latency_s": 0.5, "error": "reset"}],
            "next_try_at": "2030-01-01T00:00:00Z",
        }

    async def test_tries_before_the_end_say_of_what_they_told(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await submit(client)
        told = {"about": "started", "is_last": True, "retry_at": None}
        started = tried(1, 200).model_copy(update=told)
        image = tried(1, 503).model_copy(update={"about": "image-0"})
        await record(edge, job_id, started, image)
        report = (await client.get(f"/v1/jobs/{job_id}/callbacks")).json()
        assert [each["about"] for each in report["tries"]] == ["started", "image-0"]
        assert (report["state"], report["next_try_at"]) == ("pending", "2030-01-01T00:00:00Z")

    async def test_an_end_says_how_it_ended(self, edge: Edge, client: Client) -> None:
        taken, given_up = await submit(client), await submit(client)
        await record(edge, taken, tried(1, 200), CallbackDelivered(attempt=1))
        await record(edge, given_up, tried(1, 410), CallbackExhausted(attempts=1, message="Gone."))
        for job_id, expected in (
            (taken, ("delivered", None, None)),
            (given_up, ("exhausted", "Gone.", None)),
        ):
            report = (await client.get(f"/v1/jobs/{job_id}/callbacks")).json()
            assert tuple(map(report.get, ("state", "message", "next_try_at"))) == expected

    async def test_a_job_without_a_callback_has_no_tries(self, client: Client) -> None:
        job_id = await submit(client, None)
        report = (await client.get(f"/v1/jobs/{job_id}/callbacks")).json()
        assert report == {"state": "none", "tries": []}


class TestRedelivery:
    async def test_it_is_recorded_and_parked_for_now(self, edge: Edge, client: Client) -> None:
        job_id = await ended(edge, client)
        await record(edge, job_id, tried(1, 200), CallbackDelivered(attempt=1))
        answer = await client.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
        assert answer.status_code == 202
        assert answer.json()["state"] == "pending"
        assert len(answer.json()["tries"]) == 1, "the earlier ones stay in sight"
        assert (await events_of(edge, job_id))[-1] == RedeliveryRequested()
        [(parked, until)] = edge.callback_queue.recorded
        assert parked == job_id
        assert until <= datetime.now(UTC)

    async def test_asked_for_twice_it_is_recorded_once_and_parked_again(
        self, edge: Edge, client: Client
    ) -> None:
        """The first may have died between the two."""
        job_id = await ended(edge, client)
        await record(edge, job_id, tried(1, 410), CallbackExhausted(attempts=1, message="Gone."))
        for _ in range(2):
            await client.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
        assert (await events_of(edge, job_id)).count(RedeliveryRequested()) == 1
        assert len(edge.callback_queue.recorded) == 2

    async def test_the_repair_of_the_queue_looks_for_it_from_then_on(
        self, edge: Edge, client: Client
    ) -> None:
        job_id = await ended(edge, client)
        model = edge.services.read_model
        await model.apply(await edge.services.log.read(job_id), expected=await model.offset())
        await record(edge, job_id, tried(1, 200), CallbackDelivered(attempt=1))
        [job] = await model.unsettled.page(after=0, limit=9)
        await model.unsettled.settle({job: RETRY_AT})
        await client.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
        assert [job.id for job in await model.unsettled.page(after=0, limit=9)] == [job_id]

    async def test_the_number_of_requests_is_limited(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A receiver of the caller's own may be fast, and the events of a job are kept."""
        monkeypatch.setattr("serve_app.assembly._MAX_REDELIVERIES", 2)
        async with (
            running_edge(tmp_path, callback_allow_networks=LOCAL) as edge,
            await edge.client() as client,
        ):
            job_id = await ended(edge, client)
            url = f"/v1/jobs/{job_id}/callbacks/redeliver"
            for _ in range(2):
                await record(edge, job_id, tried(1, 200), CallbackDelivered(attempt=1))
                assert (await client.post(url)).status_code == 202
            assert (await client.post(url)).status_code == 202, "the last one may be parked again"
            await record(edge, job_id, tried(1, 200), CallbackDelivered(attempt=1))
            assert refusal(await client.post(url)) == (429, "too_many_redeliveries")
            assert len(edge.callback_queue.recorded) == 3
            assert (await events_of(edge, job_id)).count(RedeliveryRequested()) == 2

    async def test_a_key_that_may_not_have_the_host_called_cannot_ask_for_it(
        self, edge: Edge, client: Client
    ) -> None:
        """Neither the one that submitted the job, where its list was made shorter meanwhile."""
        job_id = await ended(edge, client)
        key_id = (await edge.job(job_id)).submitted.key_id
        await edge.services.keys.change(key_id, callback_hosts=("a.example",))
        async with edge.client_with(client.headers["Authorization"].split()[1]) as same_key:
            edge.app.state.replica.callers.authenticator.forget(key_id)
            answer = await same_key.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
        assert answer.status_code == 403
        assert answer.json()["error"]["extra_info"] == {"parameter": "callback_url"}
        assert edge.callback_queue.recorded == []

    async def test_there_must_be_something_to_deliver(self, edge: Edge, client: Client) -> None:
        open_job, without_callback = await submit(client), await submit(client, None)
        await edge.run(without_callback)
        for job_id in (open_job, without_callback):
            answer = await client.post(f"/v1/jobs/{job_id}/callbacks/redeliver")
            assert refusal(answer) == (409, "nothing_to_deliver")
            assert await events_of(edge, job_id) == []
        assert edge.callback_queue.recorded == []


class TestSample:
    async def test_an_address_that_is_not_allowed_is_refused(
        self, edge: Edge, client: Client
    ) -> None:
        edge.name_server.answers["inside.test"] = ("127.0.0.1", "10.0.0.1")
        hosts = ("10.0.0.1", "user@127.0.0.1", "inside.test")
        for url in ("ftp://127.0.0.1/", *(f"http://{host}/" for host in hosts)):
            answer = await client.post("/v1/callbacks/test", params={"callback_url": url})
            assert refusal(answer) == (400, "callback_url_not_allowed"), url

    async def test_an_owner_may_send_only_so_many(self, client: Client, bob: Client) -> None:
        async def post(sender: Client) -> httpx.Response:
            query = {"callback_url": "http://10.0.0.1/"}
            return await sender.post("/v1/callbacks/test", params=query)

        allowed = CALLBACK_TESTS_PER_MINUTE
        assert {(await post(client)).status_code for _ in range(allowed)} == {400}
        refused = await post(client)
        assert refused.status_code == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 60
        assert (await post(bob)).status_code == 400
