"""Damaged and hostile files of LoRAs: one clear sentence, and no error of anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.loading.lora_file import LoraFile
from engine.diffusion.loading.store import ModelStore
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.workflows import TINY

_LINEAR = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"
_NORM = "unet.mid_block.attentions.0.transformer_blocks.0.norm1"
_SIDE = 64
_PAIR = {"lora_A.weight": torch.ones(2, _SIDE), "lora_B.weight": torch.ones(_SIDE, 2)}
_LOHA = {
    f"hada_w{n}_{half}": torch.ones(shape)
    for n in (1, 2)
    for half, shape in (("a", (_SIDE, 2)), ("b", (2, _SIDE)))
}
_LOKR = {"lokr_w1": torch.ones(8, 8), "lokr_w2": torch.ones(8, 8)}
Apply = Callable[..., Networks]


@pytest.fixture
def apply(tiny_root: Path, tmp_path: Path) -> Apply:
    (tmp_path / "checkpoints").symlink_to(tiny_root / "checkpoints")
    (tmp_path / "loras").mkdir()
    store = ModelStore(ModelsFolder(tmp_path, ttl_s=0), torch.device("cpu"), 2**30)
    model = load_checkpoint(store, TINY).model

    def apply(tensors: Mapping[str, Tensor], layer: str = _LINEAR) -> Networks:
        own = {f"{layer}.{key}".lstrip("."): each.clone() for key, each in tensors.items()}
        save_file(own, tmp_path / "loras" / "bad.safetensors")
        networks = Networks(model.unet, model.family)
        return with_lora(store, "bad.safetensors", networks, unet_strength=1.0, text_strength=0.0)

    return apply


@pytest.mark.parametrize(
    ("tensors", "layer"),
    [
        (
            {
                "lokr_w1": torch.ones(8, 8),
                "lokr_w2_a": torch.ones(8, 0),
                "lokr_w2_b": torch.ones(0, 8),
            },
            _LINEAR,
        ),
        ({"oft_blocks": torch.ones(0, 8, 8, 8)}, _LINEAR),
        ({"oft_blocks": torch.tensor(1.0)}, _LINEAR),
        ({**_PAIR, "alpha": torch.ones(0)}, _LINEAR),
        ({**_PAIR, "dora_scale": torch.tensor(1.0)}, _LINEAR),
        (
            {
                "lora_A.weight": torch.ones(2, 1),
                "lora_B.weight": torch.ones(_SIDE, 2),
                "dora_scale": torch.ones(3, 1),
            },
            _NORM,
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_what_does_not_fit_is_said_with_its_sizes(
    tensors: dict[str, Tensor], layer: str, apply: Apply
) -> None:
    with pytest.raises(CheckpointUnavailable, match=r"^bad.safetensors: .* does not fit this"):
        apply(tensors, layer)


def test_halves_beside_a_whole_factor_mean_nothing(apply: Apply) -> None:
    apply({**_LOKR, "lokr_w2_b": torch.tensor(1.0), "alpha": torch.tensor(1.0)})


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [_PAIR, _LOHA, {**_PAIR, "dora_scale": torch.ones(_SIDE, 1)}])
def test_an_alpha_that_is_no_number_is_refused(
    number: float, kind: dict[str, Tensor], apply: Apply
) -> None:
    apply({**kind, "alpha": torch.tensor(1.0)})
    with pytest.raises(CheckpointUnavailable, match=r"^bad.safetensors: .*to_q makes infinite"):
        apply({**kind, "alpha": torch.tensor(number)})


@pytest.mark.parametrize("kind", [_PAIR, _LOHA, _LOKR, {"diff": torch.ones(_SIDE, _SIDE)}])
def test_tensors_that_hold_other_than_numbers_are_refused(
    kind: dict[str, Tensor], apply: Apply
) -> None:
    for key, tensor in kind.items():
        damaged = tensor.clone()
        damaged.view(-1)[3] = torch.nan
        with pytest.raises(CheckpointUnavailable, match="damaged or far too large"):
            apply({**kind, key: damaged})


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: an illegal memory access"), RuntimeError("can't start new thread")],
)
def test_errors_of_the_device_and_the_machine_are_not_told_as_the_files(
    error: Exception, apply: Apply, tmp_path: Path
) -> None:
    apply(_PAIR)
    file = LoraFile(tmp_path / "loras" / "bad.safetensors")
    (change,) = file.layers.values()
    with pytest.raises(type(error)) as raised, file.fitting(change, torch.Size((1, 1))):
        raise error
    assert raised.value is error


def test_names_and_headers_of_any_length_make_short_sentences(apply: Apply, tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnavailable, match="is damaged") as lacking:
        apply({"lora_A.weight": torch.ones(2, 2)}, "x" * 10_000)
    assert len(str(lacking.value)) < 600
    header: dict[str, Any] = {"a": {"dtype": "x" * 10_000, "shape": [1], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "loras" / "long.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 4)
    with pytest.raises(CheckpointUnavailable, match="is damaged") as lying:
        LoraFile(path)
    assert len(str(lying.value)) < 600


def test_a_layer_under_several_names_is_merged(apply: Apply, tmp_path: Path) -> None:
    (one,) = apply(_PAIR).adapters
    assert one.adapter.layers.keys() == {_LINEAR.removeprefix("unet.")}
    names = (_LINEAR, _LINEAR.replace("unet", "diffusion_model"))
    own = {f"{name}.{key}": each.clone() for name in names for key, each in _PAIR.items()}
    assert apply(own, "").adapters == ()
