"""The events of one run."""

from __future__ import annotations

import pytest

from engine.graph.graph import Graph, Node
from engine.graph.limits import Limits
from engine.reports import EngineEvent, Progress
from engine.run import Run
from engine.stages import Stage


@pytest.mark.parametrize(
    ("period_s", "told"), [(0.0, [1, 2, 3, 4, 5]), (0.25, [1, 4]), (9.0, [1])], ids=str
)
def test_progress_is_told_at_once_and_then_once_in_each_period(
    period_s: float, told: list[int]
) -> None:
    assert steps_told(Graph(()), period_s) == [Progress(done, 0) for done in told]


@pytest.mark.parametrize(("period_s", "told"), [(0.25, [1, 4, 5]), (9.0, [1, 5])], ids=str)
def test_the_last_step_is_told_however_soon_it_follows(period_s: float, told: list[int]) -> None:
    graph = Graph(
        tuple(Node(name, "KSampler", {}, {}, steps=n) for name, n in (("a", 2), ("b", 3)))
    )
    assert steps_told(graph, period_s) == [Progress(done, 5) for done in told]


def steps_told(graph: Graph, period_s: float) -> list[EngineEvent]:
    """What is reported of five steps that take a tenth of a second each."""
    seconds, events = 0.0, list[EngineEvent]()
    run = Run(
        graph,
        Limits(),
        on_event=events.append,
        on_cancel=lambda _: None,
        on_take=lambda _: None,
        progress_period_s=period_s,
        now=lambda: seconds,
    )
    for _ in range(5):
        run.report_steps(1)
        seconds += 0.1
    return events


@pytest.mark.parametrize(("period_s", "told"), [(0.0, []), (0.25, ["c", "f"]), (9.0, [])], ids=str)
def test_a_node_is_told_where_nothing_was_for_a_period(period_s: float, told: list[str]) -> None:
    """Not in a run that tells every step. Nodes follow each other in a tenth of a second."""
    seconds, events = 0.0, list[EngineEvent]()
    run = Run(
        Graph(()),
        Limits(),
        on_event=events.append,
        on_cancel=lambda _: None,
        on_take=lambda _: None,
        progress_period_s=period_s,
        now=lambda: seconds,
    )
    for number, name in enumerate("abcdef"):
        seconds = (number + 1) / 10
        run.note_node(Node(name, "VAEDecode", {}, {}))
    assert [each.node_id for each in events if isinstance(each, Progress)] == told


def test_progress_says_what_goes_on() -> None:
    events = list[EngineEvent]()
    run = Run(
        Graph(()),
        Limits(),
        on_event=events.append,
        on_cancel=lambda _: None,
        on_take=lambda _: None,
        now=lambda: 0.0,
    )
    run.note_node(Node("3", "KSampler", {}, {}))
    run.stages.begin(Stage.DENOISE)
    run.stages.end(Stage.DENOISE, rows=2, call_rows=8)
    run.report_steps(1)
    (told,) = events
    assert isinstance(told, Progress)
    assert (told.node_id, told.class_type, told.rows, told.images) == ("3", "KSampler", 8, 0)
