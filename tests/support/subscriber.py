"""A NATS subscriber as an operator would write one, with nats-py only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client


@asynccontextmanager
async def subscription(url: str, subject: str = "events.>") -> AsyncIterator[list[dict[str, Any]]]:
    """Yield a list that collects the messages on `subject` in order, while the context lasts."""
    received: list[dict[str, Any]] = []

    async def take(message: Any) -> None:
        received.append(json.loads(message.data))

    client = await nats.connect(url)
    await client.subscribe(subject, cb=take)
    await client.flush()
    try:
        yield received
    finally:
        await client.close()


async def stored_events(url: str, job_id: str) -> list[dict[str, Any]]:
    """Return every stored event of one job."""
    client = await nats.connect(url)
    subject = f"jobs.*.{job_id}"
    try:
        question = json.dumps({"subject": subject}).encode()
        answer = await client.request("$JS.API.STREAM.NAMES", question, timeout=5)
        streams = json.loads(answer.data)["streams"] or ()
        return [each for name in streams for each in await _stored_in(client, name, subject)]
    finally:
        await client.close()


async def _stored_in(client: Client, stream: str, subject: str) -> list[dict[str, Any]]:
    js = client.jetstream()
    counts = (await js.stream_info(stream, subjects_filter=subject)).state.subjects or {}
    sub = await js.subscribe(subject, stream=stream, ordered_consumer=True)
    return [json.loads((await sub.next_msg(timeout=5)).data) for _ in range(sum(counts.values()))]
