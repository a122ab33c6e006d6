from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from actors.worker.plan import checkpoint_of, plan_text, planner
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.reports import ImageReady
from events.job import Job
from events.types import Flavour, Terms
from settings.version import VERSION
from tests.support.engine.workflows import text_to_image
from tests.support.events import submitted

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
    plan = planner(catalogue, Limits(), CHECKPOINT)(job_of(**fields))
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


def test_the_parameters_tell_the_hashes_of_networks(catalogue: Catalogue, tmp_path: Path) -> None:
    for kind in ("loras", "embeddings"):
        (tmp_path / kind).mkdir()
    save_file({"x": np.zeros(1)}, tmp_path / "loras" / "ink.safetensors", {HASHED: "AB" * 32})
    save_file({"x": np.zeros(1)}, tmp_path / "embeddings" / "bad.safetensors")
    request = {"prompt": "a <lora:ink:0.5> dog", "negative_prompt": "(bad:1.2)", "seed": 7}
    text = text_of(catalogue, 0, request=request)["parameters"]
    digest = hashlib.sha256((tmp_path / "embeddings" / "bad.safetensors").read_bytes()).hexdigest()
    assert f'Lora hashes: "ink: abababababab", TI hashes: "bad: {digest[:12]}", Version' in text


def test_a_workflows_image_has_no_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": {"workflow": {"a": 1}}}}
    text = text_of(catalogue, 0, flavour=Flavour.WORKFLOW, request=request)
    assert text.keys() == {"prompt", "seed", "workflow"}


@pytest.mark.parametrize("flavour", Flavour)
def test_an_image_of_a_bare_job_says_nothing(catalogue: Catalogue, flavour: Flavour) -> None:
    prompt = text_to_image() if flavour is Flavour.WORKFLOW else "a red circle"
    request = {"prompt": prompt, "seed": 1}
    assert text_of(catalogue, 0, flavour=flavour, request=request, bare=True) == {}


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

    @pytest.mark.parametrize("request_", [{}, {"prompt": 5}, {"prompt": {}, "steps": []}])
    def test_of_the_other_flavour_cannot_be_planned(
        self, catalogue: Catalogue, request_: Any
    ) -> None:
        with pytest.raises(EngineError):
            text_of(catalogue, 0, request=request_)


@pytest.mark.parametrize("flavour", Flavour)
def test_a_job_has_the_limits_that_it_was_accepted_with(
    catalogue: Catalogue, flavour: Flavour
) -> None:
    """Whatever its endpoint takes by now; one of an older version has those of its worker."""
    prompt = {"prompt": "a cat", "seed": 7, "steps": 20}
    request = prompt if flavour is Flavour.DIFFUSION else {"prompt": text_to_image()}
    of_worker = Limits(max_nodes=99, max_steps=5, max_pixels=16, max_cost=1.0)
    terms = Terms(max_steps=20, max_pixels=2**20, max_cost=0.0)
    plan = planner(catalogue, of_worker, CHECKPOINT)
    made = plan(job_of(flavour=flavour, request=request, terms=terms))
    assert made.limits == Limits(max_nodes=99, max_steps=20, max_pixels=2**20, max_cost=0.0)
    if flavour is Flavour.DIFFUSION:
        with pytest.raises(EngineError):
            plan(job_of(flavour=flavour, request=request))
    else:
        assert plan(job_of(flavour=flavour, request=request)).limits == of_worker


@pytest.mark.parametrize(
    ("terms", "request_", "expected"),
    [
        (None, {}, "comfyui"),
        ({}, {}, "comfyui"),
        ({"compatibility": "webui"}, {}, "webui"),
        ({"compatibility": "comfyui"}, {}, "comfyui"),
        ({"compatibility": "webui"}, {"compatibility": "comfyui"}, "comfyui"),
    ],
)
def test_a_request_means_what_it_meant_when_it_was_accepted(
    catalogue: Catalogue,
    terms: dict[str, str] | None,
    request_: dict[str, str],
    expected: str,
) -> None:
    own = None if terms is None else Terms(max_steps=20, max_pixels=2**20, max_cost=0.0, **terms)
    plan = planner(catalogue, Limits(), CHECKPOINT)
    made = plan(job_of(request={"prompt": "a cat", "seed": 7, "steps": 9} | request_, terms=own))
    sampler = "KSampler" if expected == "comfyui" else "WebUISampler"
    assert sampler in {each["class_type"] for each in made.prompt.values()}
