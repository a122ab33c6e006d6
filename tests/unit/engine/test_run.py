"""The events of one run, the values that only it tells, and the times of its stages."""

from __future__ import annotations

from typing import Any

import pytest

from engine.engine import Run
from engine.errors import NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph, Node
from engine.options import RunOptions
from engine.reports import EngineEvent, Progress
from engine.stages import Stage, StageClock
from tests.support.engine.engines import Running
from tests.support.engine.graphs import cost_of, graph_of
from tests.support.engine.workflows import node, text_to_image, with_input


@pytest.mark.parametrize(
    ("period_s", "told"), [(0.0, [1, 2, 3, 4, 5]), (0.25, [1, 4]), (9.0, [1])], ids=str
)
def test_progress_is_told_at_once_and_then_once_a_period(period_s: float, told: list[int]) -> None:
    assert steps_told(Graph(()), period_s) == [Progress(done, 0) for done in told]


@pytest.mark.parametrize(("period_s", "told"), [(0.25, [1, 4, 5]), (9.0, [1, 5])], ids=str)
def test_the_last_step_is_told_however_soon_it_follows(period_s: float, told: list[int]) -> None:
    graph = Graph(
        tuple(Node(name, "KSampler", {}, {}, steps=n) for name, n in (("a", 2), ("b", 3)))
    )
    assert steps_told(graph, period_s) == [Progress(done, 5) for done in told]


class Told:
    """A run with a clock of its own, and the events that it reported."""

    def __init__(self, graph: Graph, period_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.events: list[EngineEvent] = []
        self.run = Run(
            graph,
            RunOptions(),
            self.events.append,
            progress_period_s=period_s,
            now=lambda: self.now_s,
        )


def steps_told(graph: Graph, period_s: float) -> list[EngineEvent]:
    """What is reported of five steps that take a tenth of a second each."""
    told = Told(graph, period_s)
    for _ in range(5):
        told.run.report_steps(1)
        told.now_s += 0.1
    return told.events


@pytest.mark.parametrize(("period_s", "told"), [(0.0, []), (0.25, ["c", "f"]), (9.0, [])], ids=str)
def test_a_node_is_told_where_nothing_was_for_a_period(period_s: float, told: list[str]) -> None:
    """Not in a run that tells every step. Nodes follow each other in a tenth of a second."""
    found = Told(Graph(()), period_s)
    for number, name in enumerate("abcdef"):
        found.now_s = (number + 1) / 10
        found.run.note_node(Node(name, "VAEDecode", {}, {}))
    assert [each.node_id for each in found.events if isinstance(each, Progress)] == told


def test_progress_says_what_goes_on() -> None:
    told = Told(Graph(()))
    told.run.note_node(Node("3", "KSampler", {}, {}))
    told.run.stages.begin(Stage.DENOISE)
    told.run.stages.end(Stage.DENOISE, rows=2, call_rows=8)
    told.run.report_steps(1)
    (event,) = told.events
    assert isinstance(event, Progress)
    assert (event.node_id, event.class_type, event.rows, event.images) == ("3", "KSampler", 8, 0)


class Time:
    now = 100.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def clock(time: Time) -> StageClock:
    return StageClock(lambda: time.now)


def answer(clock: StageClock, stage: Stage | None, *, rows: int = 1, call_rows: int = 1) -> None:
    clock.end(stage, rows=rows, call_rows=call_rows)


def test_the_times_of_a_stage_add_up(clock: StageClock, time: Time) -> None:
    for stage, took_s in ((Stage.TEXT, 1.0), (Stage.DENOISE, 2.0), (Stage.DENOISE, 3.0)):
        clock.begin(stage)
        time.now += took_s
        answer(clock, stage)
        time.now += 10.0  # outside any stage
    assert clock.seconds == {Stage.TEXT: 1.0, Stage.DENOISE: 5.0}


def test_requests_that_overlap_count_once(clock: StageClock, time: Time) -> None:
    clock.begin(Stage.TEXT)
    time.now += 1.0
    clock.begin(Stage.TEXT)
    time.now += 1.0
    answer(clock, Stage.TEXT)
    time.now += 1.0
    answer(clock, Stage.TEXT)
    assert clock.seconds == {Stage.TEXT: 3.0}


def test_work_of_no_stage_counts_nowhere(clock: StageClock, time: Time) -> None:
    clock.begin(None)
    time.now += 1.0
    answer(clock, None)
    assert clock.seconds == {}


def test_rows_per_call_are_those_of_the_calls_and_not_of_the_requests(clock: StageClock) -> None:
    """Two rows in a call of 2, and two in one of 6: that is a call, and a third of one."""
    assert clock.rows_per_call is None
    for call_rows in (2, 6):
        clock.begin(Stage.DENOISE)
        answer(clock, Stage.DENOISE, rows=2, call_rows=call_rows)
    assert clock.rows_per_call == pytest.approx(3.0)


def test_only_denoising_calls_are_counted_by_rows(clock: StageClock) -> None:
    clock.begin(Stage.VAE)
    answer(clock, Stage.VAE, rows=4, call_rows=4)
    assert clock.rows_per_call is None


SMALL = node("EmptyImage", width=20, height=8, batch_size=1, color=0)


def scaled(**size: Any) -> dict[str, Any]:
    inputs = {"image": ["1", 0], "upscale_method": "area", "width": 8, "height": 8} | size
    return {
        "1": SMALL,
        "2": node("GetImageSize", image=["1", 0]),
        "3": node("ImageScale", **inputs, crop="disabled"),
        "4": node("SaveImage", images=["3", 0], filename_prefix="x"),
    }


def test_a_size_of_the_run_is_used_and_its_range_holds(tiny: Running) -> None:
    (found,) = tiny.pictures(scaled(width=["2", 1], height=["2", 0]))
    assert found.shape == (20, 8, 3)
    prompt = with_input(scaled(), "1", width=40, height=40)
    prompt["3"] = node("ImageBlur", image=["1", 0], blur_radius=["2", 0], sigma=1.0)
    told = str(tiny.submit(prompt).error(NodeFailed))
    assert told == "node 3 (ImageBlur): blur_radius is 40, but must be from 1 to 31"


def test_a_check_that_needs_the_value_waits_for_it(empty_catalogue: Catalogue) -> None:
    """KSampler's check reads the steps, which are not there before the run."""
    prompt = text_to_image(steps=["2", 0]) | {"1": SMALL, "2": node("GetImageSize", image=["1", 0])}
    graph = graph_of(prompt, empty_catalogue)
    assert "steps" not in graph.node("3").literals
    assert graph.cost.work > cost_of(text_to_image(), empty_catalogue).work
