"""Pixels against those of ComfyUI on the same weights; the cases come from DARKROOM_PARITY_DIR.

Cases on the full-size checkpoint (2 GB, minutes) run only where DARKROOM_PARITY_FULL is set too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.catalogue import Catalogue
from engine.models_folder import ModelsFolder
from tests.unit.engine.latents import psnr_db_of, recorded

PARITY = os.environ.get("DARKROOM_PARITY_DIR")
FULL = os.environ.get("DARKROOM_PARITY_FULL")
SMALL_CASES = (
    "euler__normal",
    "euler__normal_steps1",
    "dpmpp_2m__karras",
    "dpmpp_2m__karras_d0.3",
    "deis__exponential",
    "dpmpp_sde__simple",
    "euler_ancestral__beta",
    "heun__karras",
    "lcm__ddim_uniform",
    "lms__sgm_uniform",
    "uni_pc__normal",
)
FULL_CASES = (
    "a_split_euler",
    "b_batch3",
    "h_hires_bilinear",
    "i_img2img",
    "l_lora_08_05",
    "m_noisemask_euler",
    "p_clipskip2",
    "p_long",
    "p_weight13",
)
SAVED_LATENTS = {"10": "latent.safetensors", "14": "latent_14.safetensors"}
"""The file that each of a case's SaveLatent nodes wrote."""
VOCABULARY = Path(__file__).parents[3] / "engine" / "diffusion" / "configs" / "tokenizer"

pytestmark = [
    pytest.mark.skipif(PARITY is None, reason="DARKROOM_PARITY_DIR is not set"),
    pytest.mark.timeout(1800),
]
needs_full = pytest.mark.skipif(FULL is None, reason="DARKROOM_PARITY_FULL is not set")


@pytest.fixture(scope="module")
def make_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Catalogue]:
    """Makes a checkpoint of a size under a name and gives the catalogue that lists it."""
    root = tmp_path_factory.mktemp("parity")
    merges = root / "bpe_simple_vocab_16e6.txt.gz"
    merges.write_bytes(gzip.compress((VOCABULARY / "merges.txt").read_bytes()))

    def make(size: str, name: str) -> Catalogue:
        out = root / "checkpoints" / name
        script = Path(str(PARITY)) / "make_checkpoint.py"
        config = out.with_suffix(".config")
        command = [sys.executable, str(script), size, str(out), str(config), str(merges)]
        subprocess.run(command, check=True, timeout=900, capture_output=True)
        _require_digest(out)
        return Catalogue(ModelsFolder(root))

    return make


@pytest.fixture(scope="module")
def small(make_checkpoint: Callable[[str, str], Catalogue]) -> Catalogue:
    return make_checkpoint("small", "sd15_small.safetensors")


@pytest.fixture(scope="module")
def full(make_checkpoint: Callable[[str, str], Catalogue]) -> Catalogue:
    catalogue = make_checkpoint("full", "sd15_rand.safetensors")
    checkpoint = catalogue.models.path("checkpoints", "sd15_rand.safetensors")
    lora = checkpoint.parents[1] / "loras" / "rand_lora.safetensors"
    lora.parent.mkdir()
    script = Path(str(PARITY)) / "make_lora.py"
    config = checkpoint.with_suffix(".config") / "unet" / "config.json"
    command = [sys.executable, str(script), str(lora), str(config)]
    subprocess.run(command, check=True, timeout=900, capture_output=True)
    return catalogue


@pytest.mark.parametrize("case", SMALL_CASES)
def test_latents_and_pixels_are_those_of_comfyui(case: str, small: Catalogue) -> None:
    _compare(case, small)


@needs_full
@pytest.mark.parametrize("case", FULL_CASES)
def test_latents_and_pixels_are_those_of_comfyui_at_full_size(case: str, full: Catalogue) -> None:
    _compare(case, full)


def _compare(case: str, catalogue: Catalogue) -> None:
    from safetensors.numpy import load_file

    folder = Path(str(PARITY)) / "cases" / case
    prompt = json.loads((folder / "graph.json").read_text())
    inputs = {path.name: path.read_bytes() for path in (Path(str(PARITY)) / "inputs").iterdir()}
    (run,) = recorded([prompt], catalogue, inputs)
    assert run.saved
    for node_id, latent in run.saved.items():
        expected = load_file(folder / SAVED_LATENTS[node_id])["latent_tensor"]
        psnr_db = psnr_db_of(latent, expected)
        print(f"{case}, node {node_id}: {psnr_db:.1f} dB")  # noqa: T201 - the figure, under -s
        assert psnr_db >= 100
    shown = sorted(folder.glob("*.png"))
    assert len(shown) == len(run.images)
    for path, pixels in zip(shown, run.images, strict=True):
        reference = np.asarray(Image.open(path).convert("RGB"), dtype=int)
        assert np.abs(reference - pixels.astype(int)).max() <= 1


def _require_digest(path: Path) -> None:
    """Other weights than the cases were made with would make the comparison void."""
    digests = (Path(str(PARITY)) / "SHA256").read_text()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest not in digests:
        pytest.skip(f"this torch makes another {path.name}: {digest}")
