"""CLIP's vision models: their files, what they make of images, and prompts of images in a call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.models.attention_processor import Attention
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPImageProcessor

from engine.diffusion.loading.layers import use_plain_attention
from engine.diffusion.vision.attended import KeysValues
from engine.diffusion.vision.clip_vision import (
    ClipVisionOutput,
    EncodeVision,
    inspect_clip_vision,
    load_clip_vision,
    preprocessed,
)
from engine.diffusion.vision.row_prompts import FittedPrompt, RowPrompts
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import CLIP_VISIONS
from tests.support.engine.control_nets import picture
from tests.support.engine.stores import store_of
from tests.support.vision.clip_vision import (
    OPEN,
    SIDE,
    VISION,
    open_keys,
    tiny_vision,
    write_vision,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vision")
    write_vision(root / CLIP_VISIONS)
    return root


def encoded(network: Any, *images: Tensor, crop: bool = True) -> list[ClipVisionOutput]:
    with torch.inference_mode():
        requests = [EncodeVision(network, each, crop) for each in images]
        return list(EncodeVision.run_batch(requests))


@pytest.mark.parametrize("name", [VISION, OPEN])
def test_both_layouts_give_what_transformers_gives(name: str, root: Path) -> None:
    store = store_of(root)
    (found,) = encoded(load_clip_vision(store, CLIP_VISIONS, name), image := picture(1, 40, 56))
    pixels = preprocessed(image, SIDE, crop=True)
    with torch.inference_mode():
        expected = tiny_vision()(pixels, output_hidden_states=True)
    torch.testing.assert_close(found.image_embeds, expected.image_embeds, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        found.penultimate_hidden_states, expected.hidden_states[-2], rtol=1e-4, atol=1e-4
    )


def test_images_of_all_sizes_share_a_call_and_are_as_alone(root: Path) -> None:
    network = tiny_vision()
    images = [picture(1, 40, 56), picture(2, 32, 32), picture(3, 64, 20)]
    together = encoded(network, *images)
    for one, image in zip(together, images, strict=True):
        (alone,) = encoded(network, image)
        torch.testing.assert_close(one.image_embeds, alone.image_embeds, rtol=1e-4, atol=1e-5)


def test_an_image_is_seen_as_by_clips_own_preprocessing() -> None:
    levels = np.random.default_rng(1).integers(0, 256, (96, 64, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(levels).resize((64, 96)))
    processor = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=SIDE)
    expected = processor(Image.fromarray(smooth), return_tensors="pt").pixel_values
    found = preprocessed(torch.tensor(smooth)[None] / 255.0, SIDE, crop=True)
    assert float((found - expected).abs().max()) < 0.05


def test_all_of_an_image_may_be_seen() -> None:
    image = torch.zeros(1, SIDE, 3 * SIDE, 3)
    image[:, :, :SIDE] = 1.0
    cropped, whole = (preprocessed(image, SIDE, crop=crop) for crop in (True, False))
    assert float(cropped.amax()) == float(cropped[:, 2].amax())
    assert float(whole[0, 0, 0, 0]) > float(whole[0, 0, 0, -1])


def test_a_narrow_image_does_not_become_huge() -> None:
    found = preprocessed(torch.zeros(1, 1, 16384, 3), 224, crop=True)
    assert found.shape == (1, 3, 224, 224)


def test_the_sizes_of_a_file_tell_what_it_is(tmp_path: Path) -> None:
    network = tiny_vision(num_hidden_layers=24, num_attention_heads=16)
    save_file(network.state_dict(), tmp_path / "plain.safetensors")
    save_file(open_keys(network), tmp_path / "open.safetensors")
    for name in ("plain", "open"):
        config = inspect_clip_vision(tmp_path / f"{name}.safetensors").config
        expected = {key: getattr(network.config, key) for key in config}
        assert config == {**expected, "hidden_act": "quick_gelu"}


def test_a_file_of_another_kind_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"lora_unet.weight": torch.zeros(1)}, path)
    with pytest.raises(CheckpointUnavailable, match="has no CLIP vision model"):
        inspect_clip_vision(path)
    save_file(tiny_vision().state_dict(), path)
    with pytest.raises(CheckpointUnavailable, match="not a known CLIP vision model"):
        inspect_clip_vision(path)
    state = tiny_vision().state_dict()
    del state["visual_projection.weight"]
    save_file(state, path)
    with pytest.raises(CheckpointUnavailable, match=r"has no visual_projection.weight"):
        inspect_clip_vision(path)


def test_a_damaged_file_says_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / CLIP_VISIONS
    write_vision(folder)
    config = folder / "tiny-vision.config" / "config.json"
    config.write_text(json.dumps({"hidden_size": 8, "num_attention_heads": 2, "patch_size": 8}))
    store = store_of(tmp_path)
    with pytest.raises(CheckpointUnavailable, match="its configuration needs"):
        load_clip_vision(store, CLIP_VISIONS, VISION)


def test_all_layers_of_a_call_share_a_mask() -> None:
    blocks = [nn.ModuleDict({"attn2": Attention(8, heads=1, dim_head=8)}) for _ in range(3)]
    network = use_plain_attention(nn.ModuleDict({"a": nn.ModuleList(blocks)}))
    names = [name for name, _ in network.named_modules() if name.endswith("attn2")]
    pairs = {name: KeysValues(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)) for name in names}
    masked = FittedPrompt(pairs, torch.rand(1, 1, 64, 64), (4, 4))
    other = FittedPrompt(pairs, torch.rand(2, 1, 64, 64), (4, 4))
    with RowPrompts(network).applied([[masked], [], [other]], [2, 1, 3]):
        given = [layer.added for name, layer in network.named_modules() if name in names]
        masks = [each.mask for added in given for each in added]
        assert len(masks) == len(names)
        assert masks[0] is not None
        assert all(each is masks[0] for each in masks)
        assert masked.mask is not None
        assert other.mask is not None
        expected = [masked.mask] * 2 + [other.mask[:1], other.mask[1:], other.mask[1:]]
        assert torch.equal(masks[0], torch.cat(expected))
    assert not any(given)
