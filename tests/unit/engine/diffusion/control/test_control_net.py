"""The hints of ControlNets, and the residuals that they add to a UNet call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.diffusion.control.control_net import Control, residuals
from engine.errors import EngineError
from tests.support.engine.control_nets import noise, picture, text, tiny_control_net

pytestmark = pytest.mark.usefixtures("inference")


def test_a_picture_is_cut_around_its_middle_and_pictures_take_turns(
    networks: tuple[Any, Any],
) -> None:
    columns = torch.arange(96.0).expand(48, 96)[None, :, :, None].expand(2, 48, 96, 3)
    hint = columns + torch.tensor([0.0, 1000.0])[:, None, None, None]
    control = Control(networks[0], hint, 1.0)
    found = control.hint_for(torch.zeros(3, 4, 12, 12))
    assert found.shape == (3, 3, 96, 96)
    assert torch.equal(found[0, 0, 0], torch.arange(24.0, 72.0).repeat_interleave(2))
    assert torch.equal(found[1], found[0] + 1000)
    assert torch.equal(found[2], found[0])
    tall = Control(networks[0], hint.transpose(1, 2), 1.0).hint_for(torch.zeros(1, 4, 6, 6))
    assert torch.equal(tall[0, 0, :, 0], torch.arange(24.0, 72.0))


def test_a_control_net_for_texts_of_another_width_is_refused(networks: tuple[Any, Any]) -> None:
    control = Control(networks[0], picture(0), 1.0)
    with pytest.raises(EngineError, match="width 64"):
        residuals(
            [[control]],
            [1],
            x=noise(),
            timesteps=torch.tensor([1]),
            tokens=torch.zeros(1, 77, 768),
            inputs={},
        )


def test_a_network_that_pools_adds_the_same_everywhere() -> None:
    network, pooling = tiny_control_net(1), tiny_control_net(1)
    pooling.register_to_config(global_pool_conditions=True)
    found, pooled = (
        residuals(
            [[], [Control(each, picture(0), 0.5)]],
            [1, 1],
            x=noise().expand(2, -1, -1, -1),
            timesteps=torch.tensor([1, 1]),
            tokens=text(1)[0].tokens.expand(2, -1, -1),
            inputs={},
        )["mid_block_additional_residual"]
        for each in (network, pooling)
    )
    assert torch.allclose(pooled, found.mean((2, 3), keepdim=True), atol=1e-6)
    assert not pooled[0].any()


def test_a_control_net_of_sdxl_is_given_pooled_text_and_size_conditioning() -> None:
    network = tiny_control_net(
        1,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=16 + 6 * 8,
    )
    added = {"text_embeds": torch.randn(3, 16), "time_ids": torch.rand(3, 6) * 64}
    x, tokens = noise().expand(3, -1, -1, -1), text(1)[0].tokens.expand(3, -1, -1)
    timesteps = torch.tensor([900, 500, 1])
    control = Control(network, picture(0), 1.0)
    found = residuals(
        [[], [control]],
        [1, 2],
        x=x,
        timesteps=timesteps,
        tokens=tokens,
        inputs={"added_cond_kwargs": added},
    )
    _, expected = network(
        x[1:],
        timesteps[1:],
        tokens[1:],
        picture(0).movedim(-1, 1).expand(2, -1, -1, -1),
        added_cond_kwargs={name: each[1:] for name, each in added.items()},
        return_dict=False,
    )
    assert torch.allclose(found["mid_block_additional_residual"][1:], expected, atol=1e-5)
