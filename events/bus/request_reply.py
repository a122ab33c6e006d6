"""Requests for the status of endpoints and for metrics, which processes answer over core NATS."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from events.bus.bus import Bus
from events.bus.puller import Feed, Message
from events.bus.streams import METRICS_SUBJECT, STATUS_WILDCARD, endpoint_in, status_subject
from events.errors import LogUnavailable, ReadTimeout
from events.retry import keep_trying

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.0


async def ask_status(bus: Bus, endpoint: str) -> Mapping[str, Any] | None:
    """Return the status of an endpoint, or None if no dispatcher answers in time."""
    try:
        return await bus.ask(status_subject(endpoint), b"{}", timeout_s=_TIMEOUT_S)
    except LogUnavailable:
        return None


async def answer_status(
    bus: Bus, status: Callable[[str], Awaitable[Mapping[str, Any] | None]]
) -> None:
    """Answer requests for the status of endpoints until cancelled.

    If this process does not dispatch the endpoint, `status` returns None, and no answer is sent.
    """
    await bus.wait_connected()

    async def listen() -> None:
        async with bus.subscribe(STATUS_WILDCARD) as questions:
            while True:
                await _answer_status(bus, await questions.get(), status)

    await keep_trying(listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)


async def _answer_status(
    bus: Bus, question: Message, status: Callable[[str], Awaitable[Mapping[str, Any] | None]]
) -> None:
    try:
        answer = await status(endpoint_in(question.subject))
    except (LogUnavailable, ReadTimeout):
        return  # The requester gets no answer in time, and reports no status.
    except Exception:
        logger.exception(
            "a request for the status of an endpoint was not answered",
            extra={"action": "endpoint_status"},
        )
        return
    if answer is not None and question.ack_subject:
        await bus.publish(question.ack_subject, json.dumps(answer).encode())


async def ask_metrics(bus: Bus, *, enough: int, timeout_s: float) -> list[bytes]:
    """Return the encoded metrics of the processes that answer first, at most `enough`."""
    answers: list[bytes] = []
    with suppress(LogUnavailable, TimeoutError):
        async with asyncio.timeout(timeout_s), bus.asked(METRICS_SUBJECT, {}) as feed:
            while len(answers) < enough:
                if data := (await feed.get()).data:
                    answers.append(data)
    return answers


async def answer_metrics(bus: Bus, answer: Callable[[], Awaitable[bytes]]) -> None:
    """Answer requests for metrics with the result of `answer` until cancelled."""
    await bus.wait_connected()

    async def listen() -> None:
        async with bus.subscribe(METRICS_SUBJECT) as questions:
            await _answer_metrics(bus, questions, answer)

    await keep_trying(listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)


async def _answer_metrics(
    bus: Bus, questions: Feed, answer: Callable[[], Awaitable[bytes]]
) -> None:
    while True:
        question = await questions.get()
        try:
            data = await answer()
        except Exception:
            logger.exception(
                "a request for metrics was not answered",
                extra={"action": "metrics"},
            )
            continue
        if question.ack_subject:
            await bus.publish(question.ack_subject, data)
