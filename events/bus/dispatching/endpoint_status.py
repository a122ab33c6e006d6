"""What the dispatcher knows of an endpoint: HTTP replicas ask for it over core NATS.

Nothing is stored, and nothing is said that nobody asked for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from events.bus.bus import Bus
from events.bus.puller import Message
from events.bus.streams import STATUS_WILDCARD, endpoint_in, status_subject
from events.errors import LogUnavailable, ReadTimeout
from events.retry import keep_trying

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.0


async def ask_status(bus: Bus, endpoint: str) -> Mapping[str, Any] | None:
    """None where nobody dispatches the endpoint now, or says so in time."""
    try:
        return await bus.ask(status_subject(endpoint), b"{}", timeout_s=_TIMEOUT_S)
    except LogUnavailable:
        return None


async def answer_status(
    bus: Bus, status: Callable[[str], Awaitable[Mapping[str, Any] | None]]
) -> None:
    """Answer until cancelled. Where `status` is None another one answers, or nobody."""
    await bus.wait_connected()

    async def listen() -> None:
        async with bus.subscribe(STATUS_WILDCARD) as questions:
            while True:
                await _answer(bus, await questions.get(), status)

    await keep_trying(listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)


async def _answer(
    bus: Bus, question: Message, status: Callable[[str], Awaitable[Mapping[str, Any] | None]]
) -> None:
    try:
        said = await status(endpoint_in(question.subject))
    except (LogUnavailable, ReadTimeout):
        return  # whoever asked does not wait long
    except Exception:
        logger.exception("endpoint not told of", extra={"action": "endpoint_status"})
        return
    if said is not None and question.ack_subject:
        await bus.publish(question.ack_subject, json.dumps(said).encode())
