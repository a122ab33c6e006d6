"""Whether the server of a stream is about to end, which no request is told.

Serve closes the listener of a replica that it replaces, and waits some seconds for its requests.
Streams that end by themselves in that time are whole; the others break off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

_PERIOD_S = 0.5
_CONNECT_TIMEOUT_S = 2.0


class ServerEnd:
    """Asks, while there are streams, whether the address that they came to still takes calls."""

    def __init__(
        self,
        end_streams: Callable[[], None],
        *,
        are_streams: Callable[[], bool],
        period_s: float = _PERIOD_S,
    ) -> None:
        self._end_streams = end_streams
        self._are_streams = are_streams
        self._period_s = period_s
        self._watch: asyncio.Task[None] | None = None

    def begin(self, server: tuple[str, int | None] | None) -> None:
        """`server`: address and port that a stream came to; None, or without a port, is unknown."""
        if server is None or not server[1] or (self._watch is not None and not self._watch.done()):
            return
        self._watch = asyncio.create_task(self._until_it_ends(server[0], server[1]))

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _until_it_ends(self, host: str, port: int) -> None:
        while self._are_streams():
            if not await _listens(host, port):
                self._end_streams()
                return
            await asyncio.sleep(self._period_s)


async def _listens(host: str, port: int) -> bool:
    """False only where it is certain."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return False
    except OSError:  # also TimeoutError
        return True
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
