"""Receivers of callbacks in their own process. Some answer at once, and others never answer.

Each receiver has its own address in 127.0.0.0/8, and all have the same port. On SIGTERM the process
writes one line for each request: the number of the host, `webhook-id`, and the time.

usage: python -m benchmarks.harness.receivers HOSTS HUNG FILE
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from pathlib import Path
from typing import cast

_HEAD_END = b"\r\n\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def address(host: int) -> str:
    return f"127.0.1.{host + 1}"


class _Receiver(asyncio.Protocol):
    def __init__(self, host: int, hangs: bool, came: list[str]) -> None:
        self._host = host
        self._hangs = hangs
        self._came = came
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(_HEAD_END)
        if not found:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(headers[b"content-length"]):
            return
        self._received = b""
        self._came.append(f"{self._host} {headers[b'webhook-id'].decode()} {time.time()}")
        if not self._hangs:
            self._transport.write(_ANSWER)


async def _serve(hosts: int, hung: int) -> list[str]:
    """Receive requests until SIGTERM. Returns a line for each request."""
    loop, came, stop = asyncio.get_running_loop(), list[str](), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    port = 0
    for host in range(hosts):
        listener = socket.create_server((address(host), port), backlog=512)
        port = listener.getsockname()[1]
        await loop.create_server(
            lambda host=host: _Receiver(host, host < hung, came),  # type: ignore[misc]  # mypy knows no default in a lambda
            sock=listener,
        )
    print(port, flush=True)
    await stop.wait()
    return came


if __name__ == "__main__":
    arrivals = asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
    Path(sys.argv[3]).write_text("\n".join(arrivals))
