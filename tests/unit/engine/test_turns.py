"""Who is on the device when, with the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import Cancelled
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.reports import EngineEvent, Errored, Finished, Progress
from tests.support.engine.workflows import Watched, text_to_image

Start = Callable[..., Watched]


@pytest.fixture
def told() -> list[tuple[str, EngineEvent]]:
    """The events of all runs in the order in which they were told, each with the run's name."""
    return []


@pytest.fixture
def start(engine: Engine, catalogue: Catalogue, told: list[tuple[str, EngineEvent]]) -> Start:
    """Submits a prompt under a name."""

    def start(name: str, prompt: dict[str, Any], **options: Any) -> Watched:
        watched = Watched()

        def take(event: EngineEvent) -> None:
            told.append((name, event))
            watched.take(event)

        graph = validate(prompt, catalogue, Limits())
        watched.run = engine.submit(graph, on_event=take, **options)
        return watched

    return start


def test_an_exclusive_run_shares_the_engine_with_no_other(
    start: Start, told: list[tuple[str, EngineEvent]]
) -> None:
    first = start("first", text_to_image(steps=20))
    first.next()
    others = [
        start("lone", text_to_image(), is_exclusive=True),
        start("last", text_to_image()),
    ]
    for watched in (first, *others):
        assert isinstance(watched.wait(), Finished)
    assert list(dict.fromkeys(name for name, _ in told)) == ["first", "lone", "last"]
    names = [name for name, _ in told]
    assert names == sorted(names, key=["first", "lone", "last"].index)


def test_a_run_that_waits_can_be_cancelled(start: Start) -> None:
    first = start("first", text_to_image(steps=5000))
    assert isinstance(first.next(), Progress)
    lone = start("lone", text_to_image(), is_exclusive=True)
    last = start("last", text_to_image())
    assert lone.run is not None
    lone.run.cancel()
    end = lone.wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, Cancelled)
    assert isinstance(last.wait(), Finished)
    assert first.run is not None
    first.run.cancel()
    first.wait()
