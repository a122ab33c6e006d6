from __future__ import annotations

from pathlib import Path

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters


def test_default_size_is_that_of_the_checkpoints_kind(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "xl"
    folder.mkdir(parents=True)
    for pipeline, side in (("StableDiffusionXLPipeline", 1024), ("StableDiffusionPipeline", 512)):
        (folder / "model_index.json").write_text(f'{{"_class_name": "{pipeline}"}}')
        catalogue = Catalogue(ModelsFolder(tmp_path))
        parameters = parse_parameters({"prompt": "x", "seed": 1, "height": 256})
        (made,) = compile_parameters(
            parameters, catalogue, Limits(), default_checkpoint="xl"
        ).passes
        assert (made.width, made.height) == (side, 256)
