"""A device that fails, under a run beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import engine.diffusion.device
from engine.engine import Engine
from engine.errors import Cancelled, DeviceFailed
from engine.executor import BODIES
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Errored, Finished
from tests.support.engine.workflows import Watched, node

PROMPT = {
    "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
    "2": node("ImageInvert", image=["1", 0]),
    "3": node("SaveImage", images=["2", 0], filename_prefix="x"),
}


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return validate(PROMPT, Catalogue(ModelsFolder(tmp_path)), Limits())


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose device fails in each second node."""

    def fails(*_: object, **__: Any) -> Any:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setitem(BODIES, "ImageInvert", fails)
    return Engine(models=ModelsFolder(tmp_path))


def submitted(engine: Engine, graph: Graph) -> Watched:
    watched = Watched()
    engine.submit(graph, on_event=watched.take)
    return watched


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_engine_stops_once_its_process_has_lost_the_device(
    running: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(engine.diffusion.device, "is_lost", lambda _: is_lost)
    first, other = submitted(running, graph), submitted(running, graph)
    running.start()
    try:
        end, other_end = first.wait(), other.wait()
        assert isinstance(end, Errored)
        assert isinstance(end.error, DeviceFailed)
        assert end.error.is_lost == is_lost
        assert isinstance(other_end, Errored)
        assert isinstance(other_end.error, Cancelled if is_lost else DeviceFailed)
        assert running.has_stopped == is_lost
    finally:
        running.stop()


def test_after_another_error_the_engine_goes_on(
    running: Engine, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submitted(running, graph)
    running.start()
    try:
        first.wait()
        monkeypatch.undo()
        assert isinstance(submitted(running, graph).wait(), Finished)
    finally:
        running.stop()
