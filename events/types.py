"""The events of a job and of its delivery. `events.cloud_events` defines their wire form.

Types are only extended: a new field has a default, no field is removed, and unknown fields are
ignored. A change of meaning needs a type with a new version. A new type, or a new member of an
enumeration, must first be readable in one release. Only the next release may write it
(docs/adr/0015).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from storage.file_names import file_name


class JobCost(BaseModel):
    """The cost of a job, estimated from its request at acceptance."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    work: float = Field(description="Megapixel-steps")
    live_bytes: int = Field(description="The most bytes of values that are in memory at once")
    rows: int = Field(description="The most rows of conditioning of one sampler")
    tokens: int = Field(description="The most tokens of one conditioning")
    outputs: int = Field(description="The number of images and latents that the job saves")
    result_bytes: int = Field(default=0, description="The most bytes of the result files")


class Timing(BaseModel):
    """The time of the attempt that completed a job, by stage."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    stage_s: dict[str, float]
    """Seconds in each stage: `load`, `text`, `denoise`, `vae`, `upscale`, and `store`, which
    encodes and stores the results. The times include the time in which the device served other
    jobs. Later versions may have more stages.
    """
    rows_per_call: float | None = None
    """Rows in a call of the model, including those of other jobs; None if there was no call."""
    steps: int | None = None
    """Steps of the job's samplers; None if there were none."""


class Flavour(StrEnum):
    WORKFLOW = "workflow"
    DIFFUSION = "diffusion"


class Priority(StrEnum):
    """The classes that share an endpoint; see `actors.scheduler.fairness`."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class DeadLetter(StrEnum):
    """The reason why a job is on the list of dead letters."""

    UNDISPATCHABLE = "undispatchable"
    """The job failed to be dispatched too often, or only this job causes an error."""
    QUARANTINED = "quarantined"
    """An administrator stopped the job."""


class Blame(StrEnum):
    """The role of a job in the failure of its attempt, if it is not certainly the cause."""

    SUSPECT = "suspect"
    """The device worked for this job, or it is unknown whether it did. The next attempt is
    exclusive.
    """
    BYSTANDER = "bystander"
    """The device did not work for this job, or the failure has a cause outside the engine, for
    example a failure of the machine.
    """


class _Recorded(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class EventData(_Recorded):
    """The content of an event, which happened in the past. Immutable."""

    type_name: ClassVar[str]


class JobEvent(EventData):
    """An event of a job, stored in `JOBS`."""


class DeliveryEvent(EventData):
    """An event of a delivery, stored in `DELIVERIES`."""


class InputFile(_Recorded):
    """A file that a job uses, as it was at acceptance."""

    key: str
    digest: str
    """`sha256:` and the digest in hexadecimal."""
    width: int | None = None
    height: int | None = None
    """Height in pixels. For a latent, width and height are those of the decoded image."""


class Terms(_Recorded):
    """Limits and times of the endpoint at acceptance. Later changes apply to later jobs."""

    max_pixels: int
    """Limit of width x height x batch."""
    max_steps: int
    max_cost: float
    """Limit of megapixel-steps; 0: no limit."""
    max_attempts: int | None = None
    """The most attempts that may be blamed on the job. None: the setting of its worker."""
    queue_timeout_s: float | None = None
    """Seconds after the submission at which the job fails if no attempt has begun."""
    compatibility: str | None = None
    """The compatibility of a diffusion request that does not set one. None: that of ComfyUI."""


class Infotext(_Recorded):
    """The text that the WebUI writes into each image, without prompts and hashes."""

    settings: tuple[tuple[str, str], ...]
    """Names and values in their order, with the values of the first image."""
    seeds: tuple[int, ...]
    """The seed of each image."""
    variation_seeds: tuple[int, ...] = ()
    """The variation seed of each image, if the request varies its images."""


class NamedWorkflow(_Recorded):
    """The named workflow from which the graph of a job was made."""

    name: str
    version: int
    inputs: dict[str, Any]
    """The values of its inputs by name, with drawn seeds."""
    outputs: dict[str, str]
    """The names of its outputs by the id of the output node."""


class Compiled(_Recorded):
    """The result of compiling a diffusion request."""

    graph: dict[str, Any]
    """The node graph, in ComfyUI's API format."""
    first_index: dict[str, int]
    """The index of the first image that each output node makes."""
    infotext: Infotext | None = None
    """None if the images of the job contain no metadata."""


