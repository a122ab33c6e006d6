"""Whatever ends the device thread ends every run, and is seen from outside."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.diffusion.device
from engine import executor
from engine.activity import ActivityKind
from engine.batcher import Batcher, Request, YieldRequest
from engine.errors import Cancelled, DeviceFailed, EngineError, MachineFailed, OutOfMemory
from engine.executor import BODIES
from engine.meter import Meter
from engine.reports import Errored, Finished
from tests.support.engine.engines import Running, running
from tests.support.engine.workflows import node
from tests.support.polling import eventually

PROMPT = {
    "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
    "2": node("ImageInvert", image=["1", 0]),
    "3": node("SaveImage", images=["2", 0], filename_prefix="x"),
}


TWO = PROMPT | {"4": node("SaveImage", images=["1", 0], filename_prefix="y")}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Running]:
    """An engine that is not started yet."""
    rig = Running(tmp_path)
    yield rig
    rig.engine.stop()


def waits(_context: object, **_: object) -> Generator[Request, Any, None]:
    """A body that comes to no end."""
    while True:
        yield YieldRequest()


def failing(error: BaseException) -> Callable[..., Any]:
    def fails(*_: object, **__: object) -> None:
        raise error

    return fails


def test_an_error_of_the_loop_ends_every_run(rig: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    runs = [rig.submit(PROMPT, on_active=told.append), rig.submit(PROMPT)]
    runs.append(rig.submit(PROMPT, is_exclusive=True))
    monkeypatch.setitem(BODIES, "ImageInvert", waits)
    monkeypatch.setattr(Batcher, "step", failing(RuntimeError("CUDA error: device-side assert")))
    rig.engine.start()
    for run in runs:
        run.error(Cancelled)
    assert rig.engine.has_stopped
    assert rig.engine.activity.kind is ActivityKind.ENDED
    with pytest.raises(EngineError, match="stopped"):
        rig.submit(PROMPT)


def test_runs_that_it_worked_for_stay_told_so(
    rig: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[bool]] = {"its": [], "other": []}
    runs = [rig.submit(PROMPT, on_active=told[name].append) for name in told]
    monkeypatch.setattr(Meter, "start", failing(SystemExit()))  # what a body raises ends it alone
    rig.engine.start()
    for run in runs:
        run.error(Cancelled)
    assert told["its"][-1]
    assert not any(told["other"][-1:])


def test_a_run_that_cannot_begin_ends_alone(rig: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ValueError("no")

    monkeypatch.setattr("engine.engine.Meter", fails)
    runs = [rig.submit(PROMPT), rig.submit(PROMPT)]
    rig.engine.start()
    ends = [run.wait() for run in runs]
    assert isinstance(ends[0], Errored)
    assert isinstance(ends[1], Finished)
    assert not rig.engine.has_stopped


def test_a_node_that_never_closes_ends_alone(rig: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def never_closes(_context: object, **_: object) -> Generator[Request, Any, None]:
        try:
            yield YieldRequest()
            begun.set()
            yield from waits(_context)
        except GeneratorExit:
            raise ValueError("no") from None

    monkeypatch.setitem(BODIES, "ImageInvert", never_closes)
    stuck = rig.submit(PROMPT)
    rig.engine.start()
    assert begun.wait(timeout=30)
    monkeypatch.undo()
    stuck.cancel()
    stuck.error(Cancelled)
    assert rig.submit(PROMPT).images()


def test_a_failing_machine_is_no_error_of_a_node(
    rig: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setitem(BODIES, "ImageInvert", failing(error))
    rig.engine.start()
    assert "Too many open files" in str(rig.submit(PROMPT).error(MachineFailed))


def test_memory_that_runs_out_beside_another_run_may_be_the_others(
    rig: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def begins(context: object, **_: object) -> Generator[Request, Any, None]:
        begun.set()
        return waits(context)

    monkeypatch.setitem(BODIES, "ImageInvert", begins)
    neighbour = rig.submit(PROMPT)
    rig.engine.start()
    assert begun.wait(timeout=30)
    monkeypatch.setitem(BODIES, "ImageInvert", failing(MemoryError()))
    assert rig.submit(PROMPT).error(OutOfMemory).beside_others
    neighbour.cancel()
    neighbour.error(Cancelled)
    assert not rig.submit(PROMPT).error(OutOfMemory).beside_others


async def test_an_engine_takes_the_runs_that_meet_in_a_call_and_no_further_ones_while_some_wait(
    tmp_path: Path,
) -> None:
    with running(tmp_path, max_rows=24) as rig:
        assert rig.engine.suggested_concurrency == 12
        lone = rig.submit(TWO, is_exclusive=True, max_untaken=1)
        others = [rig.submit(PROMPT) for _ in range(2)]
        await eventually(lambda: rig.engine.suggested_concurrency == 3)
        lone.take_result()
        assert all(other.images() for other in others)
        assert rig.engine.suggested_concurrency == 12


def test_others_join_an_exclusive_run_that_is_idle_once_its_time_is_over(tmp_path: Path) -> None:
    """It waits for its results to be taken, say, while the image store is away."""
    rig, joined = Running(tmp_path, exclusive_s=0.2), threading.Event()
    lone = rig.submit(TWO, is_exclusive=True, on_joined=joined.set, max_untaken=1)
    other = rig.submit(PROMPT)
    rig.engine.start()
    try:
        assert other.images()
        assert joined.is_set()
        lone.take_result()
        assert lone.images()
    finally:
        rig.engine.stop()


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_engine_stops_once_its_process_has_lost_the_device(
    rig: Running, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    with monkeypatch.context() as patch:
        patch.setitem(BODIES, "ImageInvert", failing(error))
        patch.setattr(engine.diffusion.device, "is_lost", lambda _: is_lost)
        patch.setattr(executor, "_TURN_S", 3600.0)  # so that the first fails before the other
        first, other = rig.submit(PROMPT), rig.submit(PROMPT)
        rig.engine.start()
        assert first.error(DeviceFailed).is_lost == is_lost
        other.error(Cancelled if is_lost else DeviceFailed)
        assert rig.engine.has_stopped == is_lost
    if not is_lost:
        assert rig.submit(PROMPT).images()
