"""Latents of the tiny checkpoint are what they were when they were last looked at.

After a change that is meant, run this file with DARKROOM_WRITE_GOLDEN=1.
"""

from __future__ import annotations

import os
from pathlib import Path

from safetensors.numpy import load_file, save_file

from engine.graph import names
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import all_latents_and_images, psnr_db_of
from tests.support.engine.workflows import text_to_image

GOLDEN = Path(__file__).parents[3] / "golden" / "latents.safetensors"
PAIRS = [(row.name, "karras") for row in names.SAMPLERS if not row.draws_path_on_device]
PAIRS += [("euler", row.name) for row in names.SCHEDULERS if row.name != "karras"]


def test_latents_are_the_golden_ones(catalogue: Catalogue) -> None:
    prompts = [text_to_image(sampler_name=a, scheduler=b, steps=5) for a, b in PAIRS]
    runs = all_latents_and_images(prompts, catalogue)
    found = {f"{a}-{b}": run[0] for (a, b), run in zip(PAIRS, runs, strict=True)}
    if os.environ.get("DARKROOM_WRITE_GOLDEN"):
        save_file(found, GOLDEN)
    golden = load_file(GOLDEN)
    assert set(golden) == set(found)
    assert {name: psnr_db_of(found[name], golden[name]) >= 80 for name in golden} == dict.fromkeys(
        golden, True
    )
