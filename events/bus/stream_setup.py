"""The streams as the service wants them: made where they are missing, updated once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors
from nats.js import JetStreamContext

from events.bus.errors import STREAM_EXISTS_OTHERWISE
from events.bus.logs.splitting import split_if_empty
from events.bus.streams import (
    REPUBLISH_FROM,
    REPUBLISH_TO,
    StreamSpec,
    log_stream_name,
    log_subjects,
    stream_specs,
)
from events.streams.log_streams import ONE_STREAM, LogStream, LogStreams

logger = logging.getLogger(__name__)

_DUPLICATE_WINDOW_S = 120.0


class StreamSetup:
    def __init__(
        self, *, replicas: int, log_max_bytes: int, log_streams: LogStreams = ONE_STREAM
    ) -> None:
        """`log_max_bytes`: of all streams of the log together."""
        self._replicas = replicas
        self._log_streams = log_streams
        self._log_max_bytes = log_streams.bytes_each(log_max_bytes)
        self._updated: set[str] = set()
        """Streams that have had this process's configuration."""

    async def prepare(self, js: JetStreamContext) -> bool:
        """Whether all are there; one that cannot be made or updated holds up no other.

        Raises LogStreamsDiffer, and nothing was made; and what nats-py raises.
        """
        await split_if_empty(js, self._log_streams, self._log_config)
        ready = True
        for spec in stream_specs(self._log_streams):
            try:
                await self._prepare_stream(js, spec)
            except (TimeoutError, nats.errors.Error, OSError) as error:
                ready = False
                logger.warning(
                    "stream is not ready",
                    extra={"action": "prepare", "stream": spec.name, "error": str(error)},
                )
        return ready

    async def _prepare_stream(self, js: JetStreamContext, spec: StreamSpec) -> None:
        """Updated only once: a process that reconnects must not undo what a newer one has set.

        The size of the log is its operator's from the moment that it is there.
        """
        config = self._stream_config(spec)
        try:
            await js.add_stream(config)
        except nats.js.errors.APIError as error:
            if error.err_code != STREAM_EXISTS_OTHERWISE:
                raise
            if spec.name not in self._updated:
                there = (await js.stream_info(spec.name)).config
                kept = {"max_bytes": there.max_bytes, "first_seq": there.first_seq}
                await js.update_stream(config.evolve(**kept))
        self._updated.add(spec.name)

    def _log_config(
        self, stream: LogStream, first_sequence: int | None
    ) -> nats.js.api.StreamConfig:
        spec = StreamSpec(log_stream_name(stream), log_subjects(stream), is_log=True)
        return self._stream_config(spec).evolve(first_seq=first_sequence)

    def differing(self, spec: StreamSpec, there: Mapping[str, Any]) -> tuple[str, ...]:
        """Those members of a stream's configuration, as the server tells it, that are otherwise.

        The size of the log is not among them. What is off, the server leaves out.
        """
        wanted = self._stream_config(spec).as_dict()
        del wanted["max_bytes"]
        return tuple(
            sorted(name for name, each in wanted.items() if (there.get(name) or 0) != (each or 0))
        )

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
