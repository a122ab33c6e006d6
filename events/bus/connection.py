"""The connection to NATS: made in the background, and made again for as long as it takes.

Why not nats-py's defaults: they buffer publishes while the server is not available (and store them
later, although the requests were refused) and give up reconnecting after two minutes. And whatever
the settings, nats-py closes a connection for good when the server sends an error.
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

from events.bus.errors import DISCONNECTED, NO_STREAM, NOT_THERE, code_of
from events.bus.logs.log_setup import LogStreamsDiffer, require_as_set
from events.bus.puller import Feed, Puller
from events.bus.stream_setup import StreamSetup
from events.errors import LogUnavailable
from events.retry import pause
from events.streams.log_streams import ONE_STREAM, LogStreams

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
_WATCH_PERIOD_S = 1.0
_LONGEST_PAUSE_S = 15.0
"""Between two looks at streams that cannot be used: only an operator changes that."""


@contextmanager
def keeping_cancellation() -> Generator[None]:
    """Ends the task where it is cancelled inside, whatever the block makes of it.

    nats-py waits by `asyncio.wait_for`, which before Python 3.12 drops a cancellation that comes in
    the same turn of the loop as the answer.
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
    """One connection with its streams; what can be done on it is in `Bus`."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        replicas: int = 1,
        log_max_bytes: int = -1,
        prepares_streams: bool = True,
        ca_file: Path | None = None,
        log_streams: LogStreams = ONE_STREAM,
    ) -> None:
        """With `prepares_streams` False the streams are taken as they are: nothing is made.

        `url`: of one server, or with commas of several, of which any will do.
        `ca_file`: the authorities (PEM) that a server with TLS is checked by, and no others; None:
        those of the system.
        """
        self._url = url
        self._ca_file = ca_file
        self._name = name
        self._prepares_streams = prepares_streams
        self.log_streams = log_streams
        self._setup = StreamSetup(
            replicas=replicas, log_max_bytes=log_max_bytes, log_streams=log_streams
        )
        self.refusal: str | None = None
        """Why the streams that are there cannot be used, where that is so."""
        self._client = Client()
        self._js: JetStreamContext = self._client.jetstream(timeout=CALL_TIMEOUT_S)
        self._ready = asyncio.Event()
        self._dirty = asyncio.Event()
        """Something happened after which the connection or a stream may be gone."""
        self._pullers: set[Puller] = set()
        self._feeds: set[Feed] = set()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._keeping = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        # More than once: nats-py waits in ways that can swallow a cancellation before Python 3.12.
        while self._keeping and not self._keeping.done():
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=CALL_TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        return self._ready.is_set() and self._client.is_connected

    async def wait_connected(self) -> None:
        """Returns once there is a connection and the streams are there."""
        await self._ready.wait()

    async def wait_known(self) -> None:
        """As `wait_connected`; or once the streams are refused, see `refusal`."""
        while not (self._ready.is_set() or self.refusal):
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_PERIOD_S):
                    await self._ready.wait()

    async def _keep_connected(self) -> None:
        """One client after another: each reconnects by itself until it is closed for good."""
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
        # Read each time: it may be renewed while the process runs.
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
        """Prepare the streams, and again whenever one may be gone; returns once it is closed."""
        self._dirty.set()
        pause_s = _WATCH_PERIOD_S
        while not client.is_closed:
            # With a limit: nats-py does not come to closed_cb where its last write fails.
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_PERIOD_S):
                    await self._dirty.wait()
            if self._dirty.is_set() and not client.is_closed:
                self._dirty.clear()
                if await self._is_prepared():
                    self._ready.set()
                else:
                    self._dirty.set()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S) if self.refusal else _WATCH_PERIOD_S
                await pause(pause_s)

    async def _is_prepared(self) -> bool:
        try:
            if self._prepares_streams:
                is_ready = await self._setup.prepare(self._js)
            else:
                await require_as_set(self._js, self.log_streams)
                is_ready = True
        except LogStreamsDiffer as error:
            if self.refusal is None:
                logger.error("the log is refused", extra={"action": "prepare", "why": str(error)})
            self.refusal = str(error)
            self._ready.clear()
            return False
        except (TimeoutError, nats.errors.Error, OSError) as error:
            fields = {"action": "prepare", "error": str(error)}
            logger.warning("the streams are not known", extra=fields)
            is_ready = not self._prepares_streams  # whoever asks something is told what is wrong
            self._dirty.set()
        self.refusal = None
        return is_ready

    async def _on_error(self, error: Exception) -> None:
        logger.info("connection error", extra={"action": "nats_error", "error": repr(error)})

    async def _on_change(self) -> None:
        self._dirty.set()
        for puller in self._pullers:
            puller.interrupt()

    async def call(self, call: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The answer. Raises LogUnavailable, and APIError only where a message or a consumer is not
        there.
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
        """What JetStream's API answers, where nats-py does not ask it. Raises LogUnavailable."""
        answer = await self._ask_api(subject, question, timeout_s=timeout_s)
        if "error" in answer:
            raise LogUnavailable(str(answer["error"]["description"]))
        return answer

    async def describe(self, stream: str) -> dict[str, Any] | None:
        """What the server says of a stream; None where it is not there. Raises LogUnavailable."""
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
        """Raises LogUnavailable where there is no answer. An error is one."""
        request = question if isinstance(question, bytes) else json.dumps(question).encode()
        call = self._client.request(subject, request, timeout=timeout_s)
        reply = await self.call(call, timeout_s=timeout_s)
        answer: dict[str, Any] = json.loads(reply.data or b"{}")
        return answer

    def new_inbox(self) -> str:
        """A subject that nobody else has."""
        return str(self._client.new_inbox())

    def unavailable(self, error: Exception) -> LogUnavailable:
        """A stream that is missing is being restored, or lost, and then made again."""
        missing = isinstance(error, nats.js.errors.NoStreamResponseError)
        if missing or code_of(error) == NO_STREAM:
            self._dirty.set()
        if code_of(error) is None:
            return LogUnavailable()
        logger.warning("call refused", extra={"action": "call", "error": str(error)})
        return LogUnavailable(str(error))


async def _shut(client: Client) -> None:
    """More than once: a reconnect that succeeds meanwhile undoes nats-py's close."""
    while client.is_connected or client.is_connecting or client.is_reconnecting:
        with suppress(OSError, nats.errors.Error):
            await client.close()
