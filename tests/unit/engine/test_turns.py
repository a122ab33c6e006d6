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
from engine.reports import EngineEvent, Errored, Finished, ImageReady, Progress
from tests.support.engine.workflows import Watched, node, text_to_image

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
    first = start("first", text_to_image(steps=3000))
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


def test_a_small_job_ends_before_a_long_chain_of_host_work_beside_it(
    start: Start, told: list[tuple[str, EngineEvent]]
) -> None:
    start("warm", text_to_image()).wait()
    chain = start("chain", chain_of_scales(900))
    small = start("small", text_to_image())
    assert isinstance(small.wait(), Finished)
    assert not any(name == "chain" for name, _ in told)
    assert chain.run is not None
    chain.run.cancel()
    end = chain.wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, Cancelled)


def test_a_run_pauses_until_its_results_are_taken(start: Start) -> None:
    prompt: dict[str, Any] = {}
    for number in range(40):
        prompt[f"{number}"] = node("EmptyImage", width=64, height=64, batch_size=1, color=number)
        prompt[f"s{number}"] = node("SaveImage", images=[f"{number}", 0], filename_prefix="x")
    paused = start("paused", prompt, max_untaken=3)
    assert isinstance(start("other", text_to_image()).wait(), Finished)
    assert paused.queue.qsize() == 3
    assert paused.run is not None
    for number in range(40):
        event = paused.next()
        assert isinstance(event, ImageReady)
        assert event.index == number
        paused.run.take_result()
    assert paused.wait() == Finished(40)


def test_a_paused_run_can_be_cancelled(start: Start) -> None:
    prompt: dict[str, Any] = {}
    for name in "ab":
        prompt[name] = node("EmptyImage", width=64, height=64, batch_size=1, color=0)
        prompt[f"s{name}"] = node("SaveImage", images=[name, 0], filename_prefix="x")
    paused = start("paused", prompt, max_untaken=1)
    assert isinstance(paused.next(), ImageReady)
    assert paused.run is not None
    paused.run.cancel()
    end = paused.wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, Cancelled)


def chain_of_scales(count: int) -> dict[str, Any]:
    """Images that are scaled time after time."""
    first = {"0": node("EmptyImage", width=512, height=512, batch_size=1, color=0)}
    scales = {
        str(number): node(
            "ImageScale",
            image=[str(number - 1), 0],
            upscale_method="lanczos",
            width=512 - 8 * (number % 2),
            height=512,
            crop="disabled",
        )
        for number in range(1, count + 1)
    }
    save = {"save": node("SaveImage", images=[str(count), 0], filename_prefix="x")}
    return first | scales | save
