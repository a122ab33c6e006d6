"""The package of IP-Adapter, installed and run: its pictures, and its attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.fitting import FittedCondition
from engine.diffusion.context import Context
from engine.diffusion.vision.row_prompts import fitted_prompts, prompted
from engine.errors import EngineError
from engine.extensions import Extension
from engine.graph.models_folder import CLIP_VISIONS
from tests.support.engine.bodies import driven
from tests.support.engine.control_nets import picture
from tests.support.engine.engines import Running, running
from tests.support.engine.extensions import ROOT, installed
from tests.support.engine.graphs import cost_of, refusal_of
from tests.support.engine.latents import farthest
from tests.support.engine.stores import context_of, store_of
from tests.support.engine.workflows import TINY, node, text_to_image
from tests.support.vision.clip_vision import VISION, write_config, write_vision
from tests.support.vision.ip_adapters import PLAIN, PLUS, TEXT_WIDTH, write_adapters
from training import make_tiny

RED, BLUE = 0xE02020, 0x2020E0
WHOLE = {"start_at": 0.0, "end_at": 1.0}
HOW = {"weight_type": "linear", "combine_embeds": "concat", "embeds_scaling": "V only"}


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extension]:
    with installed(ROOT / "packages" / "ipadapter", tmp_path_factory.mktemp("ipadapter")) as found:
        yield found


@pytest.fixture(scope="module")
def root(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    (root / "checkpoints").symlink_to(tiny_root / "checkpoints")
    write_vision(root / CLIP_VISIONS)
    write_adapters(root / "ipadapter", tiny_root)
    return root


@pytest.fixture
def context(root: Path) -> Context:
    return context_of(store_of(root))


def node_of(extension: Extension, class_type: str) -> Any:
    return next(each.body for each in extension.node_types if each.class_type == class_type)


@torch.inference_mode()
@pytest.mark.parametrize(("name", "weight"), [(PLAIN, 1.0), (PLAIN, 0.4), (PLUS, 0.7)])
def test_attention_is_that_of_diffusers(
    name: str, weight: float, extension: Extension, context: Context, root: Path
) -> None:
    base = driven(context.load(TINY)).model
    vision = driven(context.vision.load(VISION))
    image = picture(1, 32, 32)
    (loaded,) = driven(node_of(extension, "IPAdapterModelLoader")(context, ipadapter_file=name))
    inputs = {"ipadapter": loaded, "image": image, "clip_vision": vision, **WHOLE, **HOW}
    body = node_of(extension, "IPAdapterAdvanced")
    (model,) = driven(body(context, model=base, weight=weight, **inputs))
    x, tokens = torch.randn(2, 4, 8, 8), torch.randn(2, 77, TEXT_WIDTH)
    time = torch.full((2,), 500)
    fitted = FittedCondition(Condition(tokens), None, None, (1e9, 0.0))
    rows = [fitted_prompts(model.image_prompts, fitted, x), []]
    with prompted(base.unet, rows, [1, 1]):
        found = base.unet(x, time, tokens, return_dict=False)[0]
    plain = base.unet(x, time, tokens, return_dict=False)[0]
    theirs = their_unet(base.unet, root / "ipadapter" / name, weight)
    seen = driven(context.vision.encode(vision, image, crop=True))
    embeds = seen.penultimate_hidden_states if name == PLUS else seen.image_embeds
    told = {"image_embeds": [embeds[:, None]]}
    expected = theirs(x[:1], time[:1], tokens[:1], added_cond_kwargs=told, return_dict=False)[0]
    torch.testing.assert_close(found[:1], expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[1], plain[1], rtol=1e-4, atol=1e-5)
    assert float((found[0] - plain[0]).abs().max()) > 0.01


def their_unet(ours: Any, path: Path, weight: float) -> Any:
    unet: Any = UNet2DConditionModel(**make_tiny.UNET)
    unet.load_state_dict(ours.state_dict())
    state: dict[str, dict[str, Tensor]] = {"image_proj": {}, "ip_adapter": {}}
    for key, tensor in load_file(path).items():
        part, _, rest = key.partition(".")
        state[part][rest] = tensor
    unet._load_ip_adapter_weights([state])
    for processor in unet.attn_processors.values():
        if hasattr(processor, "scale"):
            processor.scale = [weight]
    return unet.eval()


def drawing(color: int | None = RED, *, adapter: str = PLAIN, **inputs: Any) -> dict[str, Any]:
    """A picture with an image of one colour as prompt, or with none."""
    prompt = text_to_image(steps=2, seed=3)
    if color is None:
        return prompt
    told = {"weight": 1.0, **WHOLE, **HOW, "clip_vision": ["11", 0], "image": ["12", 0]}
    prompt["3"]["inputs"]["model"] = ["13", 0]
    return prompt | {
        "10": node("IPAdapterModelLoader", ipadapter_file=adapter),
        "11": node("CLIPVisionLoader", clip_name=VISION),
        "12": node("EmptyImage", width=40, height=32, batch_size=1, color=color),
        "13": node("IPAdapterAdvanced", model=["4", 0], ipadapter=["10", 0], **told | inputs),
    }


@pytest.fixture(scope="module")
def service(root: Path, extension: Extension) -> Iterator[Running]:
    with running(root, extension.node_types) as found:
        yield found


def error_of(service: Running, prompt: dict[str, Any]) -> str:
    return str(service.submit(prompt).error(EngineError))


def differ(one: Any, other: Any) -> bool:
    return bool(np.abs(one - other).max() > 3)


def test_a_picture_follows_its_image_prompt_and_is_the_same_beside_others(service: Running) -> None:
    prompts = [
        drawing(None),
        drawing(RED),
        drawing(BLUE),
        drawing(RED, weight=0.4),
        drawing(RED, adapter=PLUS),
        drawing(RED, weight_type="weak input"),
        drawing(RED, weight_type="style transfer"),
        drawing(RED, embeds_scaling="K+mean(V) w/ C penalty"),
    ]
    together = service.pictures(*prompts)
    for place, one in enumerate(together):
        assert all(differ(one, other) for other in together[place + 1 :])
    for prompt, one in zip(prompts, together, strict=True):
        (alone,) = service.pictures(prompt)
        assert np.abs(one - alone).max() <= 1


def test_a_weight_of_0_is_no_adapter(service: Running) -> None:
    (plain,), (zero,) = map(service.pictures, (drawing(None), drawing(RED, weight=0.0)))
    assert np.array_equal(plain, zero)


def test_it_counts_in_its_steps_alone(service: Running) -> None:
    prompts = drawing(None), drawing(RED, start_at=1.0), drawing(RED, end_at=0.2)
    (plain,), (late,), (early,) = map(service.pictures, prompts)
    assert np.array_equal(plain, late)
    assert differ(plain, early)


def test_a_mask_says_where_it_counts(service: Running) -> None:
    masks = {
        name: node("SolidMask", value=value, width=64, height=64)
        for name, value in (("black", 0.0), ("white", 1.0))
    }
    none, all_of_it, black, white = service.pictures(
        drawing(None), drawing(RED), *(drawing(RED, attn_mask=[name, 0]) | masks for name in masks)
    )
    assert farthest(none, black) <= 1
    assert farthest(all_of_it, white) <= 1


@pytest.mark.parametrize("combining", ["concat", "add", "subtract", "average", "norm average"])
def test_several_pictures_are_one_prompt(combining: str, service: Running) -> None:
    both = drawing(RED, combine_embeds=combining, image=["both", 0], image_negative=["14", 0])
    both |= {
        "14": node("EmptyImage", width=40, height=32, batch_size=1, color=BLUE),
        "both": node("ImageBatch", image1=["12", 0], image2=["14", 0]),
    }
    one, two = service.pictures(drawing(RED), both)
    assert differ(one, two)


def test_what_does_not_fit_is_told(service: Running, root: Path) -> None:
    without = drawing(RED)
    del without["13"]["inputs"]["clip_vision"]
    assert "connect one to clip_vision" in error_of(service, without)
    save_file({"x": torch.zeros(1)}, root / "ipadapter" / "none.safetensors")
    assert "is not an IP-Adapter" in error_of(service, drawing(RED, adapter="none.safetensors"))
    plain = load_file(root / "ipadapter" / PLAIN)
    first = "ip_adapter.1.to_k_ip.weight"
    save_file(plain | {first: torch.zeros(8, TEXT_WIDTH)}, root / "ipadapter" / "xl.safetensors")
    assert "another family of models" in error_of(service, drawing(RED, adapter="xl.safetensors"))
    lora = {"ip_adapter.0.to_q_lora.down.weight": torch.zeros(1)}
    save_file(plain | lora, root / "ipadapter" / "face.safetensors")
    assert "needs a face detector" in error_of(service, drawing(RED, adapter="face.safetensors"))


def test_the_unified_loader_finds_its_files_by_their_names(service: Running, root: Path) -> None:
    name = "CLIP-ViT-H-14-laion2B-s32B-b79K.safetensors"
    prompt = drawing(RED)
    preset = "STANDARD (medium strength)"
    prompt["10"] = node("IPAdapterUnifiedLoader", model=["4", 0], preset=preset)
    links = {"model": ["10", 0], "ipadapter": ["10", 1], "image": ["12", 0]}
    prompt["13"] = node("IPAdapter", **links, **WHOLE, weight=1.0, weight_type="standard")
    assert f"put {name} there" in error_of(service, prompt)
    (root / CLIP_VISIONS / name).symlink_to(root / CLIP_VISIONS / VISION)
    write_config(root / CLIP_VISIONS / name)
    found, expected = service.pictures(prompt, drawing(RED))
    assert np.abs(found - expected).max() <= 1


def test_many_pictures_cost_what_they_hold(service: Running) -> None:
    many = drawing(RED)
    many["12"]["inputs"]["batch_size"] = 16
    assert cost_of(many, service.catalogue).live_bytes > 2**28
    assert "costs too much" in str(refusal_of(many, service.catalogue, max_live_bytes=2**28))
