"""What is accepted can be stored, dispatched, planned, shown and accepted again; the rest is a 400.

`DARKROOM_PROPERTY_EXAMPLES` says how many requests are drawn.
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

from actors.worker.plan import checkpoint_of, plan_text, planner
from actors.worker.result_file import encode_result
from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from engine.graph.validation import validate
from engine.reports import ImageReady
from events.job import Job
from events.result import result_of
from events.store.job_rows import from_state, job_row
from events.store.records import Endpoint
from events.types import Event, Flavour, Submitted
from events.wire.cloud_events import decode, encode
from serve_app.acceptance.checker import CheckedRequest, Checker, checker_for
from serve_app.api_error import ApiError
from serve_app.body import parse_json
from serve_app.endpoints.used import terms_of
from serve_app.errors import ANSWERS
from settings.graph import GraphSettings
from tests.support.engine.mutations import Requests
from tests.support.engine.workflows import TINY
from tests.support.events import JOB_ID, START, image, submitted

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


@pytest.fixture(scope="module")
def checker(catalogue: Catalogue) -> Checker:
    return checker_for(Endpoint("default"), catalogue, GraphSettings(), default_checkpoint=None)


@pytest.fixture(scope="module")
def requests(catalogue: Catalogue) -> Requests:
    return Requests(catalogue)


@given(seed=st.integers(0, 2**64))
@settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
def test_what_is_accepted_is_runnable(checker: Checker, requests: Requests, seed: int) -> None:
    note(f"seed {seed}")
    draw = random.Random(seed)
    flavour = Flavour.WORKFLOW if draw.random() < 0.7 else Flavour.DIFFUSION
    body = requests.workflow(draw) if flavour is Flavour.WORKFLOW else requests.diffusion(draw)
    content = json.dumps(body, ensure_ascii=draw.random() < 0.5).encode()
    try:
        checked = checker.check(flavour, parse_json(content))
    except (ApiError, GraphInvalid, ParametersInvalid) as refusal:
        event(f"{flavour}: {type(refusal).__name__}")
        require_small_refusal(refusal)
        return
    event(f"{flavour}: accepted")
    if checked.sent_images:
        names = {each.place: f"{n}.png" for n, each in enumerate(checked.sent_images)}
        checked = checker.with_uploads(checked, names)
    require_idempotent(checked, flavour, checker)
    job = require_storable(checked, flavour)
    require_plannable(job, checker)
    require_renderable(job)


def require_small_refusal(refusal: Exception) -> None:
    answer = ANSWERS[type(refusal)](refusal).response()
    assert answer.status_code == 400
    assert len(bytes(answer.body)) < LARGEST_REFUSAL
    json.loads(bytes(answer.body).decode())


def require_idempotent(checked: CheckedRequest, flavour: Flavour, checker: Checker) -> None:
    """What is recorded is accepted again, and is recorded alike."""
    sent_again = parse_json(json.dumps(checked.request).encode())
    assert checker.check(flavour, sent_again) == checked


def require_storable(checked: CheckedRequest, flavour: Flavour) -> Job:
    """In the log and in the database; the job as it comes back."""
    terms = terms_of(Endpoint("default"), GraphSettings())
    data = submitted(flavour=flavour, request=checked.request, images=checked.images, terms=terms)
    payload = encode(Event("e", JOB_ID, 1, START, data))
    assert len(payload) < LARGEST_EVENT
    stored = decode(payload).data
    assert stored == data
    assert isinstance(stored, Submitted)
    job = Job(JOB_ID, 1, 1, stored, datetime(2026, 1, 1, tzinfo=UTC))
    assert from_state(job_row(job)["state"]) == job
    return job


def require_plannable(job: Job, checker: Checker) -> None:
    """With the texts of its files, too."""
    assert isinstance(checkpoint_of(job), str | None)
    limits: Limits = checker.limits
    plan = planner(checker.catalogue, limits, checker.default_checkpoint)(job)
    graph: Graph = validate(plan.prompt, checker.catalogue, limits)
    again = validate(graph.prompt, checker.catalogue, limits)
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
    """As a result with an image, and as `GET /v1/jobs/{id}` shows the request."""

    def url_for(job_id: str, stored: Any) -> str:
        return f"{job_id}/{stored.index}"

    with_image = Job(
        job.id, 2, 2, job.submitted, job.submitted_at, images=(image(job.submitted.images),)
    )
    assert json.loads(result_of(with_image, url_for).body())["results"]
    assert json.loads(job.submitted.model_dump_json())["request"] == job.submitted.request
