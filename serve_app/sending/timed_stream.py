"""An answer that is sent as its parts come, and cut off where it is read too slowly."""

from __future__ import annotations

import asyncio

from starlette.responses import StreamingResponse
from starlette.types import Message, Send


class SlowReader(Exception):
    """The reader of an answer falls too far behind what it is sent."""


class TimedStream(StreamingResponse):
    send_timeout_s: float
    """How long each part may take."""

    async def stream_response(self, send: Send) -> None:
        """Raises SlowReader. Whoever catches it leaves the answer without its proper end."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self.send_timeout_s):
                    await send(message)
            except TimeoutError as error:
                raise SlowReader from error

        await super().stream_response(send_in_time)
