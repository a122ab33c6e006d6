from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import CheckpointUnavailable
from engine.graph.safetensors_header import read_header


def write(path: Path, shapes: dict[str, list[int]]) -> None:
    save_file({key: np.zeros(shape, np.float16) for key, shape in shapes.items()}, path)


def test_the_shapes_are_those_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"x": [3, 5], "y": []})
    assert read_header(tmp_path / "x.safetensors").shapes == {"x": (3, 5), "y": ()}


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_file_that_was_cut_short_is_damaged(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"x": [1000]})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointUnavailable, match="cut short"):
        read_header(path)
