"""How much memory the jobs of an engine take, each time measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.engine.workflows import node

MIB = 2**20
RUN_TOGETHER = """
import json, queue, sys
from pathlib import Path
from engine.diffusion.memory_probe import HostMemoryProbe
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Errored, Finished, ImageReady

asked = json.load(sys.stdin)
models = ModelsFolder(Path(asked["models"]))
graphs = [validate(each, Catalogue(models), Limits()) for each in asked["prompts"]]
engine = Engine(models=models, job_memory_bytes=asked["budget_bytes"])
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
print(json.dumps({
    "ends": ends,
    "need_bytes": graphs[0].need_bytes,
    "peak_bytes": probe.peak_growth_bytes(),
}))
"""


def run_together(models: Path, prompts: list[dict[str, Any]], budget_bytes: int) -> dict[str, Any]:
    asked = {"models": str(models), "prompts": prompts, "budget_bytes": budget_bytes}
    done = subprocess.run(
        [sys.executable, "-c", RUN_TOGETHER],
        input=json.dumps(asked),
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_jobs_that_need_more_than_the_budget_together_take_turns(tmp_path: Path) -> None:
    told = run_together(tmp_path, [large()] * 5, 300 * MIB)
    assert told["ends"] == ["Finished"] * 5
    assert 5 * told["need_bytes"] > 1300 * MIB
    assert told["peak_bytes"] < 500 * MIB


def test_many_images_of_one_job_are_never_alive_together(tmp_path: Path) -> None:
    many: dict[str, Any] = {}
    for number in range(60):
        many[f"{number}"] = image(1024)
        many[f"s{number}"] = node("SaveImage", images=[f"{number}", 0], filename_prefix="x")
    told = run_together(tmp_path, [many], 0)
    assert told["ends"] == ["Finished"]
    # The results themselves, three bytes a pixel, are all kept by this test.
    assert told["peak_bytes"] < 60 * 3 * MIB + 100 * MIB


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
