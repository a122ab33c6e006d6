"""Whose meaning a diffusion request has that does not say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from events.store.records import Endpoint, StoredEndpoint
from events.types import Flavour
from serve_app.acceptance.checker import checker_for
from serve_app.endpoints.answers import EndpointInfo
from serve_app.endpoints.bodies import NewEndpoint
from serve_app.endpoints.used import terms_of
from settings.graph import Compatibility, GraphSettings


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
def test_the_request_says_it_or_its_endpoint_or_the_service(
    tmp_path: Path,
    asked: str | None,
    of_endpoint: Compatibility | None,
    of_service: Compatibility,
    expected: str,
) -> None:
    (tmp_path / "x.safetensors").touch()
    endpoint = Endpoint("own", compatibility=of_endpoint)
    settings = GraphSettings(compatibility=of_service)
    catalogue = Catalogue(ModelsFolder(tmp_path))
    checker = checker_for(endpoint, catalogue, settings, default_checkpoint="x.safetensors")
    body: dict[str, Any] = {"prompt": "a dog", "width": 64, "height": 64, "compatibility": asked}
    recorded = checker.check(Flavour.DIFFUSION, body).request
    # What the caller does not say is one of the job's terms: a worker of the version before, which
    # runs beside this one in a rolling update, would refuse a member that it does not know.
    assert recorded.get("compatibility") == asked
    assert (asked or terms_of(endpoint, settings).compatibility) == expected
    assert recorded["steps"] == {"webui": 50, "comfyui": 20}[expected]


def test_an_endpoint_is_given_it_and_shows_it() -> None:
    asked = NewEndpoint.model_validate({"id": "own", "compatibility": "comfyui"})
    assert asked.given() == {"compatibility": "comfyui"}
    stored = StoredEndpoint(endpoint=Endpoint("own", **asked.given()))
    assert EndpointInfo.of(stored).compatibility == "comfyui"
    with pytest.raises(ValidationError):
        NewEndpoint.model_validate({"id": "own", "compatibility": "a1111"})
