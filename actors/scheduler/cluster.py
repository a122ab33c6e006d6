"""Cluster: the protocol by which the scheduler finds and makes workers, engines and job actors.

`ray_cluster.py` implements the protocol with Ray. Tests implement it in memory.
"""

from __future__ import annotations

from typing import Protocol

from pydantic import SecretStr

from actors.worker.engine_process import EngineState
from actors.worker.job_actor import RunOutcome
from events.bus.queues import QueueEntry
from events.job import Job


class ActorDied(Exception):
    """The process of a job actor ended during a job."""


class ActorLost(ActorDied):
    """A job actor cannot be reached or was lost with its node. The job is not to blame."""


class ActorUnavailable(Exception):
    """An actor could not be found or made, or did not answer in time."""


class EngineGone(Exception):
    """The process of an engine has ended, and the dispatcher must make another process."""


class EngineRestarts(EngineGone):
    """The process of an engine has ended, and the cluster restarts it."""


class JobActor(Protocol):
    """The actor in one slot of a worker. `RayJobActor` implements it."""

    async def ready(self) -> str:
        """Wait until the actor is connected. Returns the name under which it writes events.

        Raises ActorUnavailable.
        """

    async def state(self) -> tuple[str | None, int]:
        """Return the id of the running job, and the number of jobs that the actor was given.

        Raises ActorUnavailable.
        """

    async def wait_idle(self) -> None:
        """Wait until no job runs. Raises ActorUnavailable."""

    async def run(self, entry: QueueEntry, job: Job, extra_data: SecretStr | None) -> RunOutcome:
        """Run the job of an entry (see `JobRunner.run` in `actors/worker/job_actor.py`).

        The dispatcher may have read `job` some seconds ago. Raises ActorDied, ActorLost.
        """

    async def retire(self) -> bool:
        """Refuse all further jobs, unless a job runs. Returns whether the actor refuses jobs now.

        Raises ActorUnavailable.
        """

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        """Pass a new delivery of an entry to the actor, which should run the job of the entry.

        Returns False if the actor does not answer in time or does not run the job.
        """


class EngineActor(Protocol):
    """The engine of one worker. `RayEngineActor` implements it."""

    async def check(self) -> EngineState:
        """Return the state of the engine. Raises EngineGone, EngineRestarts, ActorUnavailable."""

    async def kill(self) -> None:
        """End an engine that does not answer. Its standby takes over. Raises ActorUnavailable."""

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        """Cancel a run whose job actor has died or is replaced.

        Returns whether the device has worked for the run, or None if this is unknown.
        """


class Cluster(Protocol):
    """The cluster, for the workers of one endpoint. `RayCluster` implements it.

    Workers and actors outlive the dispatcher that made them. The next dispatcher finds them by
    their names.
    """

    async def place(self, worker: str) -> float:
        """Find or make the placement group of a worker, and wait until it has its resources.

        Returns the number of GPUs of the worker. Raises ActorUnavailable.
        """

    async def engine(self, worker: str) -> EngineActor:
        """Find or make the engine of a worker that is placed. Raises ActorUnavailable."""

    async def slots(self, worker: str) -> list[int]:
        """Return the numbers of the slots that have a job actor. Raises ActorUnavailable."""

    async def job_actor(self, worker: str, name: str) -> JobActor:
        """Find or make a job actor of a worker that is placed. Raises ActorUnavailable."""

    async def kill(self, name: str) -> None:
        """Kill an actor, and wait until no actor has its name."""

    async def workers(self, prefix: str) -> list[str]:
        """Return the names of all workers whose names begin with `prefix`."""

    async def draining(self, prefix: str) -> list[str]:
        """Return those workers whose node is about to be removed. Raises ActorUnavailable."""

    async def is_idle(self, worker: str) -> bool:
        """Return whether no job actor of the worker runs a job."""

    async def remove(self, worker: str, *, has_failed: bool = False) -> None:
        """Kill the actors of a worker and remove its placement group. Raises ActorUnavailable.

        With `has_failed`, the worker did not start on its node. The next `place` of the worker then
        prefers another node.
        """
