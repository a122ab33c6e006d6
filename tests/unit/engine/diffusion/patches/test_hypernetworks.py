"""Hypernetworks: what their files say, what is wrong with them, and what they change."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from torch import nn

from engine.diffusion.families.family_lookup import model_family
from engine.diffusion.loading.layers import use_plain_attention
from engine.diffusion.model import Model
from engine.diffusion.patches.hypernetworks import (
    Hypernetwork,
    read_hypernetwork,
    with_hypernetwork,
)
from engine.errors import CheckpointUnavailable, EngineError
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.latents import latents_of
from tests.support.engine.tiny_unet import answer_of, tiny_unet
from tests.support.engine.workflows import node, text_to_image

CPU = torch.device("cpu")
SD1 = model_family(Family.SD1)


def weights(*widths: int, norm: bool = False) -> dict[str, Any]:
    """The weights of linear layers between these widths, as the WebUI stores them."""
    stored: dict[str, Any] = {}
    for at, (given, made) in enumerate(pairwise(widths)):
        stored |= {f"linear.{2 * at}.weight": torch.randn(made, given) * 0.1}
        stored |= {f"linear.{2 * at}.bias": torch.randn(made) * 0.1}
        if norm:
            stored |= {f"linear.{2 * at + 1}.weight": torch.ones(made)}
            stored |= {f"linear.{2 * at + 1}.bias": torch.zeros(made)}
    return stored


def file_of(folder: Path, stored: object, name: str = "marble.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(stored, folder / name)
    return folder / name


def read(folder: Path, stored: object) -> Hypernetwork:
    return read_hypernetwork(file_of(folder, stored), CPU)


def test_layers_are_made_as_the_file_says(tmp_path: Path) -> None:
    about = {"step": 10, "name": "marble", "activation_func": "relu", "layer_structure": [1, 2, 1]}
    pair = [weights(16, 32, 16), weights(16, 32, 16)]
    keys, _ = read(tmp_path, about | {16: pair, 8: [weights(8, 8), weights(8, 8)]}).by_width[16]
    assert [type(each) for each in keys] == [nn.Linear, nn.ReLU, nn.Linear]
    active = about | {16: pair, "activate_output": True}
    keys, _ = read(tmp_path, active).by_width[16]
    assert [type(each) for each in keys] == [nn.Linear, nn.ReLU] * 2
    normed = {16: [weights(16, 32, 16, norm=True)] * 2, "activation_func": "swish"}
    keys, _ = read(tmp_path, normed).by_width[16]
    kinds = [nn.Linear, nn.Hardswish, nn.LayerNorm, nn.Linear, nn.LayerNorm]
    assert [type(each) for each in keys] == kinds


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ([1, 2], "it is not a dictionary"),
        ({"name": "marble"}, "it has no networks by width"),
        ({16: [weights(16, 16)]}, "no two networks for the width 16"),
        ({16: [weights(16, 32, 16), weights(16, 32)]}, "for the width 16 returns 32"),
        ({16: [weights(16, 32), weights(8, 16)]}, "returns 32"),
        ({16: [weights(8, 16)] * 2}, r"the shape \(16, 8\), but the layer before it returns 16"),
        ({16: [{}, {}]}, "a network has 0 layers"),
        ({16: [{"linear.0.weight": torch.ones(16, 16)}] * 2}, "linear.0.weight is not a layer"),
        ({16: [{"linear.0.weight": 1.0}] * 2}, "a dictionary of contiguous floating-point"),
        ({16: [{"linear.0.weight": torch.ones(1).expand(9**4, 16)}] * 2}, "a dictionary of cont"),
        ({16: [weights(16, 16)] * 2, "activation_func": "magic"}, "the activation 'magic'"),
    ],
)
def test_a_file_that_is_made_wrongly_says_so(tmp_path: Path, stored: object, why: str) -> None:
    with pytest.raises(CheckpointUnavailable, match=why) as error:
        read(tmp_path, stored)
    assert str(error.value).startswith("marble.pt")


def test_a_compressed_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = file_of(tmp_path, {16: [weights(16, 16)] * 2})
    with ZipFile(path) as archive:
        entries = {each: archive.read(each) for each in archive.namelist()}
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointUnavailable, match=r"marble\.pt is compressed"):
        read_hypernetwork(path, CPU)


def test_a_damaged_file_and_one_with_code_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, {16: [weights(16, 16)] * 2})
    whole = path.read_bytes()
    for content in (b"", b"nonsense", whole[: len(whole) // 2], pickle.dumps({16: Hostile()})):
        path.write_bytes(content)
        with pytest.raises(CheckpointUnavailable, match=r"marble\.pt cannot be read"):
            read_hypernetwork(path, CPU)
    file_of(tmp_path, {16: Hostile()})
    with pytest.raises(CheckpointUnavailable, match="cannot be read"):
        read_hypernetwork(path, CPU)
    assert capsys.readouterr().out == ""


def test_keys_and_values_get_what_the_networks_make_of_them(tmp_path: Path) -> None:
    network = read(tmp_path, {16: [weights(16, 32, 16), weights(16, 16)]})
    unet = use_plain_attention(tiny_unet())
    changed = with_hypernetwork(Model(unet, SD1, 1.0), network, 0.5).unet
    name = "mid_block.attentions.0.transformer_blocks.0.attn2"
    layer, hidden, texts = changed.get_submodule(name), torch.randn(1, 5, 32), torch.randn(1, 7, 16)
    keys, values = (texts + 0.5 * each(texts) for each in network.by_width[16])
    assert torch.allclose(layer.key_and_value_inputs(texts)[0], keys)
    assert torch.allclose(layer.key_and_value_inputs(texts)[1], values)
    assert not torch.allclose(layer(hidden, texts), unet.get_submodule(name)(hidden, texts))
    assert layer.to_k.weight is unet.get_submodule(name).to_k.weight
    x = torch.randn(2, 4, 8, 8)
    assert not torch.allclose(answer_of(changed, x), answer_of(unet, x), atol=1e-4)


def test_equal_ones_share_a_unet_and_none_changes_nothing(tmp_path: Path) -> None:
    network = read(tmp_path, {16: [weights(16, 16)] * 2})
    model = Model(use_plain_attention(tiny_unet()), SD1, 1.0)
    one, same, other = (with_hypernetwork(model, network, at) for at in (0.5, 0.5, 1.0))
    assert one.unet is same.unet
    assert one.unet is not other.unet
    assert with_hypernetwork(model, network, 0.0) is model


def test_one_for_another_model_is_refused(tmp_path: Path) -> None:
    network = read(tmp_path, {768: [weights(768, 768)] * 2})
    model = Model(use_plain_attention(tiny_unet()), SD1, 1.0)
    with pytest.raises(EngineError, match=r"inputs of width 768, .* have the width 16"):
        with_hypernetwork(model, network, 1.0)


def test_a_workflow_loads_one_by_its_name(tiny_root: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(tiny_root / "checkpoints")
    catalogue = Catalogue(ModelsFolder(tmp_path))
    file_of(tmp_path / "hypernetworks/statues", {64: [weights(64, 64)] * 2})
    loader = {"model": ["4", 0], "hypernetwork_name": "statues/marble.pt"}
    prompts = [
        text_to_image(model=["h", 0], steps=2)
        | {"h": node("HypernetworkLoader", **loader, strength=strength)}
        for strength in (0.0, 2.0)
    ]
    plain, changed = latents_of(prompts, catalogue)
    assert abs(changed - plain).max() > 1e-3
