"""Accepted requests can be stored, dispatched, planned, shown and accepted again; others get a 400.

`DARKROOM_PROPERTY_EXAMPLES` is the number of random requests.
"""

from __future__ import annotations

import io
import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from PIL import Image

from actors.scheduler.fairness import checkpoint_of
from actors.worker.attempt import plan_of, plan_text
from actors.worker.result_file import encode_result
from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from engine.graph.validation import validate
from engine.reports import ImageReady
from events.cloud_events import decode, encode
from events.job import Job
from events.result import result_of
from events.store.read_model import from_state, job_row
from events.types import Event, Flavour, Submitted
from serve_app.acceptance.compilation import CheckedBody, RequestCompiler
from serve_app.bodies import parse_json
from serve_app.error_responses import ANSWERS, ApiError
from tests.property.conftest import accepted
from tests.support.engine.mutations import Requests
from tests.support.engine.workflows import TINY
from tests.support.events import JOB_ID, START, image

EXAMPLES = int(os.environ.get("DARKROOM_PROPERTY_EXAMPLES", "2000"))
LARGEST_REFUSAL = 200_000
LARGEST_EVENT = 1_000_000  # of NATS
PIXEL = np.zeros((1, 1, 3), np.uint8)


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    """It lists a file named like the tiny checkpoint, which nothing here reads."""
    root = tmp_path_factory.mktemp("models")
    (root / CHECKPOINTS).mkdir()
    (root / CHECKPOINTS / TINY).touch()
    return Catalogue(ModelsFolder(Path(root), ttl_s=3600))


@given(seed=st.integers(0, 2**64))
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
def test_what_is_accepted_is_runnable(
    compiler: RequestCompiler, requests: Requests, seed: int
) -> None:
    note(f"seed {seed}")
    draw = random.Random(seed)
    flavour = Flavour.WORKFLOW if draw.random() < 0.7 else Flavour.DIFFUSION
    body = requests.workflow(draw) if flavour is Flavour.WORKFLOW else requests.diffusion(draw)
    content = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode()
    try:
        checked = compiler.compile(flavour, parse_json(content))
    except (ApiError, GraphInvalid, ParametersInvalid) as refusal:
        event(f"{flavour}: {type(refusal).__name__}")
        require_small_refusal(refusal)
        return
    event(f"{flavour}: accepted")
    if checked.inline_images:
        names = {each.placeholder: f"{n}.png" for n, each in enumerate(checked.inline_images)}
        checked = checked.with_uploads(names)
    require_idempotent(checked, flavour, compiler)
    job = require_storable(checked, flavour)
    require_plannable(job, compiler)
    require_renderable(job)


def require_small_refusal(refusal: Exception) -> None:
    answer = ANSWERS[type(refusal)](refusal).response()
    assert answer.status_code == 400
    assert len(bytes(answer.body)) < LARGEST_REFUSAL
    json.loads(bytes(answer.body).decode())


def require_idempotent(checked: CheckedBody, flavour: Flavour, compiler: RequestCompiler) -> None:
    """Check that the recorded request is accepted again and recorded in the same way."""
    sent_again = parse_json(json.dumps(checked.recorded_request).encode())
    assert compiler.compile(flavour, sent_again) == checked


def require_storable(checked: CheckedBody, flavour: Flavour) -> Job:
    """Check that the job can be stored in log and database, and return it as it is read back."""
    data = accepted(checked, flavour)
    payload = encode(Event("e", JOB_ID, 1, START, data))
    assert len(payload) < LARGEST_EVENT
    stored = decode(payload).data
    assert stored == data
    assert isinstance(stored, Submitted)
    job = Job(JOB_ID, 1, 1, stored, datetime(2026, 1, 1, tzinfo=UTC))
    assert from_state(job_row(job)["state"]) == job
    return job


def require_plannable(job: Job, compiler: RequestCompiler) -> None:
    """Check that the job can be planned, including the texts of its files."""
    assert isinstance(checkpoint_of(job), str | None)
    limits: Limits = compiler.limits
    plan = plan_of(job, compiler.catalogue.models, limits)
    graph: Graph = validate(plan.prompt, compiler.catalogue, limits)
    again = validate(graph.prompt, compiler.catalogue, limits)
    assert again == graph
    assert again.cost == graph.cost
    first = graph.outputs[0].id
    index = plan.first_index[first] if plan.first_index else 0
    result = ImageReady(index, first, PIXEL, graph.seed_of(first))
    text = plan_text(plan, result)
    found = Image.open(io.BytesIO(encode_result(result, text).content)).info
    assert found == text
    assert json.loads(found["prompt"])


def require_renderable(job: Job) -> None:
    """Check that the job can be shown as a result with an image and by `GET /v1/jobs/{id}`."""

    def url_for(job_id: str, stored: Any) -> str:
        return f"{job_id}/{stored.index}"

    with_image = Job(
        job.id, 2, 2, job.submitted, job.submitted_at, images=(image(job.submitted.images),)
    )
    assert json.loads(result_of(with_image, url_for).body())["results"]
    assert json.loads(job.submitted.model_dump_json())["request"] == job.submitted.request
