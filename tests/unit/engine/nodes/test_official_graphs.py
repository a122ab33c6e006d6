"""ComfyUI's own graphs for SD1, SD2 and SDXL are valid here, but for those that are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import GraphInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from tests.support.comfyui.official import examples, template, with_models

LACKING = {
    "3d/stable_zero123_example": "ImageOnlyCheckpointLoader",
    "edit_models/sdxl_edit_model": "InstructPixToPixConditioning",
    "gligen/gligen_textbox_example": "GLIGENLoader",
}
"""Those that are not valid, and a node that each of them lacks."""
TEMPLATES = (
    "image_sdxl_simple",
    "sdxl_simple_example",
    "sdxl_refiner_prompt_example",
    "sdxlturbo_example",
)


@pytest.mark.parametrize("name", sorted(examples().keys() - LACKING.keys()))
def test_the_graphs_of_example_pictures_are_valid(name: str, tmp_path: Path) -> None:
    graph = examples()[name]
    found = validate(graph, with_models(graph, tmp_path), Limits())
    assert found.cost.work > 0


@pytest.mark.parametrize("name", LACKING)
def test_the_others_lack_a_node(name: str, tmp_path: Path) -> None:
    graph = examples()[name]
    with pytest.raises(GraphInvalid, match=LACKING[name]):
        validate(graph, with_models(graph, tmp_path), Limits())


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_valid(name: str, tmp_path: Path) -> None:
    graph = template(name, Catalogue(ModelsFolder(tmp_path)))
    found = validate(graph, with_models(graph, tmp_path), Limits())
    assert found.cost.work > 0
