"""The connection to NATS, made in the background and restored without limit.

Two defaults of nats-py are changed: it buffers messages while the server is not available, and
publishes them later although the requests were refused; and it stops reconnecting after two
minutes. After some errors of the server, nats-py closes a client permanently, whatever its settings
are. A new client then replaces the closed client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from events.bus.nats_errors import DISCONNECTED, NO_STREAM, NOT_THERE, code_of
from events.bus.puller import Feed, Puller
from events.bus.streams import StreamSetup
from events.errors import LogUnavailable
from events.retry import pause

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
_WATCH_PERIOD_S = 1.0


@contextmanager
def keeping_cancellation() -> Generator[None]:
    """Raise CancelledError at the end of the block if the task was cancelled inside the block.

    nats-py waits with `asyncio.wait_for`. Before Python 3.12, `wait_for` drops a cancellation that
    arrives in the same iteration of the event loop as the result.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


class Connection:
    """One connection and its streams. `Bus` adds the operations on the streams."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        replicas: int = 1,
        log_max_bytes: int = -1,
        prepares_streams: bool = True,
        ca_file: Path | None = None,
    ) -> None:
        """If `prepares_streams` is False, the streams are neither created nor updated.

        `url` has the URLs of one or more servers of a cluster, separated by commas. `ca_file` is a
        PEM file with the certificate authorities that are trusted for TLS. None means those of the
        system.
        """
        self._url = url
        self._ca_file = ca_file
        self._name = name
        self._prepares_streams = prepares_streams
        self._setup = StreamSetup(replicas=replicas, log_max_bytes=log_max_bytes)
        self._client = Client()
        self._js: JetStreamContext = self._client.jetstream(timeout=CALL_TIMEOUT_S)
        self._ready = asyncio.Event()
        self._dirty = asyncio.Event()
        """Set when the connection or a stream may have been lost."""
        self._pullers: set[Puller] = set()
        self._feeds: set[Feed] = set()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._keeping = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        # The cancellation is repeated, because before Python 3.12 nats-py can drop a cancellation.
        while self._keeping and not self._keeping.done():
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=CALL_TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        return self._ready.is_set() and self._client.is_connected

    async def wait_connected(self) -> None:
        """Wait until there is a connection and the streams exist."""
        await self._ready.wait()

    async def _keep_connected(self) -> None:
        """Connect, with a new client whenever nats-py has closed the client permanently."""
        while True:
            self._client = Client()
            self._js = self._client.jetstream(timeout=CALL_TIMEOUT_S)
            try:
                await self._connect(self._client)
                await self._supervise(self._client)
                logger.warning("connection closed for good", extra={"action": "connect"})
            except Exception:
                logger.exception("connection failed", extra={"action": "connect"})
            finally:
                self._ready.clear()
                await self._on_change()
                for feed in self._feeds:
                    feed.end()
                await _shut(self._client)
            await pause(_WATCH_PERIOD_S)

    async def _connect(self, client: Client) -> None:
        # The file is read for each connection, because it may be replaced while the process runs.
        tls = ssl.create_default_context(cafile=self._ca_file) if self._ca_file else None
        await client.connect(
            self._url.split(","),
            name=self._name,
            tls=tls,
            pending_size=0,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=5,
            connect_timeout=2,
            error_cb=self._on_error,
            reconnected_cb=self._on_change,
            closed_cb=self._on_change,
        )

    async def _supervise(self, client: Client) -> None:
        """Prepare the streams after each possible loss, until the client is closed."""
        self._dirty.set()
        while not client.is_closed:
            # The time-out is needed, because nats-py does not call closed_cb if the last write
            # before the close fails.
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_PERIOD_S):
                    await self._dirty.wait()
            if self._dirty.is_set() and not client.is_closed:
                self._dirty.clear()
                if await self._is_prepared():
                    self._ready.set()
                else:
                    self._dirty.set()
                await pause(_WATCH_PERIOD_S)

    async def _is_prepared(self) -> bool:
        return not self._prepares_streams or await self._setup.prepare(self._js)

    async def _on_error(self, error: Exception) -> None:
        logger.info("connection error", extra={"action": "nats_error", "error": repr(error)})

    async def _on_change(self) -> None:
        self._dirty.set()
        for puller in self._pullers:
            puller.interrupt()

    async def call(self, call: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Await a call of nats-py and return its answer.

        Raises LogUnavailable, and APIError only if a message or a consumer does not exist.
        """
        if not self.is_connected:
            call.close()
            raise LogUnavailable
        try:
            with keeping_cancellation():
                async with asyncio.timeout(timeout_s):
                    return await call
        except (nats.js.errors.APIError, TimeoutError, *DISCONNECTED) as error:
            if code_of(error) in NOT_THERE:
                raise
            raise self.unavailable(error) from error

    async def ask(
        self,
        subject: str,
        question: Mapping[str, Any] | bytes,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Send a request and return the JSON object of its answer. Raises LogUnavailable."""
        answer = await self._ask_api(subject, question, timeout_s=timeout_s)
        if "error" in answer:
            raise LogUnavailable(str(answer["error"]["description"]))
        return answer

    async def describe(self, stream: str) -> dict[str, Any] | None:
        """Return the server's description of a stream, or None if the stream does not exist.

        Raises LogUnavailable.
        """
        answer = await self._ask_api(f"$JS.API.STREAM.INFO.{stream}", b"", timeout_s=CALL_TIMEOUT_S)
        error = answer.get("error")
        if error is None:
            return answer
        if error.get("err_code") == NO_STREAM:
            return None
        raise LogUnavailable(str(error["description"]))

    async def _ask_api(
        self, subject: str, question: Mapping[str, Any] | bytes, *, timeout_s: float
    ) -> dict[str, Any]:
        """Return the answer, which may be an error. Raises LogUnavailable if there is no answer."""
        request = question if isinstance(question, bytes) else json.dumps(question).encode()
        call = self._client.request(subject, request, timeout=timeout_s)
        reply = await self.call(call, timeout_s=timeout_s)
        answer: dict[str, Any] = json.loads(reply.data or b"{}")
        return answer

    def unavailable(self, error: Exception) -> LogUnavailable:
        """Convert an error to LogUnavailable. If a stream is missing, have the streams prepared
        again.
        """
        missing = isinstance(error, nats.js.errors.NoStreamResponseError)
        if missing or code_of(error) == NO_STREAM:
            self._dirty.set()
        if code_of(error) is None:
            return LogUnavailable()
        logger.warning("call refused", extra={"action": "call", "error": str(error)})
        return LogUnavailable(str(error))


async def _shut(client: Client) -> None:
    """Close the client until it stays closed. A reconnect at the same time can reopen it."""
    while client.is_connected or client.is_connecting or client.is_reconnecting:
        with suppress(OSError, nats.errors.Error):
            await client.close()
