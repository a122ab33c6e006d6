from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from actors.scheduler.fairness import checkpoint_of
from actors.worker.plan import plan_text, planner
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import ImageReady
from events.job import Job
from events.types import Flavour, Terms
from settings.version import VERSION
from tests.support.engine.diffusion_requests import compiled_members
from tests.support.engine.workflows import text_to_image
from tests.support.events import image, submitted

CHECKPOINT = "example.safetensors"
HASHED = "sshs_model_hash"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / CHECKPOINT).touch()
    return Catalogue(ModelsFolder(tmp_path))


def job_of(**fields: Any) -> Job:
    return Job("j", 1, 1, submitted(**fields), datetime(2026, 1, 1, tzinfo=UTC))


def text_of(catalogue: Catalogue, index: int, **fields: Any) -> dict[str, str]:
    """The PNG text of one image of a job."""
    plan = planner(catalogue.models, Limits())(job_of(**fields))
    return plan_text(plan, ImageReady(index, "9", np.zeros((8, 8, 3), np.uint8), seed=7 + index))


def test_a_diffusion_image_says_graph_seed_and_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": "a (red:1.2) circle", "seed": 7, "batch_size": 2, "n_iter": 2}
    text = text_of(catalogue, 3, **compiled_members(catalogue, CHECKPOINT, **request))
    assert text.keys() == {"prompt", "parameters", "seed"}
    assert text["seed"] == "10"
    assert "save-3" in json.loads(text["prompt"])
    assert text["parameters"] == (
        "a (red:1.2) circle\nSteps: 20, Sampler: Euler, Schedule type: Automatic, CFG scale: 7, "
        f"Seed: 10, Size: 512x512, Model: example, Version: Darkroom {VERSION}"
    )


def test_the_parameters_tell_the_hashes_of_networks(catalogue: Catalogue, tmp_path: Path) -> None:
    for kind in ("loras", "embeddings"):
        (tmp_path / kind).mkdir()
    save_file({"x": np.zeros(1)}, tmp_path / "loras" / "ink.safetensors", {HASHED: "AB" * 32})
    save_file({"x": np.zeros(1)}, tmp_path / "embeddings" / "bad.safetensors")
    request = {"prompt": "a <lora:ink:0.5> dog", "negative_prompt": "(bad:1.2)", "seed": 7}
    text = text_of(catalogue, 0, **compiled_members(catalogue, CHECKPOINT, **request))["parameters"]
    digest = hashlib.sha256((tmp_path / "embeddings" / "bad.safetensors").read_bytes()).hexdigest()
    assert f'Lora hashes: "ink: abababababab", TI hashes: "bad: {digest[:12]}", Version' in text


def test_a_workflows_image_has_no_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": {"workflow": {"a": 1}}}}
    text = text_of(catalogue, 0, flavour=Flavour.WORKFLOW, request=request)
    assert text.keys() == {"prompt", "seed", "workflow"}


@pytest.mark.parametrize("flavour", Flavour)
def test_an_image_of_a_bare_job_says_nothing(catalogue: Catalogue, flavour: Flavour) -> None:
    asked = {"request": {"prompt": text_to_image()}}
    if flavour is Flavour.DIFFUSION:
        asked = compiled_members(catalogue, CHECKPOINT, prompt="a red circle", seed=1)
    assert text_of(catalogue, 0, flavour=flavour, **asked, bare=True) == {}


def test_images_that_are_stored_are_not_made_again(catalogue: Catalogue) -> None:
    job = job_of(**compiled_members(catalogue, CHECKPOINT, prompt="x", seed=5, batch_size=3))
    plan = planner(catalogue.models, Limits())
    assert plan(job).first_index == {"save-0": 0, "save-1": 1, "save-2": 2}
    later = plan(replace(job, images=(image(0), image(2))))
    assert later.first_index == {"save-1": 1}
    graph = validate(later.prompt, catalogue, Limits())
    assert {node.id for node in graph.nodes} == later.prompt.keys()
    samplers = {node.id for node in graph.nodes if node.class_type == "KSampler"}
    assert samplers == {"sample-1"}
    assert later.describe is not None
    assert "Seed: 6," in later.describe(1)


JUNK = [None, 5, "ckpt_name", [], ["ckpt_name"], {}, {"ckpt_name": ["a", 0]}, {"ckpt_name": 5}]


class TestARequestOfAWrongShape:
    """It may be on the log: no check of today was there when it was accepted."""

    @pytest.mark.parametrize("junk", JUNK)
    def test_names_no_checkpoint(self, junk: Any) -> None:
        loader = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}}
        prompts = ({"1": junk}, {"1": {"inputs": junk}}, junk)
        for request in ({"prompt": prompt} for prompt in prompts):
            assert checkpoint_of(job_of(flavour=Flavour.WORKFLOW, request=request)) is None
        request = {"prompt": {"1": junk, "2": {"inputs": junk}, "3": loader}}
        assert checkpoint_of(job_of(flavour=Flavour.WORKFLOW, request=request)) == CHECKPOINT
        request = {"override_settings": junk, "sd_model_checkpoint": junk}
        assert checkpoint_of(job_of(request=request)) in {None, "ckpt_name"}
        assert checkpoint_of(job_of(flavour=Flavour.WORKFLOW, request={})) is None

    @pytest.mark.parametrize("pnginfo", ["abc", [1], 5, {"日本": 1}, {"": 1}, {"a" * 80: 1}])
    def test_cannot_be_planned(self, catalogue: Catalogue, pnginfo: Any) -> None:
        request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": pnginfo}}
        with pytest.raises(EngineError, match=r"extra_data\.extra_pnginfo"):
            text_of(catalogue, 0, flavour=Flavour.WORKFLOW, request=request)


@pytest.mark.parametrize("flavour", Flavour)
def test_a_job_has_the_limits_that_it_was_accepted_with(
    catalogue: Catalogue, flavour: Flavour
) -> None:
    """Whatever its endpoint takes by now; a job that records none has those of its worker."""
    asked = {"request": {"prompt": text_to_image()}}
    if flavour is Flavour.DIFFUSION:
        asked = compiled_members(catalogue, CHECKPOINT, prompt="a cat", seed=7)
    of_worker = Limits(max_nodes=99, max_steps=5, max_pixels=16, max_cost=1.0)
    terms = Terms(max_steps=20, max_pixels=2**20, max_cost=0.0)
    plan = planner(catalogue.models, of_worker)
    made = plan(job_of(flavour=flavour, **asked, terms=terms))
    assert made.limits == Limits(max_nodes=99, max_steps=20, max_pixels=2**20, max_cost=0.0)
    assert plan(job_of(flavour=flavour, **asked)).limits == of_worker
