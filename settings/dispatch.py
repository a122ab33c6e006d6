"""How jobs come to workers, when waiting ends, and the Ray of a single machine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group

LONGEST_DRAIN_S = 86400.0
"""The longest that an endpoint that is deleted may work off its jobs."""


class DispatchSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    job_timeout_s: PositiveFloat = 3600.0
    """How long a job may take from its submission to its end before it fails."""
    deadlines_period_s: PositiveFloat = 1.0
    """How often the dispatcher looks for jobs on the queue whose time is over."""
    max_dispatch_failures: PositiveInt = 5
    """How many actors a job may be given to that die before an attempt begins; then it fails and
    becomes a dead letter."""
    fair_turn_cost: PositiveFloat = 10.0
    """How many megapixel-steps an owner of weight 1 has of an endpoint before it is the next one's
    turn. A dearer job is one turn and delays those that follow it."""
    jobs_in_hand: PositiveInt = 20_000
    """Among how many jobs that wait on an endpoint owners have turns. Of more than that each of
    the 8 readers of the queue offers one at a time, and an owner has one, by the hash of its name.
    Each takes some 1 kB of the dispatcher; 10,000 take 2 % of a core of NATS."""
    warm_wait_s: Annotated[float, Field(ge=0)] = 3.0
    """How long a job whose turn has come waits for a worker that has its checkpoint loaded, while
    others have room and would have to load it. A fifth to a half of the time of a load is best."""
    jobs_per_actor: Annotated[int, Field(ge=0)] = 0
    """How many jobs one actor runs before it is replaced; 0 is 1 with a GPU and 1000 without:
    the start of an actor takes 1.4 s of CPU."""
    spare_job_actors: PositiveInt = 2
    """How many job actors of a worker are ready for further jobs while none runs. Beside jobs that
    run there are half as many more."""
    job_actors_starting: Annotated[int, Field(ge=0)] = 0
    """How many further job actors of a worker start at the same time; 0 is 4 with a GPU and 1
    without, where they take the processor from the jobs that run."""
    job_actor_idle_s: PositiveFloat = 300.0
    """How long a job actor that is more than that is kept after it was needed."""
    worker_idle_s: PositiveFloat = 300.0
    """How long a worker above the minimum may be idle before it is closed."""
    worker_unwanted_s: PositiveFloat = 60.0
    """How long a worker that is not ready yet is kept once no job needs it. One that waits for room
    asks the cluster for a node as long as it is there."""
    worker_start_s: PositiveFloat = 300.0
    """How long the engine of a worker may take until it answers, or not answer, before the worker
    gives its place back."""
    worker_start_deaths: PositiveInt = 5
    """How often an engine may end for good without an answer in between before its worker gives its
    place back."""
    worker_retry_first_s: PositiveFloat = 10.0
    """How long after that another worker is opened; the pause doubles with each one that does not
    come up either."""
    worker_retry_longest_s: PositiveFloat = 600.0
    """The longest pause before a worker is opened again."""
    worker_replace_s: Annotated[float, Field(ge=0)] = 30.0
    """How long a worker that replaces one, because its endpoint was changed, waits for room before
    the old one makes room for it."""
    dispatchers: Annotated[int, Field(ge=1, le=16)] = 1
    """How many processes dispatch the endpoints, of which each takes its share. More than there are
    endpoints stand by."""
    dispatcher_lease_s: PositiveFloat = 6.0
    """How long a dispatcher, or one of several projections or routers, may be silent before others
    take over."""
    endpoints_period_s: PositiveFloat = 2.0
    """How often the rows of the endpoints are read."""
    max_endpoints: Annotated[int, Field(ge=0)] = 100
    """How many endpoints there may be in all, with the default one; 0 is any number. Each takes 8
    consumers of NATS, which has 1000 unless it is set up otherwise."""
    endpoint_drain_s: Annotated[float, Field(ge=0, le=LONGEST_DRAIN_S)] = 300.0
    """How long an endpoint that is deleted works off the jobs that it has, unless the request says
    it; then those that still wait fail."""
    endpoint_gone_s: PositiveFloat = 60.0
    """How long after the row of an endpoint is gone its jobs fail and its workers are closed, in
    case the row comes back."""
    workers_kept_s: Annotated[float, Field(ge=0)] = 60.0
    """How long workers stay while no dispatcher is there, as after the end of the application, for
    one that comes. Those that run a job stay until it has ended. With 0 all stay for good. Under
    `darkroom up` they end with their Ray, whatever this is."""
    ray_calls: PositiveInt = 8
    """How many calls of Ray that block the dispatcher makes at the same time."""
    requeue_period_s: PositiveFloat = 60.0
    """How often open jobs are compared with the queue, and jobs with an event that could not be
    read are looked at again."""


class RaySettings(Group):
    """The Ray that `darkroom up` starts on this machine."""

    model_config = SettingsConfigDict(env_prefix="DARKROOM_RAY_")

    num_gpus: Annotated[int, Field(ge=0)] | None = None
    """How many GPUs the Ray of `darkroom up` declares; if unset, all that it finds."""
