"""`image_put_urls`: what is taken, where it is kept, and what a result says of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from events.delivery import (
    EndWithoutCallback,
    GiveUpBeforeEnd,
    GiveUpDelivery,
    RecordAttempt,
    RecordAttemptBeforeEnd,
    SendResult,
)
from events.errors import HistoryBroken
from events.history import HistoryObjects
from events.log import DeliveryWriter, utc_now
from storage.service_secret import unsealed
from tests.support.edge import Client, Edge
from tests.support.edge_services import SECRET
from tests.support.generate_bodies import diffusion_body, workflow_body

URL = "https://bucket.example.com/{}.png?X-Amz-Signature=s3cret"
ROUTES = {"/diffusion/v1/generate": diffusion_body, "/workflow/v1/generate": workflow_body}
DIFFUSION = "/diffusion/v1/generate"
TAKEN = SendResult(latency_s=0.1, status=200)


def urls(count: int) -> list[str]:
    return [URL.format(at) for at in range(count)]


@pytest.fixture(autouse=True)
def names(edge: Edge) -> None:
    edge.name_server.answers = {
        "bucket.example.com": ("93.184.215.14",),
        "other.example.com": ("93.184.215.14",),
        "inside.example.com": ("10.0.0.1",),
    }


async def submit(client: Client, path: str = DIFFUSION, **more: Any) -> httpx.Response:
    return await client.post(path, json=ROUTES[path]() | more)


@pytest.mark.parametrize("path", ROUTES)
async def test_addresses_are_kept_sealed_and_shown_nowhere(
    edge: Edge, client: Client, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await submit(client, path, image_put_urls=urls(1))
    job_id = answer.json()["request_id"]
    submitted = await edge.submitted(answer)
    assert [unsealed(SECRET, each) for each in submitted.image_puts or ()] == urls(1)
    assert "image_put_urls" not in submitted.request
    await edge.run(job_id)
    await edge.project()
    paths = (f"/{job_id}", "?results=true", f"/{job_id}/events", f"/{job_id}/callbacks")
    shown = [(await client.get(f"/v1/jobs{path}")).text for path in paths]
    shown += [submitted.model_dump_json(), caplog.text]
    assert not [each for each in shown if "s3cret" in each or "bucket.example" in each]


async def test_a_result_says_of_each_image_what_became_of_it(edge: Edge, client: Client) -> None:
    answer = await submit(client, batch_size=3, image_put_urls=urls(2))
    job_id = answer.json()["request_id"]
    await edge.run(job_id, images=3)
    result = f"/v1/jobs/{job_id}/result"

    async def puts() -> list[Any]:
        await edge.project()
        return [each.get("put") for each in (await client.get(result)).json()["results"]]

    assert await puts() == [{"status": 0}, {"status": 0}, None]
    writer = DeliveryWriter(edge.services.deliveries)
    job = await edge.job(job_id)
    for command in (
        RecordAttemptBeforeEnd("put-0", RecordAttempt(TAKEN, (0,), now=utc_now())),
        GiveUpBeforeEnd("put-1", "no answer within 60 s"),
        EndWithoutCallback(),
    ):
        await writer.execute(command, job, await writer.load(job_id))
    failed = {"status": 2, "message": "no answer within 60 s"}
    assert await puts() == [{"status": 1}, failed, None]
    report = (await client.get(f"/v1/jobs/{job_id}/callbacks")).json()
    assert report["state"] == "none"
    assert [each["about"] for each in report["tries"]] == ["put-0", "put-1"]


async def test_what_the_end_was_told_without_is_put_no_more(edge: Edge, client: Client) -> None:
    """A role of a version that knows no such addresses delivered it."""
    answer = await submit(client, image_put_urls=urls(1))
    job_id = answer.json()["request_id"]
    await edge.run(job_id)
    writer, job = DeliveryWriter(edge.services.deliveries), await edge.job(job_id)
    await writer.execute(GiveUpDelivery("the receiver is gone"), job, await writer.load(job_id))
    await edge.project()
    [image] = (await client.get(f"/v1/jobs/{job_id}/result")).json()["results"]
    assert image["put"] == {
        "status": 2,
        "message": "the image was not uploaded before the callback of the end was sent",
    }


async def test_a_damaged_history_keeps_no_result_back(
    edge: Edge, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = (await submit(client, image_put_urls=urls(1))).json()["request_id"]
    await edge.run(job_id)
    await edge.project()

    async def broken(*_: object) -> None:
        raise HistoryBroken

    monkeypatch.setattr(HistoryObjects, "get", broken)
    answer = await client.get(f"/v1/jobs/{job_id}/result")
    assert answer.status_code == 200
    assert answer.json()["results"][0]["put"] == {"status": 0}


REFUSED: list[tuple[Any, str, str]] = [
    ("https://bucket.example.com/0", "image_put_urls", "a list"),
    ({"0": URL}, "image_put_urls", "a list"),
    ([5], "image_put_urls.0", "must be a URL"),
    ([""], "image_put_urls.0", "form http"),
    (["ftp://bucket.example.com/0"], "image_put_urls.0", "http or https"),
    (["https://10.0.0.1/s3cret"], "image_put_urls.0", "not a public address"),
    (["https://inside.example.com/s3cret"], "image_put_urls", "an address that is not public"),
    (["https://nowhere.example.com/s3cret"], "image_put_urls", "does not resolve"),
    (["https://bucket.example.com/" + "x" * 4096], "image_put_urls.0", "longer than 4096"),
    (["https://bucket.example.com/" + "画" * 1365], "image_put_urls.0", "4096 bytes"),
    ([*urls(1), "https://other.example.com/1"], "image_put_urls", "same host"),
    (urls(2), "image_put_urls", "has 2 URLs, but the request makes only 1 images"),
    (urls(33), "image_put_urls", "up to 32"),
]


async def test_what_cannot_be_put_anywhere_is_refused(client: Client) -> None:
    for sent, field, why in REFUSED:
        answer = await submit(client, image_put_urls=sent)
        assert answer.status_code == 400
        [told] = answer.json()["error"]["extra_info"]["fields"]
        assert told["field"] == field
        assert why in told["message"]
        assert "s3cret" not in answer.text


async def test_none_is_nothing(edge: Edge, client: Client) -> None:
    for sent in (None, []):
        answer = await submit(client, image_put_urls=sent)
        assert (await edge.submitted(answer)).image_puts is None


async def test_a_key_with_hosts_of_its_own_has_images_put_there_alone(edge: Edge) -> None:
    async with await edge.client("bob", callback_hosts=("*.b.example",)) as bob:
        refused = await submit(bob, image_put_urls=urls(1))
    assert refused.status_code == 400
    assert "may not use this host" in refused.text


async def test_all_addresses_together_fit_into_a_message(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.acceptance.addresses._MAX_UPLOAD_URLS", 100)
    long, path = "https://bucket.example.com/" + "x" * 4000, "/workflow/v1/generate"
    assert (await submit(client, path, image_put_urls=[long] * 32)).status_code == 202
    refused = await submit(client, path, image_put_urls=[long] * 100)
    assert refused.status_code == 400
    assert "together are too long" in refused.text


@pytest.mark.edge(image_put_enabled=False)
async def test_it_can_be_switched_off(client: Client) -> None:
    answer = await submit(client, image_put_urls=urls(1))
    assert answer.status_code == 400
    assert "does not support uploads of images" in answer.text


async def test_another_address_is_another_request(client: Client) -> None:
    client.headers["Idempotency-Key"] = "a"
    first, again = [await submit(client, image_put_urls=urls(1)) for _ in range(2)]
    assert first.json()["request_id"] == again.json()["request_id"]
    assert (await submit(client)).status_code == 409
