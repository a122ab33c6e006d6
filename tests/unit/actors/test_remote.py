"""An engine that cannot be found is one that died, and no fault of the job that asks for it."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
from ray.exceptions import RaySystemError

from actors import remote
from actors.remote import RemoteEngine
from actors.worker.engine_host import EngineDied, Order

ORDER = Order("a", 1, {}, None, input_files={}, mark=Path("gone"))


@pytest.fixture(params=[RaySystemError("away"), ValueError("no such actor")])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RemoteEngine:
    """One that the cluster does not find, or says nothing about."""

    def get_actor(*_: str) -> None:
        raise request.param

    monkeypatch.setattr(remote.ray, "get_actor", get_actor)
    return RemoteEngine("engine")


async def test_a_run_on_it_breaks_off(engine: RemoteEngine) -> None:
    with pytest.raises(EngineDied):
        async with aclosing(engine.run(ORDER)) as events:
            await anext(events)


async def test_it_does_not_answer(engine: RemoteEngine) -> None:
    with pytest.raises(EngineDied):
        await engine.check()


async def test_there_is_nothing_to_kill(engine: RemoteEngine) -> None:
    await engine.kill()


@pytest.mark.parametrize("error", [RaySystemError("away"), ValueError("the actor is dead")])
async def test_a_kill_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(remote.ray, "get_actor", lambda *_: object())
    monkeypatch.setattr(remote.ray, "kill", kill)
    await RemoteEngine("engine").kill()
