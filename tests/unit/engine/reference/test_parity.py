"""Pixels against those of ComfyUI on the same weights; the cases come from DARKROOM_PARITY_DIR.

Cases on the full-size checkpoint (2 GB, minutes), of Flux.1 and half of those of Z-Image run only
where DARKROOM_PARITY_FULL is set too. Those of Flux.1 need the tokenizer in COMFYUI_DIR.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine import parity
from tests.support.engine.latents import Recorded, psnr_db_of, recorded

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
"""The file that each of a case's SaveLatent nodes wrote, if there are several."""

COMFYUI = os.environ.get("COMFYUI_DIR")

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
    folder = parity.folder() / group / case
    prompt = json.loads((folder / "graph.json").read_text())
    (run,) = recorded([prompt], catalogue, parity.input_files())
    assert run.saved or group == "next"
    _compare_run(run, folder)


def _compare_run(run: Recorded, folder: Path) -> None:
    from safetensors.numpy import load_file

    for node_id, latent in run.saved.items():
        name = SAVED_LATENTS[node_id] if len(run.saved) > 1 else "latent.safetensors"
        expected = load_file(folder / name)["latent_tensor"]
        psnr_db = psnr_db_of(latent, expected)
        print(f"{folder.name}: {psnr_db:.1f} dB")  # noqa: T201 - the figure, under -s
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


TEXT = ("t5", "clip_l")
needs_tokenizer = pytest.mark.skipif(COMFYUI is None, reason="COMFYUI_DIR is not set")


@pytest.mark.parametrize(
    ("prefix", "kinds"),
    [
        ("zi", ("z_image", "qwen")),
        pytest.param("fd", ("flux_dev", *TEXT), marks=[needs_full, needs_tokenizer]),
        pytest.param("fs", ("flux_schnell", *TEXT), marks=[needs_full, needs_tokenizer]),
    ],
)
def test_latents_and_pixels_of_flow_models_are_those_of_comfyui(
    prefix: str, kinds: tuple[str, ...]
) -> None:
    folders = sorted((parity.folder() / "flow").glob(f"{prefix}_*"))[:: 1 if parity.FULL else 2]
    prompts = [json.loads((each / "graph.json").read_text()) for each in folders]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        parity.write_flow(root, *kinds, "vae", "loras", "images")
        if not all(parity.has_known_digest(each, "SHA256_FLOW") for each in root.rglob("*.s*")):
            pytest.skip("this torch makes other weights")
        images = {each.name: each.read_bytes() for each in (root / "input").iterdir()}
        models = ModelsFolder(root, comfyui_dir=Path(COMFYUI or root))
        runs = recorded(prompts, Catalogue(models), images)
    for run, folder in zip(runs, folders, strict=True):
        assert run.saved
        _compare_run(run, folder)
