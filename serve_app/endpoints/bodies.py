"""Bodies of the requests that make and change endpoints: their members and the bounds of each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from events.ids import ENDPOINT_ID
from events.store.records import Precision
from serve_app.access.key_bodies import Members, Name
from serve_app.openapi.request_bodies import EXAMPLE_CHECKPOINT, model_body
from settings.graph import Compatibility

_DAY_S = 86400.0
_LONGEST_LIST = 100
_MOST_NAMES = 16
_OWN_RESOURCES = {"CPU": "cpus", "GPU": "gpus"}


def _not_cpu_or_gpu(value: Any) -> Any:
    for name in _OWN_RESOURCES.keys() & (value if isinstance(value, dict) else ()):
        raise ValueError(f"say {name} as `{_OWN_RESOURCES[name]}`")
    return value


def _few(value: Any) -> Any:
    """Before any of them is looked at: each would be an error of its own."""
    if isinstance(value, dict) and len(value) > _MOST_NAMES:
        raise ValueError(f"has {len(value)} names, at most {_MOST_NAMES} are taken")
    return value


Checkpoint = Annotated[
    str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")
]
Seconds = Annotated[float, Field(gt=0, le=30 * _DAY_S, allow_inf_nan=False)]
ResourceName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.:/-]{0,63}$")]
Amount = Annotated[float, Field(ge=0.0001, le=1e12, allow_inf_nan=False)]
LabelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,126}$")]
LabelValue = Annotated[
    str,
    Field(
        pattern=r"^!?(in\([A-Za-z0-9_.-]{1,63}(, ?[A-Za-z0-9_.-]{1,63}){0,15}\)"
        r"|[A-Za-z0-9_.-]{1,63})$"
    ),
]


class EndpointMembers(Members):
    """What is absent stays, or is as usual in a new one; null is as usual again."""

    checkpoint: Checkpoint | None = Field(
        default=None, description="Of diffusion jobs that name none; usually the first allowed"
    )
    checkpoints: Annotated[tuple[Checkpoint, ...], Field(fail_fast=True)] | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_LIST,
        description="Those that its jobs may use; usually all",
    )
    gpus: float | None = Field(
        default=None,
        ge=0,
        le=64,
        allow_inf_nan=False,
        description="Of one worker: a part of one, or whole ones; usually 1 where there are any",
    )
    cpus: float | None = Field(
        default=None, ge=0.001, le=1024, allow_inf_nan=False, description="Of one worker; usually 1"
    )
    resources: (
        Annotated[
            dict[ResourceName, Amount], BeforeValidator(_not_cpu_or_gpu), BeforeValidator(_few)
        ]
        | None
    ) = Field(
        default=None,
        max_length=_MOST_NAMES,
        description="Resources of Ray that one worker takes besides. For administrators",
    )
    labels: Annotated[dict[LabelName, LabelValue], BeforeValidator(_few)] | None = Field(
        default=None,
        max_length=_MOST_NAMES,
        description="Labels of Ray that a worker's node must have, such as "
        "`ray.io/accelerator-type`; a value may be `!a`, `in(a,b)` or `!in(a,b)`",
    )
    min_workers: int | None = Field(
        default=None, ge=0, le=1000, description="That there always are; usually 0"
    )
    max_workers: int | None = Field(default=None, ge=1, le=1000, description="Usually 1")
    jobs_per_worker: int | None = Field(
        default=None, ge=0, le=1024, description="At once; 0, as usual: as many as suit its device"
    )
    idle_timeout_s: float | None = Field(
        default=None,
        ge=0,
        le=7 * _DAY_S,
        allow_inf_nan=False,
        description="How long a worker above the minimum may be idle",
    )
    job_timeout_s: Seconds | None = Field(
        default=None, description="From submission to end; no longer than the service allows"
    )
    queue_timeout_s: Seconds | None = Field(
        default=None, description="From submission to the first attempt; no longer than the job's"
    )
    max_attempts: int | None = Field(
        default=None, ge=1, le=100, description="That may fail by the job's own doing"
    )
    max_queued: int | None = Field(
        default=None, ge=0, le=10**6, description="Jobs that wait or run; usually 10,000"
    )
    max_pixels: int | None = Field(
        default=None, ge=256, le=2**28, description="Width x height x batch; usually 16,777,216"
    )
    max_steps: int | None = Field(default=None, ge=1, le=10_000, description="Usually 10,000")
    max_cost: float | None = Field(
        default=None,
        ge=0,
        le=1e15,
        allow_inf_nan=False,
        description="Megapixel-steps of one job; 0 is any number",
    )
    precision: Precision | None = Field(
        default=None, description="Of UNets; `auto`, as usual: float16 with a GPU, else float32"
    )
    channels_last: bool | None = Field(
        default=None, description="Memory format of UNets, with their channels innermost"
    )
    compiler: Literal["inductor"] | None = Field(
        default=None, description="Of torch.compile, for UNets; usually none"
    )
    compatibility: Compatibility | None = Field(
        default=None, description="Whose meaning diffusion requests have that name none"
    )

    def given(self) -> dict[str, Any]:
        """The members of an `Endpoint` that the body has, null ones among them."""
        return self.model_dump(include=set(EndpointMembers.model_fields), exclude_unset=True)


class NewEndpoint(EndpointMembers):
    id: str = Field(pattern=ENDPOINT_ID, description="Named by jobs: `?endpoint=<id>`")
    owner: Name | None = Field(
        default=None,
        description="Whose jobs alone it takes. Where an administrator names none, everybody's; "
        "otherwise that of the key",
    )


class EndpointChanges(EndpointMembers):
    draining: bool = Field(
        default=False, description="Take no more jobs, and keep no worker without one"
    )
    revision: int | None = Field(
        default=None, ge=1, le=2**62, description="Change it only if it is at this one: else 409"
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
