"""What dispatching asks of the cluster: workers, the engine of each, and its job actors.

`ray_cluster.py` does it with Ray. Tests do it in memory, in milliseconds.
"""

from __future__ import annotations

from typing import Protocol

from actors.worker.engine_host import EngineState
from actors.worker.job import RunOutcome
from events.job import Job
from events.queue import QueueEntry


class ActorDied(Exception):
    """A job actor's process ended in the middle of a job."""


class ActorLost(ActorDied):
    """A job actor is gone with its node or its place, or is not reached: no job is the reason."""


class ActorUnavailable(Exception):
    """An actor could not be found or made, or did not answer in time."""


class EngineGone(Exception):
    """An engine's process has ended. Unless it comes back by itself, another one is to be made."""


class EngineRestarts(EngineGone):
    """An engine's process has ended, and the cluster makes another one under its name."""


class JobActor(Protocol):
    """The actor in one slot of a worker."""

    async def ready(self) -> str:
        """Once it is connected: the name under which it writes events. Raises ActorUnavailable."""

    async def state(self) -> tuple[str | None, int]:
        """The job that it runs, and how many it was given. Raises ActorUnavailable."""

    async def wait_idle(self) -> None:
        """Returns once it runs no job. Raises ActorUnavailable."""

    async def run(self, entry: QueueEntry, job: Job) -> RunOutcome:
        """Run the job of an entry, which was folded a while ago. Raises ActorDied, ActorLost."""

    async def retire(self) -> bool:
        """Take no further job, whoever gives it; False where one runs. Raises ActorUnavailable."""

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        """The entry was delivered again: False if the actor does not answer in time, or does
        not run its job.
        """


class EngineActor(Protocol):
    """The engine of one worker."""

    async def check(self) -> EngineState:
        """What it does, and how many jobs it takes, if it answers.

        Raises EngineGone, EngineRestarts, ActorUnavailable.
        """

    async def kill(self) -> None:
        """End one that does not answer; another one takes its place. Raises ActorUnavailable."""

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        """End a run whose job actor is gone.

        Whether the device had worked for it; None if the engine does not know, or does not answer.
        """


class Cluster(Protocol):
    """The cluster, as the workers of one endpoint see it.

    Everything has a name and outlives its maker, so a dispatcher that takes over finds what its
    predecessor made.
    """

    async def place(self, worker: str) -> float:
        """Find or make the worker's place; returns once the cluster has room for it.

        The number of GPUs of the worker. Raises ActorUnavailable.
        """

    async def engine(self, worker: str) -> EngineActor:
        """Find or make the engine of a worker that has a place. Raises ActorUnavailable."""

    async def slots(self, worker: str) -> list[int]:
        """The numbers of the slots in which it has job actors. Raises ActorUnavailable."""

    async def job_actor(self, worker: str, name: str) -> JobActor:
        """Find or make a job actor of a worker that has a place. Raises ActorUnavailable."""

    async def kill(self, name: str) -> None:
        """Returns once no actor has this name any more."""

    async def workers(self, prefix: str) -> list[str]:
        """Names of all workers that begin so, whoever made them."""

    async def draining(self, prefix: str) -> list[str]:
        """Of the workers that begin so those whose node is about to be taken away.

        Raises ActorUnavailable.
        """

    async def is_idle(self, worker: str) -> bool:
        """Whether none of its job actors runs a job."""

    async def remove(self, worker: str, *, has_failed: bool = False) -> None:
        """Kill the worker's actors and give its place back. Raises ActorUnavailable.

        `has_failed`: it did not come up there. Its next place is on another node, if one has room.
        """
