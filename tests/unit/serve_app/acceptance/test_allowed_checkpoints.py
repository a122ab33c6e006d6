"""The checkpoints that an endpoint allows, in both flavours."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import GraphInvalid, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from events.store.records import Endpoint
from events.types import Flavour
from serve_app.acceptance.checker import Checker, checker_for
from settings.graph import GraphSettings
from tests.support.generate_bodies import CHECKPOINT, diffusion_body, workflow_body

OTHER = "another.safetensors"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    for name in (CHECKPOINT, OTHER):
        (tmp_path / name).touch()
    return Catalogue(ModelsFolder(tmp_path))


def checker(
    catalogue: Catalogue, *allowed: str, own: str | None = None, usual: str | None = None
) -> Checker:
    endpoint = Endpoint("own", checkpoint=own, checkpoints=allowed or None)
    return checker_for(endpoint, catalogue, GraphSettings(), default_checkpoint=usual)


def test_a_job_may_use_those_that_are_allowed(catalogue: Catalogue) -> None:
    for allowed in ((), (CHECKPOINT,), (CHECKPOINT, OTHER)):
        ours = checker(catalogue, *allowed)
        ours.check(Flavour.WORKFLOW, workflow_body())
        ours.check(Flavour.DIFFUSION, diffusion_body())


def test_another_one_is_refused_with_those_that_are(catalogue: Catalogue) -> None:
    ours = checker(catalogue, OTHER)
    with pytest.raises(GraphInvalid) as refused:
        ours.check(Flavour.WORKFLOW, workflow_body())
    assert "value_not_in_list" in str(refused.value.node_errors)
    with pytest.raises(ParametersInvalid, match=f"there are: {OTHER}"):
        ours.check(Flavour.DIFFUSION, diffusion_body())


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
    ours = checker(catalogue, *allowed, own=own, usual=usual)
    request = ours.check(Flavour.DIFFUSION, body).request
    assert request["sd_model_checkpoint"] == expected
