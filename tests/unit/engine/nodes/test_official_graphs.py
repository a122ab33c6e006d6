"""ComfyUI's own graphs are valid here, but for those that are listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.comfyui.official import examples, template, with_models
from tests.support.engine.graphs import cost_of, refusal_of

LACKING = {
    "3d/stable_zero123_example": "ImageOnlyCheckpointLoader",
}
"""Those that are not valid, and a node that each of them lacks."""
TEMPLATES = (
    "basic_datatype_conversion",
    "basic_switch_node",
    "basic_mask_operations_and_compositing",
    "flux1_krea_dev",
    "flux_canny_model_example",
    "flux_fill_inpaint_example",
    "flux_fill_outpaint_example",
    "flux_kontext_dev_basic",
    "flux_redux_model_example",
    "image_anima_base_v1",
    "image_sdxl_simple",
    "image_z_image",
    "image_z_image_int8",
    "image_z_image_turbo",
    "sdxl_simple_example",
    "sdxl_refiner_prompt_example",
    "sdxlturbo_example",
    "utility_image_stitch",
    "utility_interpolation_image_upscale",
    "utility_z_image_turbo_2k_upscaler.app",
)


@pytest.mark.parametrize("name", sorted(examples().keys() - LACKING.keys()))
def test_the_graphs_of_example_pictures_are_valid(name: str, tmp_path: Path) -> None:
    graph = examples()[name]
    assert cost_of(graph, with_models(graph, tmp_path)).work > 0


@pytest.mark.parametrize("name", LACKING)
def test_the_others_lack_a_node(name: str, tmp_path: Path) -> None:
    graph = examples()[name]
    assert LACKING[name] in str(refusal_of(graph, with_models(graph, tmp_path)))


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_valid(name: str, tmp_path: Path) -> None:
    graph = template(name, Catalogue(ModelsFolder(tmp_path)))
    assert cost_of(graph, with_models(graph, tmp_path)).outputs > 0
