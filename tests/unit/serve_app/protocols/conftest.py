"""Jobs that end while their callers wait, and streams that follow their progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import httpx
import pytest

from serve_app.live.progress import Newest
from tests.support.edge import Edge
from tests.support.polling import eventually

Work: TypeAlias = Callable[[str], Awaitable[None]]
Call: TypeAlias = Coroutine[Any, Any, httpx.Response]
Answered: TypeAlias = Callable[[Call, Work], Awaitable[httpx.Response]]


@pytest.fixture
def answered(edge: Edge) -> Answered:
    """The answer of a call while `work` does what becomes of its job."""

    async def answered(call: Call, work: Work) -> httpx.Response:
        known = set(edge.log.job_ids())
        answer = asyncio.create_task(call)
        [job_id] = await eventually(lambda: set(edge.log.job_ids()) - known)
        await work(job_id)
        return await answer

    return answered


def followed(edge: Edge) -> Newest | None:
    """What the last stream that follows a job has not sent yet; None while there is none."""
    found = [getattr(each, "__self__", None) for each in edge.progress.listeners]
    return next((each for each in reversed(found) if isinstance(each, Newest)), None)


def messages(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream, without its comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if "event" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found
