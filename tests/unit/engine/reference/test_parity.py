"""Pixels against those of ComfyUI on the same weights; the cases come from DARKROOM_PARITY_DIR.

Cases on the full-size checkpoint (2 GB, minutes) run only where DARKROOM_PARITY_FULL is set too.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine import parity
from tests.support.engine.latents import psnr_db_of, recorded

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

pytestmark = [parity.needs_parity, pytest.mark.timeout(1800)]
needs_full = pytest.mark.skipif(parity.FULL is None, reason="DARKROOM_PARITY_FULL is not set")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    root = tmp_path_factory.mktemp("full")
    checkpoint = root / "checkpoints" / "sd15_rand.safetensors"
    parity.write_checkpoint("full", checkpoint)
    if not parity.has_known_digest(checkpoint):
        pytest.skip("this torch makes other weights")
    parity.write_lora(root / "loras" / "rand_lora.safetensors", checkpoint)
    return Catalogue(ModelsFolder(root))


@pytest.mark.parametrize("case", SMALL_CASES)
def test_latents_and_pixels_are_those_of_comfyui(case: str, small: Catalogue) -> None:
    _compare(case, small)


@needs_full
@pytest.mark.parametrize("case", FULL_CASES)
def test_latents_and_pixels_are_those_of_comfyui_at_full_size(case: str, full: Catalogue) -> None:
    _compare(case, full)


def _compare(case: str, catalogue: Catalogue, group: str = "cases") -> None:
    from safetensors.numpy import load_file

    folder = parity.folder() / group / case
    prompt = json.loads((folder / "graph.json").read_text())
    (run,) = recorded([prompt], catalogue, parity.input_files())
    assert run.saved or group == "next"
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


def next_cases() -> list[str]:
    """The cases of nodes that came later; each is a folder."""
    if parity.PARITY is None:
        return []
    return sorted(path.name for path in (parity.folder() / "next").iterdir())


@pytest.mark.parametrize("case", next_cases())
def test_pixels_of_later_nodes_are_those_of_comfyui(case: str, small: Catalogue) -> None:
    _compare(case, small, "next")
