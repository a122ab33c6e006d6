from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.worker.plan import plan_text, planner
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.reports import ImageReady
from events.job import Job
from events.types import Flavour
from settings.version import VERSION
from tests.support.engine.workflows import text_to_image
from tests.support.events import submitted

CHECKPOINT = "example.safetensors"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / CHECKPOINT).touch()
    return Catalogue(ModelsFolder(tmp_path))


def text_of(catalogue: Catalogue, index: int, **fields: Any) -> dict[str, str]:
    """The PNG text of one image of a job."""
    job = Job("j", 1, 1, submitted(**fields), datetime(2026, 1, 1, tzinfo=UTC))
    plan = planner(catalogue, Limits(), CHECKPOINT)(job)
    return plan_text(plan, ImageReady(index, "9", np.zeros((8, 8, 3), np.uint8), seed=7 + index))


def test_a_diffusion_image_says_graph_seed_and_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": "a (red:1.2) circle", "seed": 7, "batch_size": 2, "n_iter": 2}
    text = text_of(catalogue, 3, request=request)
    assert text.keys() == {"prompt", "parameters", "seed"}
    assert text["seed"] == "10"
    assert "save-3" in json.loads(text["prompt"])
    assert text["parameters"] == (
        "a (red:1.2) circle\nSteps: 20, Sampler: Euler, Schedule type: Automatic, CFG scale: 7, "
        f"Seed: 10, Size: 512x512, Model: example, Version: Darkroom {VERSION}"
    )


def test_a_workflows_image_has_no_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": {"workflow": {"a": 1}}}}
    text = text_of(catalogue, 0, flavour=Flavour.WORKFLOW, request=request)
    assert text.keys() == {"prompt", "seed", "workflow"}
