"""The events of a job and of its delivery; `events.wire.cloud_events` has their wire form.

Types are additive: a field is added with a default, never removed, and passed over where it is not
known. What changes a meaning gets a type of a new version. A new type or name of an enumeration is
written one release after the first one that reads it (docs/adr/0015).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict

from events.job_cost import JobCost, Timing


class Flavour(StrEnum):
    WORKFLOW = "workflow"
    DIFFUSION = "diffusion"


class Priority(StrEnum):
    """The classes that share an endpoint; see `actors.waiting.classes`."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class DeadLetter(StrEnum):
    """Why a job is on the list of dead letters."""

    UNDISPATCHABLE = "undispatchable"
    """It failed to be dispatched too often, or the service met an error that only it causes."""
    QUARANTINED = "quarantined"
    """An administrator stopped it."""


class Blame(StrEnum):
    """What a failed attempt says about its job, where the failure is not surely its own."""

    SUSPECT = "suspect"
    """The device worked for it and maybe for others, so its next attempt is an exclusive one."""
    BYSTANDER = "bystander"
    """The device worked for others."""


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class EventData(_Recorded):
    """What an event says: something that happened, in the past tense. Immutable."""

    type_name: ClassVar[str]


class JobEvent(EventData):
    """What happened to a job; stored in `JOBS`."""


class DeliveryEvent(EventData):
    """What happened to the delivery of a job's callback; stored in `DELIVERIES`."""


class InputFile(_Recorded):
    """A file that a job takes, as it was when the job was accepted."""

    key: str
    digest: str
    """`sha256:` and hex."""
    width: int | None = None
    height: int | None = None
    """In pixels, as `width`; of a latent those of its image."""


class Terms(_Recorded):
    """What its endpoint took when the job was accepted. A later change holds for later jobs."""

    max_pixels: int
    """Width x height x batch."""
    max_steps: int
    max_cost: float
    """Megapixel-steps; 0 is any number."""
    max_attempts: int | None = None
    """How many attempts may be charged to it; None: as the settings of its worker have it."""
    queue_timeout_s: float | None = None
    """Seconds after the submission at which it is given up if no attempt has begun."""
    compatibility: str | None = None
    """Whose meaning a diffusion request has that does not say; None: ComfyUI's."""


class Submitted(JobEvent):
    type_name = "darkroom.job.submitted.v1"
    flavour: Flavour
    owner: str
    key_id: str
    endpoint: str
    lane: int
    request: dict[str, Any]
    """The body, its seeds drawn, so that the job can be repeated."""
    fingerprint: str
    """Hash of flavour, query and body as sent: tells a repeat from another request."""
    images: int = 0
    """Images asked for; 0 where only the run can tell (workflow)."""
    callback_url: str | None = None
    callback_events: tuple[str, ...] | None = None
    """What the caller is told of before the end: `started`, `image`; None is nothing."""
    deadline_s: float = 3600.0
    """Seconds after the submission at which the job is given up."""
    input_files: dict[str, InputFile] | None = None
    """The uploads that the workflow names; None where it names none."""
    alone: Literal[True] | None = None
    """It shares no call of the model with other jobs; as with the next two, None is no."""
    preview: Literal[True] | None = None
    bare: Literal[True] | None = None
    """Its images do not say how they were made."""
    image_format: str | None = None
    """Of its images: `webp` or `jpeg`; None is PNG."""
    image_quality: int | None = None
    """1 to 100 of these formats; a WebP of 100 is lossless."""
    cost: JobCost | None = None
    """None where the version that accepted it knew no costs."""
    retry_of: str | None = None
    """Id of the failed job that this one repeats: an administrator submitted it again."""
    terms: Terms | None = None
    """None where the version that accepted it recorded none: then those of its worker hold."""
    weight: float | None = None
    """Of its key among the owners that wait; None is 1."""
    priority: Priority | None = None
    """Of its key; None is normal."""
    image_puts: tuple[str, ...] | None = None
    """Where its images are put, by their indexes, each sealed (`storage.sealing`)."""
    client_id: str | None = None
    """Which websocket of ComfyUI's API is told of it; None where it came by another way."""


class Started(JobEvent):
    type_name = "darkroom.job.started.v1"
    attempt: int
    actor: str
    exclusive: Literal[True] | None = None
    """No other job runs on the engine meanwhile; None where others may."""
    given_at: AwareDatetime | None = None
    """When the dispatcher gave it to its actor; None where jobs are not traced."""


