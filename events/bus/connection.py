"""The connection to NATS; this file and `puller.py` alone import nats.

`Bus` turns nats-py's errors into ours and its messages into `Message`; the log and the queues
stand on it. Why not nats-py's defaults: they buffer publishes while the server is away (and store
them later, as ghosts of requests that were refused) and give up reconnecting after two minutes.
And whatever the settings, nats-py closes a connection for good when the server sends an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from events.bus.puller import DISCONNECTED, Feed, Message, Puller, collect
from events.bus.streams import REPUBLISH_FROM, REPUBLISH_TO, STREAMS, ConsumerSpec, StreamSpec
from events.errors import LogFull, LogUnavailable

logger = logging.getLogger(__name__)

EXPECTED_LAST_SUBJECT_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
MESSAGE_ID = "Nats-Msg-Id"
SCHEDULE = "Nats-Schedule"
SCHEDULE_TARGET = "Nats-Schedule-Target"

_WRONG_LAST_SEQUENCE = {10071, 10164}
_FULL = {10077, 10047, 10023}
"""maximum bytes exceeded, insufficient storage, insufficient resources"""
_NO_MESSAGE = 10037
_NO_STREAM = 10059
_STREAM_EXISTS_OTHERWISE = 10058
_DUPLICATE_WINDOW_S = 120.0
_CALL_TIMEOUT_S = 5.0
_GLANCE_S = 1.0
"""For what a request asks on its way: it does without the answer rather than wait."""
_WATCH_PERIOD_S = 1.0


class WrongLastSequence(Exception):
    """The subject's last message is not the one that was expected."""


class NoAnswer(Exception):
    """The server did not answer in time: what was sent may have been stored."""


