"""The programs and images in DARKROOM_PARITY_DIR. The programs always write the same weights."""

from __future__ import annotations

import gzip
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PARITY = os.environ.get("DARKROOM_PARITY_DIR")
FULL = os.environ.get("DARKROOM_PARITY_FULL")
SMALL = "sd15_small.safetensors"
VOCABULARY = Path(__file__).parents[3] / "engine" / "diffusion" / "configs" / "tokenizer"

needs_parity = pytest.mark.skipif(PARITY is None, reason="DARKROOM_PARITY_DIR is not set")


def folder() -> Path:
    return Path(str(PARITY))


def input_files() -> dict[str, bytes]:
    """The images that the graphs load, by name."""
    return {path.name: path.read_bytes() for path in (folder() / "inputs").iterdir()}


def write_checkpoint(size: str, out: Path) -> None:
    """Write a random checkpoint of a size ("small", "full"), and its configuration beside it."""
    with tempfile.TemporaryDirectory() as scratch:
        merges = Path(scratch) / "bpe_simple_vocab_16e6.txt.gz"
        merges.write_bytes(gzip.compress((VOCABULARY / "merges.txt").read_bytes()))
        _run("make_checkpoint.py", size, str(out), str(out.with_suffix(".config")), str(merges))


def write_lora(out: Path, checkpoint: Path) -> None:
    """Write a random LoRA for a checkpoint that `write_checkpoint` wrote."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _run("make_lora.py", str(out), str(checkpoint.with_suffix(".config") / "unet" / "config.json"))


def write_flow(root: Path, *kinds: str) -> None:
    """Write random models of these kinds of Flux.1 and Z-Image into a models folder."""
    _run("make_flow.py", str(root), *kinds)


def has_known_digest(path: Path, known: str = "SHA256") -> bool:
    """Whether the weights are those of the recorded cases; others cannot be compared."""
    return digest(path) in (folder() / known).read_text()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(script: str, *arguments: str) -> None:
    command = [sys.executable, str(folder() / script), *arguments]
    subprocess.run(command, check=True, timeout=900, capture_output=True)
