"""Callbacks, signed by the library that the service signs with, checked and received."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from darkroom_client.errors import SignatureInvalid
from darkroom_client.receiver import callbacks
from darkroom_client.values import Callback, State
from darkroom_client.webhooks import verified
from fastapi import FastAPI
from standardwebhooks.webhooks import Webhook

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_AAAAAAAAKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "0199aaaa-0000-7000-8000-000000000001"
BODY = json.dumps({"request_id": ID, "status": 1, "state": "completed", "results": []}).encode()


def signed(body: bytes = BODY, *, secrets: tuple[str, ...] = (SECRET,)) -> dict[str, str]:
    now = datetime.now(UTC)
    signatures = [Webhook(secret).sign(f"msg_{ID}", now, body.decode()) for secret in secrets]
    return {
        "webhook-id": f"msg_{ID}",
        "Webhook-Timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


@pytest.mark.parametrize("secrets", [(SECRET,), (OTHER, SECRET)])
def test_what_the_service_signed_is_taken(secrets: tuple[str, ...]) -> None:
    callback = verified(SECRET, BODY, signed(secrets=secrets))
    assert (callback.id, callback.event) == (f"msg_{ID}", "completed")
    assert callback.result.state is State.COMPLETED


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({}, BODY + b" "),
        ({"webhook-id": "msg_other"}, BODY),
        ({"Webhook-Timestamp": "1700000000"}, BODY),
        ({"Webhook-Timestamp": "soon"}, BODY),
        ({"Webhook-Timestamp": "9" * 4000}, BODY),
        ({"webhook-signature": ""}, BODY),
        ({"webhook-signature": "v1,é v2,abc"}, BODY),
        ({"webhook-signature": Webhook(OTHER).sign("a", datetime.now(UTC), "b")}, BODY),
    ],
)
def test_what_was_changed_is_not(change: dict[str, str], body: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        verified(SECRET, body, signed() | change)
    with pytest.raises(SignatureInvalid):
        verified(SECRET, BODY, {})


@pytest.mark.parametrize("secret", ["", "whsec_"])
def test_with_an_empty_secret_nothing_is_checked(secret: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        verified(secret, BODY, signed())


class TestReceiver:
    @pytest.fixture
    def told(self) -> list[Callback]:
        return []

    @pytest.fixture
    async def client(self, told: list[Callback]) -> AsyncIterator[httpx.AsyncClient]:
        app = FastAPI()

        @callbacks(app, secret=SECRET)
        async def note(callback: Callback) -> None:
            told.append(callback)
            if len(told) == 1:
                raise RuntimeError("the first is not taken")

        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://you.test") as client:
            yield client

    async def test_it_is_told_of_each_once_and_again_where_it_failed(
        self, client: httpx.AsyncClient, told: list[Callback]
    ) -> None:
        statuses = [await self.post(client, BODY, signed()) for _ in range(3)]
        assert statuses == [500, 204, 204]
        assert len(told) == 2

    async def test_a_repeat_that_comes_meanwhile_waits(self) -> None:
        app, told, may_end = FastAPI(), list[str](), asyncio.Event()

        @callbacks(app, secret=SECRET)
        async def note(callback: Callback) -> None:
            told.append(callback.id)
            await may_end.wait()

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://you.test") as client:
            posts = [asyncio.create_task(self.post(client, BODY, signed())) for _ in range(2)]
            await asyncio.wait(posts, timeout=0.05)
            may_end.set()
            assert await asyncio.gather(*posts) == [204, 204]
        assert len(told) == 1

    async def test_it_takes_nothing_else(
        self, client: httpx.AsyncClient, told: list[Callback]
    ) -> None:
        assert await self.post(client, BODY, signed(secrets=(OTHER,))) == 401
        assert await self.post(client, b"x" * (2**20 + 1), signed()) == 413
        assert told == []

    async def post(self, client: httpx.AsyncClient, body: bytes, headers: Any) -> int:
        return (await client.post("/task_completed", content=body, headers=headers)).status_code
