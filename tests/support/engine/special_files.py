"""Entries of a models folder that no program should read, or that lead a walk in circles."""

from __future__ import annotations

import os
from pathlib import Path


def make_special_files(folder: Path) -> tuple[str, ...]:
    """Make a pipe, links to a device, to nothing and to itself, and folders in circles.

    Returns the names of what looks like a model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "pipe.safetensors")
    links = {"zero": "/dev/zero", "gone": "nowhere", "loop": "loop.safetensors"}
    for name, target in links.items():
        (folder / f"{name}.safetensors").symlink_to(target)
    for name, target in {"up": "..", "here": "."}.items():
        (folder / name).symlink_to(target)
    (folder / "of-a-pipe").mkdir()
    os.mkfifo(folder / "of-a-pipe" / "model_index.json")
    (folder / "diffusers" / "transformer").mkdir(parents=True)
    (folder / "diffusers" / "model_index.json").write_text("{}")
    os.mkfifo(folder / "diffusers" / "transformer" / "config.json")
    return ("diffusers", "pipe.safetensors", *(f"{name}.safetensors" for name in links))
