"""Why an actor of Ray is gone, as far as Ray says it."""

from __future__ import annotations

from ray.exceptions import ActorDiedError, RayError, RayTaskError

_PROCESS_DIED = "its worker process has died"
_ENDED_BY_RAY = "INTENDED_SYSTEM_EXIT"
"""The type of the exit of a process that Ray ended, with its placement group for example."""


def ended_by_itself(error: RayError) -> bool:
    """Whether the actor's own process ended or raised, with whatever it ran.

    Not where its node or its placement group is gone, where it was killed on purpose or where
    nobody can reach it. Only the text of an error tells these apart (ray 2.60).
    """
    if isinstance(error, RayTaskError):
        return True
    return isinstance(error, ActorDiedError) and (
        _PROCESS_DIED in str(error) and _ENDED_BY_RAY not in str(error) and not error.preempted
    )


def was_taken_away(error: RayError) -> bool:
    """Whether the actor is gone for good, and not by anything that it ran."""
    return isinstance(error, ActorDiedError) and not ended_by_itself(error)


def first_line(error: Exception) -> str:
    """What an error of Ray says without the particulars of the actor."""
    return next(iter(str(error).splitlines()), type(error).__name__)
