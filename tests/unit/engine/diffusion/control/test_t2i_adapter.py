"""T2I adapters: their files, and what a UNet gets of them, on tiny networks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import T2IAdapter
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.control.control_file import read_control_net
from engine.diffusion.control.control_net import Control, residuals
from engine.errors import CheckpointUnavailable
from tests.support.engine.control_nets import picture, tiny_control_net
from tests.support.engine.tiny_unet import LEVELS, answer_of, tiny_unet

pytestmark = pytest.mark.usefixtures("inference")
CPU = torch.device("cpu")
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
def test_files_of_both_layouts_give_the_same_network(
    kind: str, channels: int, tmp_path: Path
) -> None:
    made = adapter(kind, channels=channels)
    state = made.state_dict()
    save_file(state, tmp_path / "new.safetensors")
    save_file(
        {original(key, kind): each for key, each in state.items()}, tmp_path / "old.safetensors"
    )
    for name in ("new", "old"):
        found = read_control_net(tmp_path / f"{name}.safetensors", CPU)
        assert found.config["in_channels"] == channels
        assert all(torch.equal(each, state[key]) for key, each in found.state_dict().items())


@pytest.mark.parametrize(
    ("key", "shape", "why"),
    [
        ("conv_in.weight", (8, 768, 3, 3), "for other models than Stable Diffusion 1"),
        ("body.0.block1.weight", None, r"has no body\.0\.block1\.weight"),
        ("body.2.block1.weight", (16, 9, 3, 3), "is 16x9x3x3 and should be 16x16x3x3"),
    ],
)
def test_a_damaged_file_says_what_is_wrong(
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
    alone = unet(
        x[:1],
        torch.tensor([999]),
        tokens[:1],
        return_dict=False,
        down_intrablock_additional_residuals=features,
    )[0]
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
