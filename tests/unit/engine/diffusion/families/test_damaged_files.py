"""Damaged files of each kind end the job that names them, in one sentence, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Errored, Finished
from tests.support.engine.transformer_graphs import z_image_graph
from tests.support.engine.workflows import TINY, Watched, node, text_to_image
from training.tiny_transformers import write_z_image

Run = Callable[[dict[str, Any]], Errored | Finished]
_LORA = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"
_KEYS = {
    "checkpoints": "model.diffusion_model.input_blocks.0.0.weight",
    "diffusion_models": "layers.0.attention.qkv.weight",
    "text_encoders": "model.layers.0.self_attn.q_norm.weight",
    "vae": "decoder.conv_in.weight",
    "loras": f"{_LORA}.lora_down.weight",
}
"""A tensor of a file of each kind."""


def _graph(kind: str, name: str) -> dict[str, Any]:
    """A graph that takes the file of that name."""
    if kind in {"checkpoints", "loras"}:
        graph = text_to_image(steps=1)
        if kind == "checkpoints":
            graph["4"]["inputs"]["ckpt_name"] = name
            return graph
        lora = {"lora_name": name, "strength_model": 1.0}
        changed = node("LoraLoaderModelOnly", model=["4", 0], **lora)
        graph["3"]["inputs"]["model"] = ["l", 0]
        return {**graph, "l": changed}
    graph = z_image_graph(steps=1)
    at, member = {
        "diffusion_models": ("1", "unet_name"),
        "text_encoders": ("2", "clip_name"),
        "vae": ("3", "vae_name"),
    }[kind]
    graph[at]["inputs"][member] = name
    return graph


@pytest.fixture(scope="module")
def root(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    shutil.copytree(tiny_root / "checkpoints", root / "checkpoints")
    write_z_image(root)
    (root / "loras").mkdir()
    matrices = {"lora_down": torch.ones(2, 64), "lora_up": torch.ones(64, 2)}
    state = {f"{_LORA}.{name}.weight": each for name, each in matrices.items()}
    save_file({**state, f"{_LORA}.alpha": torch.tensor(1.0)}, root / "loras/good.safetensors")
    return root


@pytest.fixture(scope="module")
def run(root: Path) -> Iterator[Run]:
    models = ModelsFolder(root, ttl_s=0)
    engine = Engine(models=models)
    engine.start()

    def run(graph: dict[str, Any]) -> Errored | Finished:
        watched = Watched()
        checked = validate(graph, Catalogue(models), Limits())
        watched.run = engine.submit(checked, on_event=watched.take)
        end = watched.wait()
        assert isinstance(end, Errored | Finished)
        return end

    yield run
    engine.stop()


def _good(root: Path, kind: str) -> Path:
    return root / kind / TINY if kind == "checkpoints" else next((root / kind).glob("[gt]*.safe*"))


def _damaged(root: Path, kind: str, name: str) -> Path:
    """A place for a damaged file, with what lies beside a good one."""
    path = root / kind / f"{name}.safetensors"
    beside = _good(root, kind).with_suffix(".config")
    if beside.is_dir():
        shutil.copytree(beside, path.with_suffix(".config"), dirs_exist_ok=True)
    return path


def _lying(content: bytes) -> bytes:
    """The file, whose header says that its first tensor is larger than it is."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    next(each for name, each in header.items() if name != "__metadata__")["shape"] = [3, 2**40]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "of other bytes": lambda content: b"\xff" * len(content),
    "cut in its header": lambda content: content[:60],
    "cut at its end": lambda content: content[:-10],
    "lying": _lying,
}
_TENSORS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "without a tensor": lambda _: None,
    "with a shorter tensor": lambda tensor: tensor[:-1].clone(),
    "with a number for a tensor": lambda _: torch.tensor(1.0),
    "with an empty tensor": lambda tensor: tensor[:0].clone(),
    "with whole numbers": lambda tensor: tensor.to(torch.int8),
}


def _require_told(end: Errored | Finished, name: str) -> None:
    assert isinstance(end, Errored), end
    said = str(end.error)
    assert f"{name}.safetensors" in said
    assert "cannot be used" not in said, "what is wrong is known, and can be said"
    assert len(said) < 600


@pytest.mark.parametrize("kind", _KEYS)
def test_a_file_that_is_damaged_is_said_to_be(kind: str, root: Path, run: Run) -> None:
    content = _good(root, kind).read_bytes()
    for name, damage in _BYTES.items():
        _damaged(root, kind, name).write_bytes(damage(content))
        _require_told(run(_graph(kind, f"{name}.safetensors")), name)
    assert isinstance(run(_graph(kind, _good(root, kind).name)), Finished)


@pytest.mark.parametrize("kind", _KEYS)
def test_what_is_wrong_with_a_tensor_is_said(kind: str, root: Path, run: Run) -> None:
    state, key = load_file(_good(root, kind)), _KEYS[kind]
    for name, damage in _TENSORS.items():
        if kind == "loras" and name == "with whole numbers":
            continue  # they are what they say, in float32
        damaged = damage(state[key])
        changed = {**state, key: damaged} if damaged is not None else dict(state)
        if damaged is None:
            del changed[key]
        save_file(changed, _damaged(root, kind, name))
        _require_told(run(_graph(kind, f"{name}.safetensors")), name)
    assert isinstance(run(_graph(kind, _good(root, kind).name)), Finished)