class Submitted(JobEvent):
    type_name = "darkroom.job.submitted.v1"
    flavour: Flavour
    owner: str
    key_id: str
    endpoint: str
    lane: int
    request: dict[str, Any]
    """The request body with drawn seeds, so that the job can be repeated."""
    compiled: Compiled | None = None
    """Set for a diffusion request. The request of a workflow is a graph already."""
    fingerprint: str
    """Hash of flavour, query and body as sent. A repeated request has the same hash."""
    images: int = 0
    """Number of requested images; 0 for a workflow if the number is not known before the run."""
    callback_url: str | None = None
    callback_events: tuple[str, ...] | None = None
    """The callbacks before the end: `started`, `image`. None: no such callbacks."""
    deadline_s: float = 3600.0
    """Seconds after the submission at which the job fails."""
    input_files: dict[str, InputFile] | None = None
    """The uploads that the workflow names; None if there are none."""
    alone: Literal[True] | None = None
    """Whether the job shares no model call with other jobs. Here and in the next two members, None
    stands for false.
    """
    preview: Literal[True] | None = None
    bare: Literal[True] | None = None
    """Whether the images contain no metadata."""
    image_format: str | None = None
    """Format of the images: `webp` or `jpeg`. None: PNG."""
    image_quality: int | None = None
    """Quality of WebP and JPEG images, 1 to 100; a WebP of 100 is lossless."""
    cost: JobCost | None = None
    """None only in the blank submission of an erased job."""
    retry_of: str | None = None
    """Id of the failed job that an administrator resubmitted as this one."""
    terms: Terms | None = None
    """None only in the blank submission of an erased job."""
    weight: float | None = None
    """Weight of the owner from the API key. None: 1."""
    priority: Priority | None = None
    """Priority from the API key. None: normal."""
    image_puts: tuple[str, ...] | None = None
    """Encrypted URLs for presigned uploads, by the index of the image; see
    `storage.service_secret`.
    """
    client_id: str | None = None
    """The client id of ComfyUI's websocket that receives messages about the job. None for jobs of
    other interfaces.
    """
    notes: tuple[str, ...] | None = None
    """Deviations from the request that were known at acceptance. None: there were none."""
    sealed_extra_data: str | None = None
    """Encrypted JSON with the members of `extra_data` that only a ComfyUI server reads, such as
    keys of partner nodes; see `storage.service_secret`.
    """
    workflow: NamedWorkflow | None = None
    """None for a request with its own graph or parameters."""

    @property
    def graph(self) -> Any:
        """The node graph to run, in ComfyUI's API format."""
        return self.request.get("prompt") if self.compiled is None else self.compiled.graph


class ComfyUIServer(_Recorded):
    """The ComfyUI server of an attempt, since its last start."""

    version: str | None = None
    """The version of ComfyUI, as the server states it."""
    packs: dict[str, str] | None = None
    """The commits of the node packs that are git repositories, by folder. None: unknown."""
    object_info: str | None = None
    """A digest of the node types when they were last read. None: they were not read yet."""


class Started(JobEvent):
    type_name = "darkroom.job.started.v1"
    attempt: int
    actor: str
    exclusive: Literal[True] | None = None
    """Whether no other job runs on the engine at the same time. None: others may run."""
    given_at: AwareDatetime | None = None
    """The time at which the dispatcher gave the job to its actor. None if jobs are not traced."""
    comfyui: ComfyUIServer | None = None
    """None on endpoints with Darkroom's own engine, or if the server did not answer in time."""


class Poster(_Recorded):
    """A small image that stands for a video: a JPEG in the folder of the job."""

    key: str
    size_bytes: int
    digest: str
    """`sha256:` and the digest in hexadecimal."""

    @property
    def name(self) -> str:
        """The name of the file in its URL."""
        return self.key.rpartition("/")[2]


