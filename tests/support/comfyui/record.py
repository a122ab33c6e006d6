"""Records the results of a ComfyUI for each case in `tests/golden`.

Set COMFYUI_URL and DARKROOM_PARITY_DIR. Start ComfyUI with `--cpu --cache-none`, because a cached
graph may change the noise levels of the next. Models and input images are copied into its folder.
The recorded results are those of version 0.3.64.

usage: python -m tests.support.comfyui.record FOLDER_OF_COMFYUI
with COMFYUI_URL and DARKROOM_PARITY_DIR set.
"""

from __future__ import annotations

import filecmp
import io
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image
from safetensors.numpy import load

from tests.support.comfyui.cases import CASES, write_answers
from tests.support.comfyui.graphs import Graph
from tests.support.comfyui.weights import digests_of, write_weights
from tests.support.engine import parity

DEADLINE_S = 300.0


def main() -> None:
    comfyui = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        checkpoint = root / "checkpoints" / parity.SMALL
        parity.write_checkpoint("small", checkpoint)
        assert parity.has_known_digest(checkpoint), "this torch makes other weights"
        write_weights(root, checkpoint)
        _put(root, comfyui / "models")
        digests = digests_of(root)
    _put(parity.folder() / "inputs", comfyui / "input")
    with httpx.Client(base_url=os.environ["COMFYUI_URL"], timeout=60) as client:
        write_answers(
            {name: _answer(client, name, graph) for name, graph in CASES.items()}, digests
        )


def _put(source: Path, target: Path) -> None:
    """Copy all models and images that are missing."""
    for path in source.rglob("*"):
        to = target / path.relative_to(source)
        if path.suffix in {".safetensors", ".png"} and not (
            to.exists() and filecmp.cmp(path, to, shallow=False)
        ):
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)


def _answer(client: httpx.Client, name: str, graph: Graph) -> Any:
    submitted = client.post("/prompt", json={"prompt": graph}).json()
    assert not submitted.get("node_errors"), (name, submitted)
    path = f"/history/{submitted['prompt_id']}"
    give_up_at = time.monotonic() + DEADLINE_S
    while not (found := client.get(path).json()):
        assert time.monotonic() < give_up_at, name
        time.sleep(0.05)
    (run,) = found.values()
    assert run["status"]["status_str"] == "success", (name, run["status"])
    saved = run["outputs"]["saved"]
    if "latents" in saved:
        (file,) = saved["latents"]
        return load(_file(client, file))["latent_tensor"]
    files = [Image.open(io.BytesIO(_file(client, file))) for file in saved["images"]]
    return np.stack([np.asarray(image.convert("RGB")) for image in files])


def _file(client: httpx.Client, file: dict[str, str]) -> bytes:
    return client.get("/view", params=file).raise_for_status().content


if __name__ == "__main__":
    main()
