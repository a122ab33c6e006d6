"""Schemas of the requests and answers that administer endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from events.ids import ENDPOINT_ID, NEW_ENDPOINT_ID
from events.store.records import EngineKind, Precision, StoredEndpoint
from serve_app.key_schemas import Members, Name
from serve_app.openapi.document import EXAMPLE_CHECKPOINT, model_body
from settings.graph import Compatibility

_DAY_S = 86400.0
_LONGEST_LIST = 100
_MOST_NAMES = 16
_MOST_NODE_TYPES = 2000
_OWN_RESOURCES = {"CPU": "cpus", "GPU": "gpus"}


def _not_cpu_or_gpu(value: Any) -> Any:
    for name in _OWN_RESOURCES.keys() & (value if isinstance(value, dict) else ()):
        raise ValueError(f"write {name} as `{_OWN_RESOURCES[name]}`")
    return value


def _few(value: Any) -> Any:
    """Refuse too many names before each name is validated."""
    if isinstance(value, dict) and len(value) > _MOST_NAMES:
        raise ValueError(f"has {len(value)} names, but at most {_MOST_NAMES} are allowed")
    return value


Checkpoint = Annotated[
    str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")
]
Seconds = Annotated[float, Field(gt=0, le=30 * _DAY_S, allow_inf_nan=False)]
ResourceName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.:/-]{0,63}$")]
Amount = Annotated[float, Field(ge=0.0001, le=1e12, allow_inf_nan=False)]
ServerUrl = Annotated[str, Field(max_length=255, pattern=r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")]
AbsolutePath = Annotated[str, Field(max_length=1024, pattern=r"^/[^\x00-\x1f]*$")]
ServerArgument = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]*$")]
NodeType = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f]*$")]
NodeTypes = Annotated[
    tuple[NodeType, ...], Field(min_length=1, max_length=_MOST_NODE_TYPES, fail_fast=True)
]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,126}$")]
LabelValue = Annotated[
    str,
    Field(
        pattern=r"^!?(in\([A-Za-z0-9_.-]{1,63}(, ?[A-Za-z0-9_.-]{1,63}){0,15}\)"
        r"|[A-Za-z0-9_.-]{1,63})$"
    ),
]


class EndpointMembers(Members):
    """An absent member is unchanged, or has its default in a new endpoint. Null is the default."""

    engine: EngineKind | None = Field(
        default=None,
        description="`darkroom` (the default), or `comfyui`: the graphs run on a ComfyUI server, "
        "with all of its nodes. Only administrators may set it and the members of `comfyui`",
    )
    fallback: Annotated[str, Field(pattern=ENDPOINT_ID)] | None = Field(
        default=None,
        description="The endpoint that runs the workflows which only its ComfyUI server can run. "
        "Default: such workflows are refused",
    )
    comfyui_url: ServerUrl | None = Field(
        default=None,
        description="With the engine `comfyui`: the address of a ComfyUI server that runs already",
    )
    comfyui_dir: AbsolutePath | None = Field(
        default=None,
        description="With the engine `comfyui`: the folder of a ComfyUI install on the machines of "
        "the workers. Each worker starts a server of its own",
    )
    comfyui_python: AbsolutePath | None = Field(
        default=None,
        description="The Python interpreter of the install. Default: the one in its virtual "
        "environment",
    )
    comfyui_args: tuple[ServerArgument, ...] | None = Field(
        default=None,
        max_length=_LONGEST_LIST,
        description="Further arguments of the install's `main.py`, such as `--lowvram`",
    )
    comfyui_max_jobs: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="The number of jobs after which the server of the install is restarted. "
        "Default: it is not restarted",
    )
    comfyui_max_memory_gib: float | None = Field(
        default=None,
        gt=0,
        le=10**6,
        allow_inf_nan=False,
        description="The resident memory in GiB, of the install's server and the processes that it "
        "started, above which the server is restarted after a job. Default: no limit",
    )
    comfyui_required_nodes: NodeTypes | None = Field(
        default=None,
        description="With the engine `comfyui`: the node types without which no worker is ready",
    )
    comfyui_allowed_nodes: NodeTypes | None = Field(
        default=None,
        description="With the engine `comfyui`: the only node types that workflows may have. "
        "Default: all",
    )
    comfyui_denied_nodes: NodeTypes | None = Field(
        default=None,
        description="With the engine `comfyui`: the node types that workflows may not have",
    )
    comfyui_partner_nodes: bool | None = Field(
        default=None,
        description="Whether the install's server has the partner nodes, which send data to other "
        "companies. Default: false",
    )
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="The checkpoint of diffusion jobs that do not name one. Default: the first "
        "allowed checkpoint",
    )
    checkpoints: Annotated[tuple[Checkpoint, ...], Field(fail_fast=True)] | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_LIST,
        description="The checkpoints that jobs of this endpoint may use. Default: all",
    )
    gpus: float | None = Field(
        default=None,
        ge=0,
        le=64,
        allow_inf_nan=False,
        description="GPUs of one worker: a fraction or a whole number. Default: 1 if the cluster "
        "has a GPU",
    )
    cpus: float | None = Field(
        default=None,
        ge=0.001,
        le=1024,
        allow_inf_nan=False,
        description="CPUs of one worker. Default: 1",
    )
    resources: (
        Annotated[
            dict[ResourceName, Amount], BeforeValidator(_not_cpu_or_gpu), BeforeValidator(_few)
        ]
        | None
    ) = Field(
        default=None,
        max_length=_MOST_NAMES,
        description="Other Ray resources that one worker takes. Only administrators may set them",
    )
    labels: Annotated[dict[LabelName, LabelValue], BeforeValidator(_few)] | None = Field(
        default=None,
        max_length=_MOST_NAMES,
        description="Ray labels that the node of a worker must have, such as "
        "`ray.io/accelerator-type`. A value may be `!a`, `in(a,b)` or `!in(a,b)`",
    )
    min_workers: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="The number of workers that always exist. Default: 0",
    )
    max_workers: int | None = Field(
        default=None, ge=1, le=1000, description="The largest number of workers. Default: 1"
    )
    jobs_per_worker: int | None = Field(
        default=None,
        ge=0,
        le=1024,
        description="The largest number of jobs that a worker runs at the same time. 0 (the "
        "default): as many as suit its device",
    )
    idle_timeout_s: float | None = Field(
        default=None,
        ge=0,
        le=7 * _DAY_S,
        allow_inf_nan=False,
        description="Seconds for which a worker above the minimum may be idle",
    )
    job_timeout_s: Seconds | None = Field(
        default=None,
        description="Seconds from the submission of a job to its end. The limit of the service "
        "applies too",
    )
    queue_timeout_s: Seconds | None = Field(
        default=None,
        description="Seconds from the submission of a job to its first attempt; at most the time "
        "that the job may take",
    )
    max_attempts: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="The most attempts that may fail because of the job itself",
    )
    max_queued: int | None = Field(
        default=None, ge=0, le=10**6, description="The most jobs that wait or run; usually 10,000"
    )
    max_pixels: int | None = Field(
        default=None,
        ge=256,
        le=2**28,
        description="The largest width x height x batch of a job; usually 16,777,216",
    )
    max_steps: int | None = Field(
        default=None, ge=1, le=10_000, description="The most steps of a job. Default: 10,000"
    )
    max_cost: float | None = Field(
        default=None,
        ge=0,
        le=1e15,
        allow_inf_nan=False,
        description="The most megapixel-steps of one job; 0: no limit",
    )
    precision: Precision | None = Field(
        default=None,
        description="Precision of UNets. `auto` (the default): float16 with a GPU, float32 without",
    )
    channels_last: bool | None = Field(
        default=None, description="Whether UNets use the channels-last memory format"
    )
    compiler: Literal["inductor"] | None = Field(
        default=None,
        description="Backend of torch.compile for UNets. Default: UNets are not compiled",
    )
    compatibility: Compatibility | None = Field(
        default=None, description="The compatibility of diffusion requests that do not set one"
    )

    def given(self) -> dict[str, Any]:
        """Return the members of `Endpoint` that the body contains, including null ones."""
        return self.model_dump(include=set(EndpointMembers.model_fields), exclude_unset=True)


class NewEndpoint(EndpointMembers):
    id: str = Field(
        pattern=NEW_ENDPOINT_ID,
        description="The id by which requests name the endpoint: `?endpoint=<id>`",
    )
    owner: Name | None = Field(
        default=None,
        description="The only owner whose jobs the endpoint accepts. Absent: the owner of the key; "
        "for an administrator's key, the endpoint accepts the jobs of all owners",
    )


class EndpointChanges(EndpointMembers):
    draining: bool = Field(
        default=False,
        description="Whether the endpoint accepts no more jobs and keeps no idle worker",
    )
    revision: int | None = Field(
        default=None,
        ge=1,
        le=2**62,
        description="The revision that the endpoint must have. If it has another one, nothing "
        "changes and the answer is 409",
    )

    def given(self) -> dict[str, Any]:
        draining = {"draining"} & self.model_fields_set
        return super().given() | dict.fromkeys(draining, self.draining)


_EXAMPLE: dict[str, Any] = {
    "id": "portraits",
    "checkpoint": EXAMPLE_CHECKPOINT,
    "checkpoints": [EXAMPLE_CHECKPOINT],
    "gpus": 0,
    "max_workers": 2,
    "job_timeout_s": 600,
    "max_queued": 1000,
}
CREATE_BODY = model_body(NewEndpoint, _EXAMPLE)
CHANGE_BODY = model_body(EndpointChanges, {"max_workers": 1})


_EXAMPLE_ROW: dict[str, Any] = {
    "id": "portraits",
    "owner": "alice",
    "revision": 3,
    "state": "open",
    "engine": "darkroom",
    "checkpoint": EXAMPLE_CHECKPOINT,
    "checkpoints": [EXAMPLE_CHECKPOINT],
    "gpus": 0,
    "cpus": 1,
    "min_workers": 0,
    "max_workers": 2,
    "jobs_per_worker": 0,
    "max_queued": 1000,
    "max_pixels": 16777216,
    "max_steps": 10000,
}


class EndpointInfo(BaseModel):
    """An absent member has the value of the settings."""

    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE_ROW})

    id: str
    owner: str | None = Field(
        default=None,
        description="The owner whose jobs it accepts. Absent: it accepts the jobs of all owners",
    )
    revision: int = Field(description="Increases by one with each change")
    state: Literal["open", "draining", "deleting"]
    ends_at: datetime | None = Field(
        default=None,
        description="If the endpoint is being deleted: the time at which its waiting jobs fail",
    )
    engine: EngineKind
    fallback: str | None = None
    comfyui_url: str | None = None
    comfyui_dir: str | None = None
    comfyui_python: str | None = None
    comfyui_args: list[str] | None = None
    comfyui_max_jobs: int | None = None
    comfyui_max_memory_gib: float | None = None
    comfyui_required_nodes: list[str] | None = None
    comfyui_allowed_nodes: list[str] | None = None
    comfyui_denied_nodes: list[str] | None = None
    comfyui_partner_nodes: bool | None = None
    checkpoint: str | None = None
    checkpoints: list[str] | None = None
    gpus: float | None = None
    cpus: float
    resources: dict[str, float] | None = None
    labels: dict[str, str] | None = None
    min_workers: int
    max_workers: int
    jobs_per_worker: int
    idle_timeout_s: float | None = None
    job_timeout_s: float | None = None
    queue_timeout_s: float | None = None
    max_attempts: int | None = None
    max_queued: int
    max_pixels: int
    max_steps: int
    max_cost: float | None = None
    precision: str | None = None
    channels_last: bool | None = None
    compiler: str | None = None
    compatibility: str | None = None

    @classmethod
    def of(cls, stored: StoredEndpoint, /, **more: Any) -> Self:
        endpoint = stored.endpoint
        members = asdict(endpoint)
        is_draining = members.pop("draining")
        state = "deleting" if endpoint.ends_at else "draining" if is_draining else "open"
        return cls.model_validate(members | {"revision": stored.revision, "state": state} | more)


class ServerDescription(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: str | None = None
    failed_imports: list[str] = Field(
        description="The folders of the packs that could not be imported, as the log of a server "
        "that the worker has started says"
    )


class WorkerInfo(BaseModel):
    model_config = ConfigDict(extra="ignore")

    state: str = Field(
        description="`starting`, `ready` or `leaving`. A leaving worker gets no more jobs and is "
        "closed after its running jobs"
    )
    is_current: bool = Field(
        description="Whether the worker was made with the present values of the endpoint. A worker "
        "with old values is replaced soon"
    )
    running: int = Field(description="Jobs")
    checkpoints: list[str] = Field(
        description="The checkpoints of the jobs that the worker was given since its engine started"
    )
    trouble: str | None = Field(
        default=None,
        description="Why the worker is not ready, or what a ready worker lacks: the node packs "
        "that its ComfyUI server could not import",
    )
    server: ServerDescription | None = Field(
        default=None, description="The ComfyUI server that last answered, if the worker has one"
    )


class EndpointDetail(EndpointInfo):
    queued: int | None = Field(
        default=None, description="Jobs that wait or run; absent if the queue does not answer"
    )
    workers: list[WorkerInfo] | None = Field(
        default=None,
        description="This member and the following ones are absent if no dispatcher reports the "
        "endpoint",
    )
    running: int | None = Field(default=None, description="Jobs that run on workers")
    oldest_waiting_s: float | None = Field(
        default=None,
        description="Seconds since the submission of the job that has waited longest; absent if no "
        "job waits",
    )
    warm_checkpoints: list[str] | None = Field(
        default=None,
        description="Checkpoints of the jobs that ready workers were given since their engines "
        "started. They are usually still in memory, so a job with one of them usually loads "
        "nothing",
    )
    rate_per_s: float | None = Field(
        default=None,
        description="Jobs per second that ended in the last minute; absent if none ended",
    )


class EndpointPage(BaseModel):
    endpoints: list[EndpointInfo] = Field(description="Sorted by id")


def detail(
    stored: StoredEndpoint, *, queued: int | None, status: Mapping[str, Any] | None
) -> EndpointDetail:
    """Build the description of an endpoint. `status` is the status of its dispatcher, if known."""
    if status is None:
        return EndpointDetail.of(stored, queued=queued)
    workers = [WorkerInfo.model_validate(each) for each in status.get("workers", ())]
    ready = [worker for worker in workers if worker.state == "ready"]
    return EndpointDetail.of(
        stored,
        queued=queued,
        workers=workers,
        running=sum(worker.running for worker in workers),
        oldest_waiting_s=status.get("oldest_waiting_s"),
        warm_checkpoints=sorted({name for worker in ready for name in worker.checkpoints}),
        rate_per_s=status.get("rate_per_s"),
    )
