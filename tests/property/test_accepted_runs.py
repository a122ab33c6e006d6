"""Accepted requests run on an engine or fail with an error that says why.

Only small graphs are run. `DARKROOM_PROPERTY_RUNS` is the number of random requests for them.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from PIL import Image

from actors.worker.attempt import plan_of, plan_text
from actors.worker.result_file import encode_result
from engine.engine import Engine
from engine.errors import EngineError, GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import RunOptions
from engine.reports import Errored, Finished, ImageReady, LatentReady, TextReady
from events.job import Job
from events.types import Flavour
from serve_app.acceptance.compilation import RequestCompiler
from tests.property.conftest import accepted
from tests.support.engine.mutations import Requests
from tests.support.engine.workflows import TINY, Watched
from tests.support.events import START

RUNS = int(os.environ.get("DARKROOM_PROPERTY_RUNS", "150"))
MOST_WORK = 15.0
MOST_LIVE_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    from training.make_tiny import write_checkpoint

    root = tmp_path_factory.mktemp("models")
    write_checkpoint(root / "checkpoints" / TINY)
    return Catalogue(ModelsFolder(Path(root)))


@pytest.fixture(scope="module")
def engine(catalogue: Catalogue, compiler: RequestCompiler) -> Iterator[Engine]:
    engine = Engine(models=catalogue.models)
    engine.start()
    yield engine
    engine.stop()


@given(seed=st.integers(0, 2**64))
@settings(
    max_examples=RUNS, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
def test_what_is_accepted_runs_or_fails_with_a_reason(
    compiler: RequestCompiler, requests: Requests, engine: Engine, seed: int
) -> None:
    note(f"seed {seed}")
    draw = random.Random(seed)
    flavour = Flavour.WORKFLOW if draw.random() < 0.8 else Flavour.DIFFUSION
    body = requests.workflow(draw) if flavour is Flavour.WORKFLOW else requests.diffusion(draw)
    try:
        checked = compiler.compile(flavour, body)
    except (GraphInvalid, ParametersInvalid):
        event("refused")
        return
    job = Job("j", 1, 1, accepted(checked, flavour), START)
    plan = plan_of(job, compiler.catalogue.models, compiler.limits)
    graph = validate(plan.prompt, compiler.catalogue, compiler.limits)
    if graph.cost.work > MOST_WORK or graph.cost.live_bytes > MOST_LIVE_BYTES:
        event("too large to be run here")
        return
    options = RunOptions(
        limits=plan.limits,
        first_index=plan.first_index,
        input_files={name: picture() for name in graph.input_files},
    )
    watched = run(engine, graph, options)
    results = [
        each for each in watched.events if isinstance(each, ImageReady | LatentReady | TextReady)
    ]
    for result in results:
        assert encode_result(result, plan_text(plan, result)).content
    match watched.events[-1]:
        case Finished(images=count):
            event("finished")
            assert count == len(results) == graph.cost.outputs
        case Errored(error=error):
            event(f"{type(error).__name__}: {str(error)[:100]}")
            assert isinstance(error, EngineError)
            assert str(error)


def run(engine: Engine, graph: Graph, options: RunOptions) -> Watched:
    watched = Watched(engine)
    watched.run = engine.submit(graph, options, on_event=watched.take)
    watched.wait()
    return watched


def picture() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 4), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
