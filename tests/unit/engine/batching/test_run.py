"""The events of one run."""

from __future__ import annotations

import pytest

from engine.graph.graph import Graph
from engine.reports import EngineEvent, Progress
from engine.run import Run


@pytest.mark.parametrize(
    ("period_s", "told"), [(0.0, [1, 2, 3, 4, 5]), (0.25, [1, 4]), (9.0, [1])], ids=str
)
def test_progress_is_told_at_once_and_then_once_in_each_period(
    period_s: float, told: list[int]
) -> None:
    seconds, events = 0.0, list[EngineEvent]()
    run = Run(
        Graph(()),
        on_event=events.append,
        on_cancel=lambda _: None,
        on_take=lambda _: None,
        progress_period_s=period_s,
        now=lambda: seconds,
    )
    for _ in range(5):
        run.report_steps(1)
        seconds += 0.1
    assert events == [Progress(done, 0) for done in told]
