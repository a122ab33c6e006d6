"""Latents and images against those that ComfyUI made of the same graphs and weights.

Every second graph; all of them, in a minute, where DARKROOM_PARITY_FULL is set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.comfyui.cases import CASES, WEIGHTS, read_answers
from tests.support.comfyui.weights import digests_of, write_weights
from tests.support.engine import parity
from tests.support.engine.latents import Recorded, psnr_db_of, recorded

AT_ONCE = 64
# With a signal-to-noise ratio of zero, the first sigma is above 4,000 and multiplies the rounding
# of float32, which differs between AVX2 and AVX-512 and with the number of threads.
LEAST_DB = {"patch_v_prediction_zero_snr": 90}
COMPARED = {name: CASES[name] for name in list(CASES)[:: 1 if parity.FULL else 2]}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return read_answers()


@pytest.fixture(scope="module")
def runs(
    small: Catalogue, answers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Recorded]:
    root = tmp_path_factory.mktemp("comfyui")
    checkpoint = small.models.path("checkpoints", parity.SMALL)
    (root / "checkpoints").symlink_to(checkpoint.parent)
    write_weights(root, checkpoint)
    if any(str(answers[WEIGHTS + name]) != digest for name, digest in digests_of(root).items()):
        pytest.skip("this torch makes other weights")
    catalogue = Catalogue(ModelsFolder(root))
    names, graphs = list(COMPARED), list(COMPARED.values())
    found: list[Recorded] = []
    for first in range(0, len(graphs), AT_ONCE):
        found += recorded(graphs[first : first + AT_ONCE], catalogue, parity.input_files())
    return dict(zip(names, found, strict=True))


def test_each_case_has_an_answer(answers: dict[str, Any]) -> None:
    assert {name for name in answers if not name.startswith(WEIGHTS)} == set(CASES)


@parity.needs_parity
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", COMPARED)
def test_latents_and_images_are_those_of_comfyui(
    case: str, runs: dict[str, Recorded], answers: dict[str, Any]
) -> None:
    run, expected = runs[case], answers[case]
    if run.saved:
        found = np.asarray(run.saved["saved"])
        assert found.shape == expected.shape
        assert psnr_db_of(found, expected) >= LEAST_DB.get(case, 100)
    else:
        found = np.stack(run.images).astype(int)
        assert found.shape == expected.shape
        assert np.abs(found - expected.astype(int)).max() <= 1
