"""All names in NATS: the streams, the subjects and the durable consumers.

| stream       | subjects                             | content                                 |
|--------------|--------------------------------------|-----------------------------------------|
| `JOBS`       | `jobs.<p>.<job_id>`                  | the log: every event of a job           |
| (republished)| `events.<p>.<job_id>`                | stored events, for subscribers          |
| `QUEUE`      | `queue.<endpoint>.<lane>.<job_id>`   | jobs that wait or run; rebuildable      |
| `CALLBACKS`  | `callbacks.due.<job_id>`             | deliveries that are due now             |
|              | `callbacks.scheduled.<job_id>`       | deliveries that are due later           |
| `DELIVERIES` | `deliveries.<p>.<job_id>`            | the events of each delivery             |
| `CANARY`     | `canary.<name>`                      | test writes, which show a full disk     |
| (core NATS)  | `progress.<job_id>`                  | progress of a job; never stored         |
| (core NATS)  | `endpoints.status.<endpoint>`        | status requests; never stored           |
| (core NATS)  | `metrics`                            | requests to every process; never stored |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
import nats.js.api
import nats.js.errors
from nats.js import JetStreamContext

from events.bus.nats_errors import STREAM_EXISTS_OTHERWISE
from events.ids import CONSUMERS, LANES, partition_of

JOBS = "JOBS"
QUEUE = "QUEUE"
CALLBACKS = "CALLBACKS"
DELIVERIES = "DELIVERIES"
CANARY = "CANARY"

REPUBLISH_FROM = "jobs.*.*"
SCHEDULED_CALLBACKS = "callbacks.scheduled.*"
REPUBLISH_TO = "events.{{wildcard(1)}}.{{wildcard(2)}}"
PROGRESS_WILDCARD = "progress.*"
METRICS_SUBJECT = "metrics"
STATUS_WILDCARD = "endpoints.status.*"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    name: str
    subjects: tuple[str, ...]
    work_queue: bool = False
    is_log: bool = False
    """Whether the stream is the log, which has a limit in bytes and is republished."""
    scheduled: bool = False
    last_only: bool = False
    """Whether the stream keeps only the last message of each subject."""


STREAMS = (
    StreamSpec(JOBS, (REPUBLISH_FROM,), is_log=True),
    StreamSpec(QUEUE, ("queue.*.*.*",), work_queue=True),
    StreamSpec(CALLBACKS, ("callbacks.*.*",), work_queue=True, scheduled=True),
    StreamSpec(DELIVERIES, ("deliveries.*.*",)),
    StreamSpec(CANARY, ("canary.*",), last_only=True),
)


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable pull consumer with explicit acks. It redelivers messages without limit."""

    stream: str
    name: str
    subjects: tuple[str, ...]
    ack_wait_s: float
    max_ack_pending: int


ROUTER_CONSUMER = ConsumerSpec(
    JOBS, "router", (REPUBLISH_FROM,), ack_wait_s=30, max_ack_pending=1000
)


def queue_consumer(endpoint: str, number: int, *, lease_s: float) -> ConsumerSpec:
    """Return the consumer of some lanes of an endpoint's queue.

    The number of pending acks is not limited, because an entry stays pending while its job runs.
    """
    subjects = tuple(f"queue.{endpoint}.{lane}.*" for lane in range(number, LANES, CONSUMERS))
    return ConsumerSpec(QUEUE, f"{endpoint}-{number}", subjects, lease_s, max_ack_pending=-1)


def endpoint_of_consumer(name: str) -> str | None:
    """Return the endpoint in a name of `queue_consumer`, or None for any other name."""
    endpoint, _, number = name.rpartition("-")
    return endpoint if endpoint and number.isdecimal() else None


def callbacks_consumer(*, max_unacknowledged: int, ack_wait_s: float) -> ConsumerSpec:
    return ConsumerSpec(
        CALLBACKS, "callbacks", ("callbacks.due.*",), ack_wait_s, max_unacknowledged
    )


def job_subject(job_id: str) -> str:
    return f"jobs.{partition_of(job_id)}.{job_id}"


def event_subject(job_id: str) -> str:
    return f"events.{partition_of(job_id)}.{job_id}"


def delivery_subject(job_id: str) -> str:
    return f"deliveries.{partition_of(job_id)}.{job_id}"


def queue_subject(endpoint: str, lane: int, job_id: str) -> str:
    return f"queue.{endpoint}.{lane % LANES}.{job_id}"


def endpoint_subjects(endpoint: str) -> str:
    """Return the pattern of the subjects of all entries of an endpoint."""
    return f"queue.{endpoint}.*.*"


def due_subject(job_id: str) -> str:
    return f"callbacks.due.{job_id}"


def scheduled_subject(job_id: str) -> str:
    return f"callbacks.scheduled.{job_id}"


def any_callback_subject(job_id: str) -> str:
    """Return the pattern of the due entry and the parked entry of the job."""
    return f"callbacks.*.{job_id}"


def progress_subject(job_id: str) -> str:
    return f"progress.{job_id}"


def status_subject(endpoint: str) -> str:
    return f"endpoints.status.{endpoint}"


def endpoint_in(subject: str) -> str:
    return subject.rpartition(".")[2]


def job_id_in(subject: str) -> str:
    return subject.rpartition(".")[2]


logger = logging.getLogger(__name__)

_DUPLICATE_WINDOW_S = 120.0


class StreamSetup:
    def __init__(self, *, replicas: int, log_max_bytes: int) -> None:
        self._replicas = replicas
        self._log_max_bytes = log_max_bytes
        self._updated: set[str] = set()
        """The names of the streams that this process has already created or updated."""

    async def prepare(self, js: JetStreamContext) -> bool:
        """Create or update all streams. Return whether all streams are ready.

        After a failure of one stream, the other streams are still prepared.
        """
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
        """Create the stream, or update an existing stream once in the life of this process.

        A second update, after a reconnect, could undo the settings of a newer version. The size
        limit of an existing log is the operator's choice and is never changed.
        """
        config = self._stream_config(spec)
        try:
            await js.add_stream(config)
        except nats.js.errors.APIError as error:
            if error.err_code != STREAM_EXISTS_OTHERWISE:
                raise
            if spec.name not in self._updated:
                there = (await js.stream_info(spec.name)).config
                await js.update_stream(config.evolve(max_bytes=there.max_bytes))
        self._updated.add(spec.name)

    def differing(self, spec: StreamSpec, there: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the sorted names of the settings in which a stream differs from its specification.

        `there` is the configuration of the stream from the server. The server leaves out settings
        without a value. `max_bytes` is not compared.
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
            # The log refuses messages beyond its limit. Scheduling needs discard=old.
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
