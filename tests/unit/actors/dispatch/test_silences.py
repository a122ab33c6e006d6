"""Job actors that do not answer: which of them may run a job."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from actors.dispatch.ray_actors import RayJobActor, Silences


class Handle:
    """Of an actor whose `state` raises, or has that job."""

    def __init__(self, said: Exception | str | None) -> None:
        self.said = said
        self.state = self

    async def remote(self) -> tuple[str | None, int]:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said, 1


@pytest.mark.parametrize(
    ("said", "may"),
    [
        (None, False),
        ("a-job", True),
        (TimeoutError(), True),
        (ActorUnavailableError("away", None), True),
        (ActorDiedError(), False),
    ],
    ids=["idle", "busy", "slow", "away", "dead"],
)
async def test_one_that_is_slow_to_answer_may_run_a_job(said: Any, may: bool) -> None:
    assert await Silences().may_run_job("slot", RayJobActor(Handle(said))) is may


async def test_one_that_stays_silent_runs_none_that_would_end() -> None:
    now = [0.0]
    silences, actor = Silences(lambda: now[0]), RayJobActor(Handle(TimeoutError()))
    answers = []
    for now[0] in (0.0, 59.0, 61.0):
        answers.append(await silences.may_run_job("slot", actor))
    assert answers == [True, True, False]
