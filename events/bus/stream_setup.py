"""The streams as the service wants them: made where they are missing, updated once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors
from nats.js import JetStreamContext

from events.bus.streams import REPUBLISH_FROM, REPUBLISH_TO, STREAMS, StreamSpec

logger = logging.getLogger(__name__)

_STREAM_EXISTS_OTHERWISE = 10058
_DUPLICATE_WINDOW_S = 120.0


class StreamSetup:
    def __init__(self, *, replicas: int, log_max_bytes: int) -> None:
        self._replicas = replicas
        self._log_max_bytes = log_max_bytes
        self._updated: set[str] = set()
        """Streams that have had this process's configuration."""

    async def prepare(self, js: JetStreamContext) -> bool:
        """Whether all are there; one that cannot be made or updated holds up no other."""
        ready = True
        for spec in STREAMS:
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
            if error.err_code != _STREAM_EXISTS_OTHERWISE:
                raise
            if spec.name not in self._updated:
                there = (await js.stream_info(spec.name)).config
                await js.update_stream(config.evolve(max_bytes=there.max_bytes))
        self._updated.add(spec.name)

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
