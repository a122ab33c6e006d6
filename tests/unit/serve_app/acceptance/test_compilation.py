"""The checkpoints that an endpoint allows, in both flavours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from events.store.records import Endpoint, StoredEndpoint
from events.types import Flavour
from serve_app.acceptance.acceptance import terms_of
from serve_app.acceptance.compilation import RequestCompiler
from serve_app.endpoints.schemas import EndpointInfo
from settings.graph import Compatibility, GraphSettings
from tests.support.generate_bodies import CHECKPOINT, diffusion_body, workflow_body

OTHER = "another.safetensors"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    for name in (CHECKPOINT, OTHER):
        (tmp_path / name).touch()
    return Catalogue(ModelsFolder(tmp_path))


def compiler(
    catalogue: Catalogue, *allowed: str, own: str | None = None, usual: str | None = None
) -> RequestCompiler:
    endpoint = Endpoint("own", checkpoint=own, checkpoints=allowed or None)
    return RequestCompiler(endpoint, catalogue, GraphSettings(), default_checkpoint=usual)


def test_a_job_may_use_those_that_are_allowed(catalogue: Catalogue) -> None:
    for allowed in ((), (CHECKPOINT,), (CHECKPOINT, OTHER)):
        ours = compiler(catalogue, *allowed)
        ours.compile(Flavour.WORKFLOW, workflow_body())
        ours.compile(Flavour.DIFFUSION, diffusion_body())


def test_another_one_is_refused_with_those_that_are(catalogue: Catalogue) -> None:
    ours = compiler(catalogue, OTHER)
    with pytest.raises(GraphInvalid) as refused:
        ours.compile(Flavour.WORKFLOW, workflow_body())
    assert "value_not_in_list" in str(refused.value.node_errors)
    with pytest.raises(ParametersInvalid, match=f"there are: {OTHER}"):
        ours.compile(Flavour.DIFFUSION, diffusion_body())


@pytest.mark.parametrize(
    ("allowed", "own", "usual", "expected"),
    [
        ((), None, None, OTHER),
        ((), None, CHECKPOINT, CHECKPOINT),
        ((CHECKPOINT,), None, None, CHECKPOINT),
        ((CHECKPOINT,), None, OTHER, CHECKPOINT),
        ((CHECKPOINT, OTHER), CHECKPOINT, OTHER, CHECKPOINT),
    ],
)
def test_a_job_that_names_none_gets_the_usual_one_or_the_first_that_is_allowed(
    catalogue: Catalogue,
    allowed: tuple[str, ...],
    own: str | None,
    usual: str | None,
    expected: str,
) -> None:
    body = diffusion_body()
    del body["sd_model_checkpoint"]
    del body["override_settings"]
    ours = compiler(catalogue, *allowed, own=own, usual=usual)
    request = ours.compile(Flavour.DIFFUSION, body).recorded_request
    assert request["sd_model_checkpoint"] == expected


@pytest.mark.parametrize(
    ("asked", "of_endpoint", "of_service", "expected"),
    [
        (None, None, "webui", "webui"),
        (None, None, "comfyui", "comfyui"),
        (None, "comfyui", "webui", "comfyui"),
        (None, "webui", "comfyui", "webui"),
        ("webui", "comfyui", "comfyui", "webui"),
        ("comfyui", "webui", "webui", "comfyui"),
    ],
)
def test_the_request_says_its_compatibility_or_its_endpoint_or_the_service(
    catalogue: Catalogue,
    asked: str | None,
    of_endpoint: Compatibility | None,
    of_service: Compatibility,
    expected: str,
) -> None:
    endpoint = Endpoint("own", compatibility=of_endpoint)
    assert EndpointInfo.of(StoredEndpoint(endpoint=endpoint)).compatibility == of_endpoint
    settings = GraphSettings(compatibility=of_service)
    compiler = RequestCompiler(endpoint, catalogue, settings, default_checkpoint=CHECKPOINT)
    body: dict[str, Any] = {"prompt": "a dog", "width": 64, "height": 64, "compatibility": asked}
    recorded = compiler.compile(Flavour.DIFFUSION, body).recorded_request
    # What the caller does not say is one of the job's terms: a worker of the version before, which
    # runs beside this one in a rolling update, would refuse a member that it does not know.
    assert recorded.get("compatibility") == asked
    assert (asked or terms_of(endpoint, settings).compatibility) == expected
    assert recorded["steps"] == {"webui": 50, "comfyui": 20}[expected]
