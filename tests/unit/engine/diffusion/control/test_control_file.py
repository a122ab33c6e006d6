from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel
from safetensors.torch import load_file, save_file

from engine.diffusion.control.control_file import config_of, read_control_net
from engine.errors import CheckpointUnavailable
from tests.support.engine.control_nets import tiny_control_net, write_in_ldm_keys, write_sizes

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
def test_a_file_in_stable_diffusions_keys_is_read(
    prefix: str, network: Any, tmp_path: Path
) -> None:
    write_in_ldm_keys(network, tmp_path / "one.safetensors", prefix)
    assert_same(read_control_net(tmp_path / "one.safetensors", CPU), network)


def test_a_file_in_diffusers_keys_is_read_alone_and_in_its_folder(
    network: Any, tmp_path: Path
) -> None:
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
        ("model.diffusion_model.out.0.weight", "no ControlNet"),
    ],
)
def test_a_foreign_file_is_refused_by_its_kind(key: str, message: str, tmp_path: Path) -> None:
    save_file({key: torch.zeros(1)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointUnavailable, match=message):
        read_control_net(tmp_path / "x.safetensors", CPU)


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
    with pytest.raises(CheckpointUnavailable, match="should be"):
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
