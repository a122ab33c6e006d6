"""Which runs may start beside others, and the memory that they take, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from engine.admission import Admission, EngineMemory
from tests.support.engine.workflows import node


class Runs(Admission[str]):
    """A queue within a budget of 10 bytes; `start` has all that may start now."""

    def __init__(self) -> None:
        super().__init__(10)

    def start(self) -> list[str]:
        started = []
        while (run := self.admit()) is not None:
            started.append(run)
        return started


def test_runs_that_fit_beside_each_other_start_together() -> None:
    runs = Runs()
    for name in "ab":
        runs.enter(name, 5)
    runs.enter("c", 1)
    assert runs.start() == ["a", "b"]
    assert runs.memory(7) == EngineMemory(7, 10, 1, budget_bytes=10)
    runs.leave("a")
    assert runs.start() == ["c"]
    assert runs.memory(7) == EngineMemory(7, 6, 0, budget_bytes=10)


def test_a_run_larger_than_the_budget_runs_alone() -> None:
    runs = Runs()
    runs.enter("a", 1)
    runs.enter("huge", 100)
    assert runs.start() == ["a"]
    runs.leave("a")
    assert runs.start() == ["huge"]
    runs.enter("b", 0)
    assert runs.start() == []
    runs.leave("huge")
    assert runs.start() == ["b"]


def test_small_runs_pass_a_large_one_but_not_for_ever() -> None:
    runs = Runs()
    runs.enter("first", 3)
    runs.enter("large", 10)
    assert runs.start() == ["first"]
    running = ["first"]
    for number in range(100):
        runs.enter(f"small {number}", 3)
        running += runs.start()
        runs.leave(running.pop(0))
        running += runs.start()
        if "large" in running:
            break
    assert running == ["large"]
    assert 1 < number < 20


def test_an_exclusive_run_shares_the_engine_with_none() -> None:
    runs = Runs()
    runs.enter("a", 1)
    runs.enter("lone", 1, is_exclusive=True)
    runs.enter("b", 1)
    assert runs.start() == ["a"]
    runs.leave("a")
    assert runs.start() == ["lone"]
    assert runs.start() == []
    runs.leave("lone")
    assert runs.start() == ["b"]


def test_none_passes_an_exclusive_run_even_behind_one_that_may_be_passed() -> None:
    runs = Runs()
    runs.enter("a", 5)
    runs.enter("large", 10)
    runs.enter("lone", 1, is_exclusive=True)
    runs.enter("b", 1)
    assert runs.start() == ["a"]
    runs.leave("a")
    assert runs.start() == ["large"]
    runs.leave("large")
    assert runs.start() == ["lone"]


def test_a_run_that_no_longer_waits_holds_nobody_back() -> None:
    runs = Runs()
    runs.enter("a", 1)
    runs.enter("lone", 1, is_exclusive=True)
    runs.enter("b", 1)
    assert runs.start() == ["a"]
    runs.leave("lone")
    assert runs.start() == ["b"]


def test_without_a_budget_all_run_beside_each_other() -> None:
    unlimited: Admission[str] = Admission(0)
    for name in ("a", "b"):
        unlimited.enter(name, 2**60)
    assert [unlimited.admit(), unlimited.admit()] == ["a", "b"]


def test_an_exclusive_run_keeps_the_others_back_for_its_time_alone() -> None:
    now = 0.0
    runs: Admission[str] = Admission(0, exclusive_s=10, now=lambda: now)
    runs.enter("lone", 1, is_exclusive=True)
    now = 100.0  # it waited
    assert runs.admit() == "lone"
    runs.enter("b", 1)
    now = 109.9
    assert runs.admit() is None
    assert runs.joined == []
    now = 110.0
    assert runs.admit() == "b"
    assert runs.joined == ["lone"]
    runs.enter("another", 1, is_exclusive=True)
    assert runs.admit() is None


def test_an_exclusive_run_is_there_from_when_it_waits_until_it_has_ended() -> None:
    runs: Admission[str] = Admission(10)
    runs.enter("first", 1)
    assert runs.admit() == "first"
    assert not runs.has_exclusive
    runs.enter("lone", 1, is_exclusive=True)
    assert runs.has_exclusive
    runs.leave("first")
    assert runs.admit() == "lone"
    assert runs.has_exclusive
    runs.leave("lone")
    assert not runs.has_exclusive


MIB = 2**20
RUN_TOGETHER = """
import json, queue, sys
from pathlib import Path
from engine.diffusion.memory_probes import HostMemoryProbe
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Errored, Finished, ImageReady

asked = json.load(sys.stdin)
models = ModelsFolder(Path(asked["models"]))
told = {}
for name, (prompts, budget_bytes) in asked["jobs"].items():
    graphs = [validate(each, Catalogue(models), Limits()) for each in prompts]
    engine = Engine(models=models, job_memory_bytes=budget_bytes)
    engine.start()
    probe = HostMemoryProbe()
    probe.start()
    events = queue.SimpleQueue()
    runs = [engine.submit(each, on_event=events.put) for each in graphs]
    ends = []
    while len(ends) < len(runs):
        event = events.get(timeout=120)
        if isinstance(event, Finished | Errored):
            ends.append(type(event).__name__)
    told[name] = {
        "ends": ends,
        "need_bytes": graphs[0].need_bytes,
        "peak_bytes": probe.peak_growth_bytes(),
    }
    del event, events, runs
    engine.stop()
print(json.dumps(told))
"""
Told = dict[str, dict[str, Any]]


def image(side: int) -> dict[str, Any]:
    return node("EmptyImage", width=side, height=side, batch_size=1, color=0)


def large() -> dict[str, Any]:
    """Images of 50 MB that are scaled, with three of them alive at once."""
    scale = {"upscale_method": "nearest-exact", "width": 2048, "height": 2048, "crop": "disabled"}
    return {
        "a": image(2048),
        "b": node("ImageScale", image=["a", 0], **scale),
        "c": node("ImageScale", image=["b", 0], **scale),
        "d": node("ImageBatch", image1=["a", 0], image2=["c", 0]),
        "s": node("ImageScale", image=["d", 0], **{**scale, "width": 64, "height": 64}),
        "save": node("SaveImage", images=["s", 0], filename_prefix="x"),
    }


def many_images() -> dict[str, Any]:
    prompt: dict[str, Any] = {}
    for number in range(60):
        prompt[f"{number}"] = image(1024)
        prompt[f"s{number}"] = node("SaveImage", images=[f"{number}", 0], filename_prefix="x")
    return prompt


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return the measurements of both jobs. One process runs them, because its start is slow."""
    jobs = {"large": ([large()] * 5, 300 * MIB), "many": ([many_images()], 0)}
    done = subprocess.run(
        [sys.executable, "-c", RUN_TOGETHER],
        input=json.dumps({"models": str(tmp_path_factory.mktemp("models")), "jobs": jobs}),
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    told: Told = json.loads(done.stdout)
    return told


def test_jobs_that_need_more_than_the_budget_together_take_turns(told: Told) -> None:
    assert told["large"]["ends"] == ["Finished"] * 5
    assert 5 * told["large"]["need_bytes"] > 1300 * MIB
    assert told["large"]["peak_bytes"] < 500 * MIB


def test_many_images_of_one_job_are_never_alive_together(told: Told) -> None:
    assert told["many"]["ends"] == ["Finished"]
    # The results themselves, three bytes a pixel, are all kept by this test.
    assert told["many"]["peak_bytes"] < 60 * 3 * MIB + 100 * MIB
