"""Metrics of every process over core NATS: whoever makes the page asks all of them at once.

Nothing is stored, and nothing is said that nobody asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from events.bus.bus import Bus
from events.bus.puller import Feed
from events.bus.streams import METRICS_SUBJECT
from events.errors import LogUnavailable
from events.retry import keep_trying

logger = logging.getLogger(__name__)


async def ask_metrics(bus: Bus, *, enough: int, timeout_s: float) -> list[bytes]:
    """What processes say of themselves: `enough` answers, or those that come in time."""
    answers: list[bytes] = []
    with suppress(LogUnavailable, TimeoutError):
        async with asyncio.timeout(timeout_s), bus.asked(METRICS_SUBJECT, {}) as feed:
            while len(answers) < enough:
                if data := (await feed.get()).data:
                    answers.append(data)
    return answers


async def answer_metrics(bus: Bus, said: Callable[[], Awaitable[bytes]]) -> None:
    """Answer with `said` until cancelled."""
    await bus.wait_connected()

    async def listen() -> None:
        async with bus.subscribe(METRICS_SUBJECT) as questions:
            await _answer(bus, questions, said)

    await keep_trying(listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)


async def _answer(bus: Bus, questions: Feed, said: Callable[[], Awaitable[bytes]]) -> None:
    while True:
        question = await questions.get()
        try:
            data = await said()
        except Exception:
            logger.exception("no metrics are told", extra={"action": "metrics"})
            continue
        if question.ack_subject:
            await bus.publish(question.ack_subject, data)
