"""What a dispatcher tells the keeper of workers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import remote_keeper
from actors.dispatch.ray_calls import RayCalls
from actors.remote_engine import NAMESPACE
from actors.remote_keeper import NAME, keep_workers
from tests.support.polling import eventually


class Keeper:
    """One of another version, as a handle of Ray."""

    def __init__(self) -> None:
        self.keep = self

    async def remote(self, *_made_for: object) -> bool:
        return False


async def test_one_of_an_application_before_ends_where_workers_stay_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = [{"namespace": "other", "name": NAME}, {"namespace": NAMESPACE, "name": NAME}]
    killed: list[Any] = []
    monkeypatch.setattr("ray.util.list_named_actors", lambda **_: there)
    monkeypatch.setattr("ray.get_actor", lambda *name: name)
    monkeypatch.setattr("ray.kill", killed.append)
    said = asyncio.Event()
    await keep_workers(None, RayCalls(at_once=1), kept_s=0, on_said=said.set)  # type: ignore[arg-type]
    assert killed == [(NAME, NAMESPACE)]
    assert said.is_set()


async def test_one_that_is_always_of_another_version_is_made_anew_at_a_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[Any] = []
    monkeypatch.setattr(remote_keeper, "_find_or_make", lambda *_: Keeper())
    monkeypatch.setattr("ray.kill", killed.append)
    keeping = asyncio.create_task(
        keep_workers(None, RayCalls(at_once=1), kept_s=60.0)  # type: ignore[arg-type]
    )
    await eventually(lambda: bool(killed))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(killed) == 1
    keeping.cancel()
