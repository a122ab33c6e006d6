"""Files of ControlNets and T2I adapters, and what a UNet gets of the latter."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel, T2IAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.diffusion.conditioning.control_file import config_of, read_control_net
from engine.diffusion.conditioning.control_net import Control, residuals
from engine.errors import CheckpointUnavailable
from engine.families.control_nets import ControlKind, control_traits
from tests.support.engine.control_nets import (
    picture,
    tiny_control_net,
    write_in_ldm_keys,
    write_sizes,
)
from tests.support.engine.tiny_unet import LEVELS, answer_of, tiny_unet

pytestmark = pytest.mark.usefixtures("inference")
CPU = torch.device("cpu")
SD15: dict[str, Any] = {"cross_attention_dim": 768}
SD2: dict[str, Any] = {
    "cross_attention_dim": 1024,
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
SDXL: dict[str, Any] = {
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


@pytest.fixture(scope="module")
def network() -> Any:
    return tiny_control_net(1)


def of_sizes(config: dict[str, Any]) -> Any:
    with torch.device("meta"):
        return ControlNetModel(**config)


def assert_same(found: Any, network: Any) -> None:
    state = network.state_dict()
    assert set(state) == set(found.state_dict())
    assert all(torch.equal(each, state[key]) for key, each in found.state_dict().items())
    assert found.config.attention_head_dim == network.config.attention_head_dim


@pytest.mark.parametrize("prefix", ["control_model.", ""])
def test_stable_diffusions_keys_are_read(prefix: str, network: Any, tmp_path: Path) -> None:
    write_in_ldm_keys(network, tmp_path / "one.safetensors", prefix)
    assert_same(read_control_net(tmp_path / "one.safetensors", CPU), network)


def test_diffusers_keys_are_read_alone_and_in_their_folder(network: Any, tmp_path: Path) -> None:
    network.save_pretrained(tmp_path / "folder")
    inside = tmp_path / "folder" / "diffusion_pytorch_model.safetensors"
    assert_same(read_control_net(inside, CPU), network)
    alone = tmp_path / "one.safetensors"
    inside.rename(alone)
    write_sizes(network, alone)
    assert_same(read_control_net(alone, CPU), network)


@pytest.mark.parametrize("config", [SD15, SD2, SDXL], ids=["sd15", "sd2", "sdxl"])
def test_sizes_follow_from_the_weights(config: dict[str, Any]) -> None:
    network = of_sizes(config)
    state = network.state_dict()
    found = of_sizes(config_of({key: tuple(each.shape) for key, each in state.items()}))
    assert {key: each.shape for key, each in found.state_dict().items()} == {
        key: each.shape for key, each in state.items()
    }
    for one, other in zip(found.modules(), network.modules(), strict=True):
        assert getattr(one, "heads", None) == getattr(other, "heads", None)
    assert found.config.addition_embed_type == network.config.addition_embed_type


def test_the_whole_text_of_sdxl_is_read_in_stable_diffusions_keys(tmp_path: Path) -> None:
    sizes = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80,
    }
    network = tiny_control_net(1, **sizes)
    write_in_ldm_keys(network, tmp_path / "one.safetensors")
    assert_same(read_control_net(tmp_path / "one.safetensors", CPU), network)


def test_shuffle_pools_what_it_finds(network: Any, tmp_path: Path) -> None:
    for name, pools in (("a_shuffle_fp16", True), ("a_shuffle", True), ("a_canny", False)):
        path = tmp_path / f"{name}.safetensors"
        write_in_ldm_keys(network, path)
        assert read_control_net(path, CPU).config.global_pool_conditions is pools


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("lora_controlnet", "ControlLoRA"),
        ("adapter.body.0.resnets.0.block1.weight", "T2I adapter"),
        ("body.0.in_conv.weight", "T2I adapter"),
        ("difference", "difference"),
        ("task_embedding", "union"),
        ("model.diffusion_model.out.0.weight", "not a ControlNet"),
    ],
)
def test_a_foreign_file_is_refused_by_its_kind(key: str, message: str, tmp_path: Path) -> None:
    for value in (torch.zeros(1), torch.tensor(0.0)):
        save_file({key: value}, tmp_path / "x.safetensors")
        with pytest.raises(CheckpointUnavailable, match=message):
            read_control_net(tmp_path / "x.safetensors", CPU)


def test_a_number_in_place_of_the_types_of_a_union_is_no_error() -> None:
    shapes = {"controlnet_cond_embedding.conv_in.weight": (1,), "task_embedding": ()}
    assert control_traits("x", shapes).kind is ControlKind.UNET


def test_a_file_of_differences_is_added_to_a_model(network: Any, tmp_path: Path) -> None:
    base = tiny_control_net(2)
    own = dict(base.named_parameters())
    difference = copy.deepcopy(network)
    shared = [name for name, _ in network.named_parameters() if not name.startswith("controlnet_")]
    with torch.no_grad():
        for name in shared:
            difference.get_parameter(name).sub_(own[name])
    path = tmp_path / "x.safetensors"
    write_in_ldm_keys(difference, path)
    save_file({**load_file(path), "difference": torch.zeros(1)}, path)
    unet = SimpleNamespace(named_parameters=lambda: [(name, own[name]) for name in shared])
    found = read_control_net(path, CPU, base=unet)
    for name, weight in network.named_parameters():
        assert torch.allclose(found.get_parameter(name), weight, atol=1e-6)


def test_damaged_files_and_other_sizes_are_unavailable(network: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    write_in_ldm_keys(network, path)
    sizes = tmp_path / "one.config" / "config.json"
    config = json.loads(sizes.read_text())
    sizes.write_text(json.dumps({**config, "block_out_channels": [32, 128]}))
    with pytest.raises(CheckpointUnavailable, match="its configuration needs"):
        read_control_net(path, CPU)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointUnavailable, match="damaged"):
        read_control_net(path, CPU)


def test_a_file_that_lacks_weights_is_unavailable(network: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.safetensors"
    state = dict(network.state_dict())
    del state["controlnet_mid_block.weight"]
    save_file(state, path)
    with pytest.raises(CheckpointUnavailable, match="has no controlnet_mid_block"):
        read_control_net(path, CPU)


KINDS = {"full_adapter": 2, "light_adapter": 4}


def adapter(kind: str = "full_adapter", *, channels: int = 3) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        levels = LEVELS[:-1] if kind == "light_adapter" else LEVELS
        made: Any = T2IAdapter(channels, levels, KINDS[kind], adapter_type=kind)
    return made.eval().requires_grad_(False)


def original(name: str, kind: str) -> str:
    """The name of a weight as the original authors have it."""
    name = name.removeprefix("adapter.")
    if kind == "light_adapter":
        return name.replace(".resnets.", ".body.")
    name = re.sub(r"body\.(\d)\.in_conv", lambda at: f"body.{2 * int(at[1])}.in_conv", name)
    return re.sub(
        r"body\.(\d)\.resnets\.(\d)", lambda at: f"body.{2 * int(at[1]) + int(at[2])}", name
    )


def given(controls: list[list[Control]], x: Tensor) -> dict[str, Any]:
    return residuals(
        controls,
        [1] * len(controls),
        x=x,
        timesteps=torch.tensor([999, 10])[: len(x)],
        tokens=torch.zeros(len(x), 77, 64),
        inputs={},
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_adapters_of_both_layouts_are_read(kind: str, channels: int, tmp_path: Path) -> None:
    state = adapter(kind, channels=channels).state_dict()
    path = tmp_path / "x.safetensors"
    for tensors in (state, {original(key, kind): each for key, each in state.items()}):
        save_file(tensors, path)
        found = read_control_net(path, CPU)
        assert found.config["in_channels"] == channels
        assert all(torch.equal(each, state[key]) for key, each in found.state_dict().items())


@pytest.mark.parametrize(
    ("key", "shape", "why"),
    [
        ("conv_in.weight", (8, 768, 3, 3), "for other models than Stable Diffusion 1"),
        ("body.0.block1.weight", None, r"has no body\.0\.block1\.weight"),
        ("body.2.block1.weight", (16, 9, 3, 3), "16x9x3x3, but its configuration needs 16x16x3x3"),
    ],
)
def test_a_damaged_adapter_says_what_is_wrong(
    key: str, shape: tuple[int, ...] | None, why: str, tmp_path: Path
) -> None:
    state = {original(name, "full_adapter"): each for name, each in adapter().state_dict().items()}
    del state[key]
    if shape:
        state[key] = torch.zeros(shape)
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointUnavailable, match=why):
        read_control_net(tmp_path / "x.safetensors", CPU)


def test_a_unet_gets_the_features_of_its_rows_in_their_strength() -> None:
    unet, network = tiny_unet(), adapter()
    x = torch.randn(2, 4, 16, 24, generator=torch.Generator().manual_seed(4))
    control = Control(network, picture(0, 128, 192), 0.5)
    arguments = given([[control], []], x)
    tokens = torch.randn((2, 77, 16), generator=torch.Generator().manual_seed(2))
    found = unet(x, torch.tensor([999, 10]), tokens, return_dict=False, **arguments)[0]
    features = [0.5 * each for each in network(picture(0, 128, 192).movedim(-1, 1))]
    own = {"down_intrablock_additional_residuals": features, "return_dict": False}
    alone = unet(x[:1], torch.tensor([999]), tokens[:1], **own)[0]
    plain = answer_of(unet, x)
    assert torch.allclose(found[0], alone[0], atol=1e-5)
    assert torch.allclose(found[1], plain[1], atol=1e-5)
    assert not torch.allclose(found[0], plain[0], atol=1e-3)


def test_adapters_and_control_nets_go_together() -> None:
    x = torch.zeros(1, 4, 8, 8)
    net, one, grey = tiny_control_net(1), adapter(), adapter(channels=1)
    controls = [Control(each, picture(0), 1.0) for each in (net, one, grey)]
    both = given([controls], x)
    assert both.keys() == given([controls[:1]], x).keys() | given([controls[1:]], x).keys()
    name = "down_intrablock_additional_residuals"
    parts = [given([[each]], x)[name] for each in controls[1:]]
    for found, first, second in zip(both[name], *parts, strict=True):
        assert torch.allclose(found, first + second, atol=1e-6)