class ImageStored(JobEvent):
    type_name = "darkroom.job.image_stored.v1"
    index: int
    attempt: int
    key: str
    size_bytes: int
    digest: str
    """`sha256:` and hex."""
    width: int
    height: int
    seed: int | None = None
    media_type: str | None = None
    """None: `image/png`. A latent has the sides of the image that it decodes to."""
    node: str | None = None
    """Id of the output node that made it; None in events of older versions."""


class AttemptFailed(JobEvent):
    type_name = "darkroom.job.attempt_failed.v1"
    attempt: int
    message: str
    blame: Blame | None = None
    """The attempt is charged to the job where this is None, and only there."""
    code: str | None = None
    """A `FailureCode`, which the end of the job has if this was its last attempt."""


class DispatchFailed(JobEvent):
    """It was taken off its queue, and no attempt began."""

    type_name = "darkroom.job.dispatch_failed.v1"
    failure: int
    """Which one of this job, from 1."""
    message: str


class CancelRequested(JobEvent):
    type_name = "darkroom.job.cancel_requested.v1"


class Completed(JobEvent):
    type_name = "darkroom.job.completed.v1"
    images: int
    timing: Timing | None = None
    """None where nothing had to be run any more, and in events of older versions."""
    beside: tuple[str, ...] | None = None
    """The spans of attempts that shared device calls, `<trace>-<span>`; None without any traced."""
    notes: tuple[str, ...] | None = None  # what was done otherwise than asked


class Failed(JobEvent):
    type_name = "darkroom.job.failed.v1"
    message: str
    dead_letter: DeadLetter | None = None
    """Why it is on the list of dead letters; None where it is not."""
    code: str | None = None
    """A `FailureCode`: why it failed, for programs. None in events of older versions."""


class Cancelled(JobEvent):
    type_name = "darkroom.job.cancelled.v1"
    message: str = "The job was cancelled."


class Erased(JobEvent):
    """The last event of a job, and in the end the only one: nothing of its content is in it."""

    type_name = "darkroom.job.erased.v1"
    flavour: Flavour
    owner: str
    endpoint: str
    submitted_at: AwareDatetime


class CallbackAttempted(DeliveryEvent):
    type_name = "darkroom.callback.attempted.v1"
    attempt: int
    status: int | None = None
    latency_s: float
    error: str | None = None
    retry_at: datetime | None = None
    about: str | None = None
    """What it told of before the end: `started`, or `image-` and its index; `put-` and an index
    where that image was put. None is the end."""
    is_last: Literal[True] | None = None
    """No other try of that follows: it was taken, or given up. None of the end."""


class CallbackDelivered(DeliveryEvent):
    type_name = "darkroom.callback.delivered.v1"
    attempt: int


class CallbackExhausted(DeliveryEvent):
    type_name = "darkroom.callback.exhausted.v1"
    attempts: int
    message: str


class CallbackWithheld(DeliveryEvent):
    """Stored once, when a receiver's breaker first keeps a delivery from it."""

    type_name = "darkroom.callback.withheld.v1"


class RedeliveryRequested(DeliveryEvent):
    type_name = "darkroom.callback.redelivery_requested.v1"


class Unreadable(EventData):
    """Whoever folds a job or a delivery stops at it."""


class Unknown(Unreadable):
    """An event of a later version of Darkroom: of a new type, or with a name that is new here."""

    type_name = "unknown"
    original_type: str


class Broken(Unreadable):
    """A message that is no event. Neither its time nor its version is known."""

    type_name = "broken"
    why: str


End = Completed | Failed | Cancelled

EVENT_TYPES: dict[str, type[EventData]] = {
    each.type_name: each for base in (JobEvent, DeliveryEvent) for each in base.__subclasses__()
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, with its place in the history of a job."""

    id: str
    """UUIDv7, also `Nats-Msg-Id`: one per event instance, kept across retries."""
    job_id: str
    version: int
    """The place among the events on the same subject, from 1."""
    time: datetime
    data: EventData
    traceparent: str | None = None
    position: int = 0
    """Sequence in its stream; 0 while not stored. It is not on the wire."""
    size_bytes: int = field(default=0, compare=False)
    """Of its wire form as it was stored."""