class ImageStored(JobEvent):
    type_name = "darkroom.job.image_stored.v1"
    index: int
    attempt: int
    key: str
    size_bytes: int
    digest: str
    """`sha256:` and the digest in hex."""
    width: int
    height: int
    seed: int | None = None
    media_type: str | None = None
    """None: `image/png`. For a latent, width and height are those of the decoded image."""
    node: str | None = None
    """Id of the output node that made the image. None if it was not recorded."""
    duration_s: float | None = None
    """The duration of a video or a sound. None if the file has none, or if it is unknown."""
    poster: Poster | None = None
    """The poster of a video, if one could be made."""
    text: str | None = None
    """The content of a short text file. None for all other files."""
    notes: tuple[str, ...] | None = None
    """Deviations from the request that no earlier image of the job has. `Completed` has those of
    all images. None means that there are none.
    """

    @property
    def name(self) -> str:
        """The name of the file in its URL."""
        return file_name(self.index, self.media_type)

    @property
    def files(self) -> tuple[ImageStored | Poster, ...]:
        """The stored files with keys, sizes and digests: the file itself and its poster."""
        return (self,) if self.poster is None else (self, self.poster)


class AttemptFailed(JobEvent):
    type_name = "darkroom.job.attempt_failed.v1"
    attempt: int
    message: str
    blame: Blame | None = None
    """None: the attempt is blamed on the job."""
    code: str | None = None
    """A `FailureCode`. If this was the last attempt, the job ends with this code."""


class DispatchFailed(JobEvent):
    """The job was given to a job actor, but no attempt began."""

    type_name = "darkroom.job.dispatch_failed.v1"
    failure: int
    """The number of dispatch failures of the job so far, including this one."""
    message: str


class CancelRequested(JobEvent):
    type_name = "darkroom.job.cancel_requested.v1"


class Completed(JobEvent):
    type_name = "darkroom.job.completed.v1"
    images: int
    timing: Timing | None = None
    """None if the job had nothing left to run."""
    beside: tuple[str, ...] | None = None
    """The spans of attempts that shared device calls with this job, as `<trace>-<span>`. None if no
    attempt was traced.
    """
    notes: tuple[str, ...] | None = None  # Deviations from the request.


class FailedNode(_Recorded):
    """The node of the graph that raised the exception which ended a job."""

    id: str
    class_type: str
    exception: str
    """The name of the exception's class, with its module unless it is a builtin one."""


class Failed(JobEvent):
    type_name = "darkroom.job.failed.v1"
    message: str
    dead_letter: DeadLetter | None = None
    """Why the job is a dead letter. None if it is none."""
    code: str | None = None
    """A `FailureCode`: the reason of the failure for programs. None if no code fits."""
    node: FailedNode | None = None
    """None if no node is known to have failed."""


class Cancelled(JobEvent):
    type_name = "darkroom.job.cancelled.v1"
    message: str = "The job was cancelled."


class Erased(JobEvent):
    """The content of the job was erased. This event is the last one of the job, and later the only
    one. It contains nothing of the content.
    """

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
    """What was sent: `started`; `image-` and the index of an image; `put-` and the index of an
    image for a presigned upload. None: the callback of the end.
    """
    is_last: Literal[True] | None = None
    """Whether no other attempt of this callback follows, because it was delivered or given up. None
    for the callback of the end.
    """


class CallbackDelivered(DeliveryEvent):
    type_name = "darkroom.callback.delivered.v1"
    attempt: int


class CallbackExhausted(DeliveryEvent):
    type_name = "darkroom.callback.exhausted.v1"
    attempts: int
    message: str


class CallbackWithheld(DeliveryEvent):
    """Stored once, when the circuit breaker of a receiver delays a delivery for the first time."""

    type_name = "darkroom.callback.withheld.v1"


class RedeliveryRequested(DeliveryEvent):
    type_name = "darkroom.callback.redelivery_requested.v1"


class Unreadable(EventData):
    """An event that cannot be read; `fold` raises JobUnreadable at such an event."""


class Unknown(Unreadable):
    """An event of a later version, with a type or an enumeration member that is new."""

    type_name = "unknown"
    original_type: str


class Broken(Unreadable):
    """A message that is not an event. Its time and version are unknown."""

    type_name = "broken"
    why: str


End = Completed | Failed | Cancelled

EVENT_TYPES: dict[str, type[EventData]] = {
    each.type_name: each for base in (JobEvent, DeliveryEvent) for each in base.__subclasses__()
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a job or of its delivery."""

    id: str
    """A UUIDv7, also used as `Nats-Msg-Id`. A repeated append has the same id."""
    job_id: str
    version: int
    """The number of the event among the events of the same job or delivery, from 1."""
    time: datetime
    data: EventData
    traceparent: str | None = None
    position: int = 0
    """The sequence in the stream; 0 before the event is stored. It is not part of the wire form."""
    size_bytes: int = field(default=0, compare=False)
    """The size of the stored wire form in bytes."""
