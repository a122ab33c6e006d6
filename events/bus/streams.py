"""Streams, subjects and durable consumers: every name on the bus, in one place.

| stream       | subjects                             | is                                      |
|--------------|--------------------------------------|-----------------------------------------|
| `JOBS`       | `jobs.<p>.<job_id>`                  | the log: every event of a job           |
| `JOBS_<i>`   | the same, of some partitions          | the log as several streams              |
| (republished)| `events.<p>.<job_id>`                | stored events, for subscribers           |
| `QUEUE`      | `queue.<endpoint>.<lane>.<job_id>`   | what waits or runs; rebuildable         |
| `CALLBACKS`  | `callbacks.due-<part>.<job_id>`      | deliveries that wait, now               |
|              | `callbacks.scheduled-<part>.<job_id>`| or later; of older versions: no part    |
| `DELIVERIES` | `deliveries.<p>.<job_id>`            | the events of each delivery              |
| `CANARY`     | `canary.<name>`                      | is the disk still taking writes?        |
| (core NATS)  | `progress.<job_id>`                  | steps done; never stored                |
| (core NATS)  | `endpoints.status.<endpoint>`        | asks how an endpoint is; never stored   |
| (core NATS)  | `dispatchers.running`                | running jobs by owner; never stored     |
| (core NATS)  | `metrics`                            | asks every process; never stored        |
"""

from __future__ import annotations

from dataclasses import dataclass

from events.ids import LANES, PARTITIONS, READERS, partition_of
from events.streams.log_streams import ONE_STREAM, LogStream, LogStreams
from events.wire.callback_keys import (
    ALL_DIVIDED,
    DIVIDED,
    UNDIVIDED,
    job_id_of,
    part_of,
    single_parts,
)

JOBS = "JOBS"
QUEUE = "QUEUE"
CALLBACKS = "CALLBACKS"
DELIVERIES = "DELIVERIES"
CANARY = "CANARY"

REPUBLISH_FROM = "jobs.*.*"
REPUBLISH_TO = "events.{{wildcard(1)}}.{{wildcard(2)}}"
PROGRESS_WILDCARD = "progress.*"
METRICS_SUBJECT = "metrics"
STATUS_WILDCARD = "endpoints.status.*"
RUNNING_SUBJECT = "dispatchers.running"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    name: str
    subjects: tuple[str, ...]
    work_queue: bool = False
    is_log: bool = False
    """Limited in bytes, refuses what is over; what it stores is republished."""
    scheduled: bool = False
    last_only: bool = False
    """Keep only the last message of each subject."""


_OTHERS = (
    StreamSpec(QUEUE, ("queue.*.*.*",), work_queue=True),
    StreamSpec(CALLBACKS, ("callbacks.*.*",), work_queue=True, scheduled=True),
    StreamSpec(DELIVERIES, ("deliveries.*.*",)),
    StreamSpec(CANARY, ("canary.*",), last_only=True),
)


def log_stream_name(stream: LogStream) -> str:
    return JOBS if stream.streams.count == 1 else f"{JOBS}_{stream.index}"


def log_stream_names(streams: LogStreams) -> tuple[str, ...]:
    return tuple(map(log_stream_name, streams.all()))


LOG_STREAM_NAMES = (JOBS, *(f"{JOBS}_{index}" for index in range(PARTITIONS)))
"""Of whatever number of streams."""


def is_log_stream(name: str) -> bool:
    return name in LOG_STREAM_NAMES


def log_subjects(stream: LogStream) -> tuple[str, ...]:
    if stream.streams.count == 1:
        return (REPUBLISH_FROM,)
    partitions = stream.streams.partitions(stream.index)
    return tuple(f"jobs.{partition}.*" for partition in partitions)


def stream_specs(streams: LogStreams) -> tuple[StreamSpec, ...]:
    log = (StreamSpec(log_stream_name(s), log_subjects(s), is_log=True) for s in streams.all())
    return (*log, *_OTHERS)


