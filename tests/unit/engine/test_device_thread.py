"""Whatever ends the device thread ends every run, and is seen from outside."""

from __future__ import annotations

import errno
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from engine.activity import ActivityKind
from engine.batcher import Batcher, Request, Turn
from engine.engine import Engine
from engine.errors import Cancelled, EngineError, MachineFailed, OutOfMemory
from engine.executor import BODIES
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.meter import Meter
from engine.reports import Errored, Finished
from tests.support.engine.workflows import Watched, node
from tests.support.polling import eventually

PROMPT = {
    "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
    "2": node("ImageInvert", image=["1", 0]),
    "3": node("SaveImage", images=["2", 0], filename_prefix="x"),
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return validate(PROMPT, Catalogue(ModelsFolder(tmp_path)), Limits())


@pytest.fixture
def engine(tmp_path: Path) -> Generator[Engine]:
    engine = Engine(models=ModelsFolder(tmp_path))
    yield engine
    engine.stop()


def submitted(engine: Engine, graph: Graph, **options: Any) -> Watched:
    watched = Watched()
    watched.run = engine.submit(graph, on_event=watched.take, **options)
    return watched


def waits(_context: object, **_: object) -> Generator[Request, Any, None]:
    """A body that comes to no end."""
    while True:
        yield Turn()


def ended_by_the_engine(watched: Watched) -> bool:
    end = watched.wait()
    return isinstance(end, Errored) and isinstance(end.error, Cancelled)


def test_an_error_of_the_loop_itself_ends_every_run(
    engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    runs = [submitted(engine, graph, on_active=told.append), submitted(engine, graph)]
    runs.append(submitted(engine, graph, is_exclusive=True))

    def fails(_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setitem(BODIES, "ImageInvert", waits)
    monkeypatch.setattr(Batcher, "step", fails)
    engine.start()
    assert all(map(ended_by_the_engine, runs))
    assert engine.has_stopped
    assert engine.activity.kind is ActivityKind.ENDED
    with pytest.raises(EngineError, match="stopped"):
        engine.submit(graph, on_event=lambda _: None)


def test_the_runs_that_it_worked_for_last_stay_told_so(
    engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[bool]] = {"its": [], "other": []}
    runs = [submitted(engine, graph, on_active=told[name].append) for name in told]

    def dies(*_: object, **__: object) -> None:
        raise SystemExit

    monkeypatch.setattr(Meter, "start", dies)  # what a body raises ends its run alone
    engine.start()
    assert all(map(ended_by_the_engine, runs))
    assert told["its"][-1]
    assert not any(told["other"][-1:])


def test_a_run_that_cannot_begin_ends_alone(
    engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise ValueError("no")

    monkeypatch.setattr("engine.engine.Meter", fails)
    runs = [submitted(engine, graph), submitted(engine, graph)]
    engine.start()
    ends = [run.wait() for run in runs]
    assert isinstance(ends[0], Errored)
    assert isinstance(ends[1], Finished)
    assert not engine.has_stopped


def test_a_node_that_does_not_close_ends_no_other_run(
    engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def never_closes(_context: object, **_: object) -> Generator[Request, Any, None]:
        try:
            yield Turn()
            begun.set()
            yield from waits(_context)
        except GeneratorExit:
            raise ValueError("no") from None

    monkeypatch.setitem(BODIES, "ImageInvert", never_closes)
    stuck = submitted(engine, graph)
    engine.start()
    assert begun.wait(timeout=30)
    monkeypatch.undo()
    assert stuck.run is not None
    stuck.run.cancel()
    assert ended_by_the_engine(stuck)
    assert isinstance(submitted(engine, graph).wait(), Finished)


def fails_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setitem(BODIES, "ImageInvert", fails)


def test_a_machine_that_fails_is_not_an_error_of_the_node(
    engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(OSError(errno.EMFILE, "Too many open files"), monkeypatch)
    run = submitted(engine, graph)
    engine.start()
    end = run.wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, MachineFailed)
    assert "Too many open files" in str(end.error)


def test_memory_that_runs_out_beside_another_run_may_be_the_others(
    engine: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def begins(context: object, **_: object) -> Generator[Request, Any, None]:
        begun.set()
        return waits(context)

    monkeypatch.setitem(BODIES, "ImageInvert", begins)
    neighbour = submitted(engine, graph)
    engine.start()
    assert begun.wait(timeout=30)
    fails_with(MemoryError(), monkeypatch)
    ends = [submitted(engine, graph).wait()]
    assert neighbour.run is not None
    neighbour.run.cancel()
    neighbour.wait()
    ends.append(submitted(engine, graph).wait())
    errors = [end.error for end in ends if isinstance(end, Errored)]
    assert [isinstance(e, OutOfMemory) and e.beside_others for e in errors] == [True, False]


async def test_an_engine_takes_the_runs_that_meet_in_a_call_and_no_further_ones_while_some_wait(
    tmp_path: Path, graph: Graph
) -> None:
    engine = Engine(models=ModelsFolder(tmp_path), max_rows=24)
    engine.start()
    try:
        assert engine.jobs == 12
        two = PROMPT | {"4": node("SaveImage", images=["1", 0], filename_prefix="y")}
        full = validate(two, Catalogue(ModelsFolder(tmp_path)), Limits())
        lone = submitted(engine, full, is_exclusive=True, max_untaken=1)
        others = [submitted(engine, graph) for _ in range(2)]
        await eventually(lambda: engine.jobs == 3)
        assert lone.run is not None
        lone.run.take_result()
        assert all(isinstance(other.wait(), Finished) for other in others)
        assert engine.jobs == 12
    finally:
        engine.stop()


def test_others_join_an_exclusive_run_that_does_nothing_once_its_time_is_over(
    tmp_path: Path, graph: Graph
) -> None:
    """It waits for its results to be taken, say, while the image store is away."""
    engine = Engine(models=ModelsFolder(tmp_path), exclusive_s=0.2)
    joined = threading.Event()
    options = {"is_exclusive": True, "on_joined": joined.set, "max_untaken": 1}
    two = PROMPT | {"4": node("SaveImage", images=["1", 0], filename_prefix="y")}
    full = validate(two, Catalogue(ModelsFolder(tmp_path)), Limits())
    lone, other = submitted(engine, full, **options), submitted(engine, graph)
    engine.start()
    try:
        assert isinstance(other.wait(), Finished)
        assert joined.is_set()
        assert lone.run is not None
        lone.run.take_result()
        assert isinstance(lone.wait(), Finished)
    finally:
        engine.stop()
