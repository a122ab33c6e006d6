"""`POST /v1/callbacks/test` with a receiver on a real socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from events.result import ResultResponse, Status
from serve_app.access.api_keys import parse
from storage.service_secret import webhook_secret
from tests.support.callbacks.receiver import Receiver, hang, status
from tests.support.edge import Edge, running_edge
from tests.support.edge_services import SECRET


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncGenerator[Edge]:
    async with running_edge(tmp_path) as edge:
        yield edge


async def test_it_is_a_result_signed_with_the_callers_secret(edge: Edge) -> None:
    text = await edge.key()
    key = parse(text)
    assert key is not None
    async with Receiver() as receiver, edge.client_with(text) as client:
        answer = await client.post("/v1/callbacks/test", params={"callback_url": receiver.url})
        [request] = receiver.received
    assert answer.status_code == 200
    assert answer.json()["status"] == 200
    body = ResultResponse.model_validate_json(request.body)
    assert body.status == Status.COMPLETED
    assert request.headers["webhook-id"] == f"msg_{body.request_id}"
    webhook = Webhook(webhook_secret(SECRET, key.id))
    webhook.verify(request.body, request.headers)
    with pytest.raises(WebhookVerificationError):
        webhook.verify(request.body.replace(b"status", b"statut", 1), request.headers)


async def test_what_the_receiver_does_is_told_and_not_repeated(edge: Edge) -> None:
    async with Receiver([status(500), hang]) as receiver, await edge.client() as client:
        failed, hung = [
            (await client.post("/v1/callbacks/test", params={"callback_url": receiver.url})).json()
            for _ in range(2)
        ]
        assert len(receiver.received) == 2
    assert failed["status"] == 500
    assert "status" not in hung
    assert hung["error"] == "no answer within 1 s"
    assert hung["latency_s"] >= 1
