from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.safetensors_header import Header, read_header
from engine.webui.compiler import compile_parameters
from engine.webui.default_size import default_side
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


def test_a_checkpoint_is_looked_into_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: Path) -> Header:
        read.append(path.name)
        return read_header(path)

    monkeypatch.setattr("engine.families.recognition.read_header", counted)
    models, checkpoint = ModelsFolder(tmp_path, ttl_s=0), tmp_path / "x.safetensors"
    for length in (1, 2):
        save_file({"x": np.zeros(length, np.float32)}, checkpoint)
        for _ in range(3):
            assert default_side(models, checkpoint.name) == 512
    assert len(read) == 2