class Bus:
    """One connection, made in the background and made again for as long as it takes."""

    def __init__(self, url: str, *, name: str, replicas: int = 1, log_max_bytes: int = -1) -> None:
        self._url = url
        self._name = name
        self._replicas = replicas
        self._log_max_bytes = log_max_bytes
        self._client = Client()
        self._js: JetStreamContext = self._client.jetstream(timeout=_CALL_TIMEOUT_S)
        self._ready = asyncio.Event()
        self._stirred = asyncio.Event()
        """Something happened after which the connection or a stream may be gone."""
        self._updated: set[str] = set()
        """Streams that have had this process's configuration."""
        self._pullers: set[Puller] = set()
        self._feeds: set[Feed] = set()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._keeping = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        # More than once: nats-py, and wait_for before Python 3.12, can swallow a cancellation.
        while self._keeping and not self._keeping.done():
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=_CALL_TIMEOUT_S)

    @property
    def is_connected(self) -> bool:
        return self._ready.is_set() and self._client.is_connected

    async def wait_connected(self) -> None:
        """Returns once there is a connection and the streams are there."""
        await self._ready.wait()

    async def _keep_connected(self) -> None:
        """One client after another: each reconnects by itself until it is closed for good."""
        while True:
            self._client = Client()
            self._js = self._client.jetstream(timeout=_CALL_TIMEOUT_S)
            try:
                await self._connect(self._client)
                await self._attend(self._client)
                logger.warning("connection closed for good", extra={"action": "connect"})
            except Exception:
                logger.exception("connection failed", extra={"action": "connect"})
            finally:
                self._ready.clear()
                await self._on_change()
                for feed in self._feeds:
                    feed.end()
                await _shut(self._client)
            await asyncio.sleep(_WATCH_PERIOD_S * random.uniform(0.2, 1))

    async def _connect(self, client: Client) -> None:
        await client.connect(
            self._url,
            name=self._name,
            pending_size=0,
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=5,
            connect_timeout=2,
            error_cb=self._on_error,
            reconnected_cb=self._on_change,
            closed_cb=self._on_change,
        )

    async def _attend(self, client: Client) -> None:
        """Prepare the streams, and again whenever one may be gone; returns once it is closed."""
        self._stirred.set()
        while not client.is_closed:
            # With a limit: nats-py does not come to closed_cb where its last write fails.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), _WATCH_PERIOD_S)
            if self._stirred.is_set() and not client.is_closed:
                self._stirred.clear()
                if await self._prepare_streams():
                    self._ready.set()
                else:
                    self._stirred.set()
                await asyncio.sleep(_WATCH_PERIOD_S * random.uniform(0.5, 1))

    async def _on_error(self, error: Exception) -> None:
        logger.info("connection error", extra={"action": "nats_error", "error": repr(error)})

    async def _on_change(self) -> None:
        self._stirred.set()
        for puller in self._pullers:
            puller.interrupt()

    # Streams and consumers.

    async def _prepare_streams(self) -> bool:
        """Whether all are there; one that cannot be made or updated holds up no other."""
        ready = True
        for spec in STREAMS:
            try:
                await self._prepare_stream(spec)
            except (TimeoutError, nats.errors.Error, OSError) as error:
                ready = False
                logger.warning(
                    "stream is not ready",
                    extra={"action": "prepare", "stream": spec.name, "error": str(error)},
                )
        return ready

    async def _prepare_stream(self, spec: StreamSpec) -> None:
        """Updated once alone: who reconnects must not undo what a newer process has set."""
        config = self._stream_config(spec)
        try:
            await self._js.add_stream(config)
        except nats.js.errors.APIError as error:
            if error.err_code != _STREAM_EXISTS_OTHERWISE:
                raise
            if spec.name not in self._updated:
                await self._js.update_stream(config)
        self._updated.add(spec.name)

    def _stream_config(self, spec: StreamSpec) -> nats.js.api.StreamConfig:
        retention, policy = nats.js.api.RetentionPolicy, nats.js.api.DiscardPolicy
        republish = nats.js.api.RePublish(src=REPUBLISH_FROM, dest=REPUBLISH_TO)
        return nats.js.api.StreamConfig(
            name=spec.name,
            subjects=list(spec.subjects),
            retention=retention.WORK_QUEUE if spec.work_queue else retention.LIMITS,
            # Only the log has a limit, and refuses what is over it; scheduling needs discard=old.
            discard=policy.NEW if spec.is_log else policy.OLD,
            max_bytes=self._log_max_bytes if spec.is_log else -1,
            max_msgs_per_subject=1 if spec.last_only else -1,
            storage=nats.js.api.StorageType.FILE,
            num_replicas=self._replicas,
            duplicate_window=_DUPLICATE_WINDOW_S,
            republish=republish if spec.is_log else None,
            allow_direct=True,
            allow_msg_schedules=spec.scheduled or None,
            allow_rollup_hdrs=True,
        )

    async def fill(self, stream: str) -> float:
        """How full the stream is, 0..1 of its `max_bytes`. Raises LogUnavailable."""
        info = await self._call(self._js.stream_info(stream), timeout_s=_GLANCE_S)
        limit = info.config.max_bytes or -1
        return info.state.bytes / limit if limit > 0 else 0.0

    async def pending(
        self, stream: str, subjects: str, *, timeout_s: float = _CALL_TIMEOUT_S
    ) -> dict[str, int]:
        """Messages per subject. Raises LogUnavailable."""
        call = self._js.stream_info(stream, subjects_filter=subjects)
        info = await self._call(call, timeout_s=timeout_s)
        return dict(info.state.subjects or {})

    async def purge(self, stream: str, subject: str, *, keep: int = 0) -> None:
        """Remove all messages of the subject but the last `keep`. Raises LogUnavailable."""
        await self._call(self._js.purge_stream(stream, subject=subject, keep=keep or None))

    async def _call(self, call: Any, *, timeout_s: float = _CALL_TIMEOUT_S) -> Any:
        """The answer. Raises LogUnavailable, and APIError only where a message is not there."""
        if not self.is_connected:
            call.close()
            raise LogUnavailable
        try:
            return await asyncio.wait_for(call, timeout_s)
        except (nats.js.errors.APIError, TimeoutError, *DISCONNECTED) as error:
            if _code(error) == _NO_MESSAGE:
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> LogUnavailable:
        """A stream that is missing is being restored, or lost, and then made again."""
        missing = isinstance(error, nats.js.errors.NoStreamResponseError)
        if missing or _code(error) == _NO_STREAM:
            self._stirred.set()
        if _code(error) is None:
            return LogUnavailable()
        logger.warning("call refused", extra={"action": "call", "error": str(error)})
        return LogUnavailable(str(error))

    # Publishing.

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publish to a stream and wait until it is on disk; its sequence.

        Raises LogUnavailable and LogFull (nothing was stored), WrongLastSequence, NoAnswer.
        """
        if not self.is_connected:
            raise LogUnavailable
        try:
            ack = await self._js.publish(
                subject, data, timeout=timeout_s, headers=dict(headers or {})
            )
        except OSError as error:  # a time-out, or a write that failed on the way
            raise NoAnswer from error
        except (nats.js.errors.APIError, *DISCONNECTED) as error:
            if _code(error) in _WRONG_LAST_SEQUENCE:
                raise WrongLastSequence from error
            if _code(error) in _FULL:
                raise LogFull from error
            raise self._unavailable(error) from error
        return ack.seq

    async def store_first(self, subject: str, data: bytes, *, timeout_s: float = 5) -> bool:
        """Publish to a subject that holds nothing yet; False where it holds something.

        Raises LogUnavailable, LogFull, NoAnswer.
        """
        try:
            await self.store(
                subject, data, timeout_s=timeout_s, headers={EXPECTED_LAST_SUBJECT_SEQUENCE: "0"}
            )
        except WrongLastSequence:
            return False
        return True

    async def publish(self, subject: str, data: bytes) -> None:
        """Core NATS: at most once, dropped while disconnected."""
        with suppress(*DISCONNECTED, nats.errors.Error):
            await self._client.publish(subject, data)

    # Reading.

    async def last(self, stream: str, subject: str) -> Message | None:
        """The subject's last message, as the stream's leader has it. Raises LogUnavailable."""
        try:
            raw = await self._call(self._js.get_last_msg(stream, subject))
        except nats.js.errors.APIError:
            return None
        return Message(subject=subject, data=raw.data or b"", sequence=raw.seq or 0)

    async def batch(
        self, stream: str, subject: str, *, after: int, count: int, timeout_s: float
    ) -> list[Message]:
        """Up to `count` messages of one subject behind `after` (ADR-31 batch get, any replica).

        Raises LogUnavailable. Fewer than `count` where a replica lags or the time ran out.
        """
        inbox = self._client.new_inbox()
        request = {"seq": after + 1, "next_by_subj": subject, "batch": count}
        target = f"$JS.API.DIRECT.GET.{stream}"
        async with self.subscribe(inbox) as answers:
            try:
                await self._client.publish(target, json.dumps(request).encode(), reply=inbox)
            except (nats.errors.Error, *DISCONNECTED) as error:
                raise LogUnavailable from error
            return await collect(answers, timeout_s)

    @asynccontextmanager
    async def subscribe(self, subject: str) -> AsyncGenerator[Feed]:
        """What is heard on a subject of core NATS. Raises LogUnavailable.

        What is read on this bus inside the context is read after the subscription was made.
        """
        if not self.is_connected:
            raise LogUnavailable
        feed = Feed(self._client, subject)
        self._feeds.add(feed)
        try:
            await feed.open()
            yield feed
        finally:
            self._feeds.discard(feed)
            await feed.close()

    # Consumers.

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Raises LogUnavailable."""
        config = nats.js.api.ConsumerConfig(
            durable_name=spec.name,
            filter_subject=spec.filter_subject,
            ack_policy=nats.js.api.AckPolicy.EXPLICIT,
            ack_wait=spec.ack_wait_s,
            max_deliver=-1,
            max_ack_pending=spec.max_ack_pending,
            max_waiting=64,
        )
        await self._call(self._js.add_consumer(spec.stream, config))

    async def add_follower(self, stream: str, *, after: int) -> str:
        """An ephemeral consumer that needs no acks, from behind `after`; its name."""
        config = nats.js.api.ConsumerConfig(
            deliver_policy=nats.js.api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=nats.js.api.AckPolicy.NONE,
            inactive_threshold=60,
            mem_storage=True,
            num_replicas=1,
        )
        info = await self._call(self._js.add_consumer(stream, config))
        return str(info.name)

    @asynccontextmanager
    async def puller(self, stream: str, consumer: str) -> AsyncGenerator[Puller]:
        """Raises LogUnavailable."""
        if not self.is_connected:
            raise LogUnavailable
        puller = Puller(self._client, stream, consumer)
        await puller.open()
        self._pullers.add(puller)
        try:
            yield puller
        finally:
            self._pullers.discard(puller)
            await puller.close()

    async def ack(self, ack_subject: str, *, timeout_s: float = 5) -> bool:
        """Acknowledge and wait until the server has it; False where it did not say so in time."""
        if not self.is_connected:
            return False
        try:
            await self._client.request(ack_subject, b"+ACK", timeout=timeout_s)
        except (TimeoutError, nats.errors.Error, *DISCONNECTED):
            return False
        return True

    async def renew(self, ack_subject: str) -> None:
        """Start the entry's ack wait anew."""
        await self.publish(ack_subject, b"+WPI")

    async def nak(self, ack_subject: str) -> None:
        """Give the entry back for delivery at once."""
        await self.publish(ack_subject, b"-NAK")


def _code(error: Exception) -> int | None:
    return error.err_code if isinstance(error, nats.js.errors.APIError) else None


async def _shut(client: Client) -> None:
    """More than once: a reconnect that succeeds meanwhile undoes nats-py's close."""
    while client.is_connected or client.is_connecting or client.is_reconnecting:
        with suppress(OSError, nats.errors.Error):
            await client.close()