STREAMS = stream_specs(ONE_STREAM)
_ONE = LogStream()


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable pull consumer with explicit acks. Redelivers without limit."""

    stream: str
    name: str
    subjects: tuple[str, ...]
    ack_wait_s: float
    max_ack_pending: int


def router_consumer(stream: LogStream = _ONE) -> ConsumerSpec:
    name = log_stream_name(stream)
    return ConsumerSpec(name, "router", (REPUBLISH_FROM,), ack_wait_s=30, max_ack_pending=1000)


def queue_consumer(endpoint: str, reader: int, *, lease_s: float) -> ConsumerSpec:
    """Unlimited pending acks: an entry stays pending while its job runs."""
    subjects = tuple(f"queue.{endpoint}.{lane}.*" for lane in range(reader, LANES, READERS))
    return ConsumerSpec(QUEUE, f"{endpoint}-{reader}", subjects, lease_s, max_ack_pending=-1)


def is_older_consumer(name: str, endpoint: str) -> bool:
    """Whether it is of a version that had a consumer for each lane of the endpoint."""
    return endpoint_of_consumer(name) == endpoint and int(name.rpartition("-")[2]) >= READERS


def endpoint_of_consumer(name: str) -> str | None:
    """Whose lanes a consumer of the queue reads; None where an operator made it."""
    endpoint, _, reader = name.rpartition("-")
    return endpoint if endpoint and reader.isdecimal() else None


def callbacks_consumer(part: str, *, most_held: int, hold_s: float) -> ConsumerSpec:
    """What is in no part has the consumer of older versions, so that they can run beside us."""
    subjects = tuple(_callbacks_subject("due", each, "*") for each in single_parts([part]))
    return ConsumerSpec(CALLBACKS, _with_part("callbacks", part), subjects, hold_s, most_held)


def overlapping_consumers(part: str) -> frozenset[str]:
    """A work queue has no message for two of its consumers, and refuses the second."""
    others = {UNDIVIDED: (), ALL_DIVIDED: DIVIDED}.get(part, (ALL_DIVIDED,))
    return frozenset(_with_part("callbacks", each) for each in others)


def job_subject(job_id: str) -> str:
    return f"jobs.{partition_of(job_id)}.{job_id}"


def event_subject(job_id: str) -> str:
    return f"events.{partition_of(job_id)}.{job_id}"


def delivery_subject(job_id: str) -> str:
    return f"deliveries.{partition_of(job_id)}.{job_id}"


def queue_subject(endpoint: str, lane: int, job_id: str) -> str:
    return f"queue.{endpoint}.{lane % LANES}.{job_id}"


def endpoint_subjects(endpoint: str) -> str:
    """The entries of all lanes of an endpoint."""
    return f"queue.{endpoint}.*.*"


def due_subject(key: str) -> str:
    return _callbacks_subject("due", part_of(key), job_id_of(key))


def scheduled_subject(key: str) -> str:
    return _callbacks_subject("scheduled", part_of(key), job_id_of(key))


def scheduled_subjects(part: str) -> str:
    return _callbacks_subject("scheduled", part, "*")


def any_callback_subject(job_id: str) -> str:
    """Due or parked, in whichever part."""
    return f"callbacks.*.{job_id}"


def callback_key_in(subject: str) -> str:
    _, kind, job_id = subject.split(".")
    part = kind.partition("-")[2]
    return f"{part}.{job_id}" if part else job_id


def _callbacks_subject(kind: str, part: str, job_id: str) -> str:
    return f"callbacks.{_with_part(kind, part)}.{job_id}"


def _with_part(name: str, part: str) -> str:
    return f"{name}-{part}" if part else name


def progress_subject(job_id: str) -> str:
    return f"progress.{job_id}"


def status_subject(endpoint: str) -> str:
    return f"endpoints.status.{endpoint}"


def endpoint_in(subject: str) -> str:
    """Which one a question is about."""
    return subject.rpartition(".")[2]


def job_id_in(subject: str) -> str:
    """Whose it is, by its last token."""
    return subject.rpartition(".")[2]
