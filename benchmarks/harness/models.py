"""A models folder with the checkpoint, LoRAs for the checkpoint, and copies of the checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from benchmarks.harness.graphs import CHECKPOINT, CHECKPOINT_FILE, LORAS

_UNET = "model.diffusion_model."
_RANK = 4
_SCALE = 0.02
"""The scale of the random numbers in a LoRA. With this scale a LoRA changes pictures only a
little.
"""


def make_models(folder: Path, *, copies: int = 0) -> None:
    """Create the folder. `copies` is the number of copies of the checkpoint, with the names
    `copy_name(number)`.
    """
    checkpoints, loras = folder / "checkpoints", folder / "loras"
    checkpoints.mkdir(parents=True)
    loras.mkdir()
    source = CHECKPOINT_FILE
    for name in (CHECKPOINT, *map(copy_name, range(copies))):
        shutil.copyfile(source, checkpoints / name)
        config = (checkpoints / name).with_suffix(".config")
        shutil.copytree(source.with_suffix(".config"), config)
    shapes = dict(_attention_shapes(source))
    for seed, name in enumerate(LORAS):
        save_file(_lora(shapes, seed), loras / name)


def copy_name(number: int) -> str:
    return f"cold-{number}.safetensors"


def _attention_shapes(checkpoint: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the kohya name, and the numbers of outputs and inputs, of each linear layer in the
    UNet's attention.
    """
    with safe_open(checkpoint, framework="np") as file:
        for key in file.keys():  # noqa: SIM118 - it is no mapping
            name = key.removeprefix(_UNET).removesuffix(".weight")
            if key.startswith(_UNET) and "attn" in name and key.endswith(".weight"):
                outputs, inputs = file.get_slice(key).get_shape()
                yield f"lora_unet_{name.replace('.', '_')}", (outputs, inputs)


def _lora(shapes: dict[str, tuple[int, int]], seed: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return (_SCALE * random.standard_normal(shape)).astype(np.float32)

    tensors = {}
    for name, (outputs, inputs) in shapes.items():
        tensors[f"{name}.lora_down.weight"] = drawn(_RANK, inputs)
        tensors[f"{name}.lora_up.weight"] = drawn(outputs, _RANK)
        tensors[f"{name}.alpha"] = np.array(_RANK, np.float32)
    return tensors
