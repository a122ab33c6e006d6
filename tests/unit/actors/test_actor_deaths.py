"""What the errors of Ray say of an actor's death. The texts are those of ray 2.60."""

from __future__ import annotations

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from actors.actor_deaths import ended_by_itself, was_taken_away

KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
)
PLACE_GONE = (
    "The actor is dead because its worker process has died. Worker exit type: INTENDED_SYSTEM_EXIT "
    "Worker exit detail: Destroying worker since its placement group was removed."
)
KILLED_BY_US = "The actor is dead because it was killed by `ray.kill`."
NODE_GONE = (
    "The actor died because its node has died. Node Id: bfc4\n"
    "\tthe actor's node was terminated unexpectedly: health check failed"
)


def died(text: str, **node: int) -> ActorDiedError:
    context = ActorDiedErrorContext(error_message=text, actor_id=b"0" * 16)
    if node:
        context.node_death_info.CopyFrom(NodeDeathInfo(**node))
    return ActorDiedError(context)


def test_a_process_that_ended_did_so_by_itself() -> None:
    assert ended_by_itself(died(KILLED))
    assert not was_taken_away(died(KILLED))


def test_an_error_in_an_actor_is_its_own() -> None:
    error = RayTaskError("run", "traceback", ValueError("no"))
    assert ended_by_itself(error)
    assert not was_taken_away(error)


@pytest.mark.parametrize(
    "error",
    [
        died(PLACE_GONE),
        died(KILLED_BY_US),
        died(NODE_GONE),
        died(KILLED, reason=NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED),
    ],
    ids=["placement group", "ray.kill", "node", "preempted"],
)
def test_an_actor_may_be_taken_away(error: RayError) -> None:
    assert was_taken_away(error)
    assert not ended_by_itself(error)


def test_an_actor_that_is_not_reached_may_come_back() -> None:
    error = ActorUnavailableError("RpcError: Socket closed", None)
    assert not ended_by_itself(error)
    assert not was_taken_away(error)
