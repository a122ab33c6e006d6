"""The package of IP-Adapter, installed and run: its pictures, and its attention."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.placement import PlacedCondition
from engine.diffusion.context import Context
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.vision.row_prompts import placed_prompts, prompted
from engine.engine import Engine
from engine.errors import GraphInvalid
from engine.extensions.installed import Extension, installed_extensions, nodes_of
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import CLIP_VISIONS, ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from engine.reports import Errored
from tests.support.engine.bodies import driven
from tests.support.engine.control_nets import picture
from tests.support.engine.extensions import ROOT, forget, install
from tests.support.engine.workflows import TINY, Watched, node, text_to_image
from tests.support.vision.clip_vision import OPEN, VISION, write_config, write_vision
from tests.support.vision.ip_adapters import PLAIN, PLUS, TEXT_WIDTH, write_adapters
from training import make_tiny

RED, BLUE = 0xE02020, 0x2020E0


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extension]:
    target = install(ROOT / "packages" / "ipadapter", tmp_path_factory.mktemp("ipadapter"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        (found,) = installed_extensions()
        yield found
        forget("darkroom_ipadapter")


@pytest.fixture(scope="module")
def root(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    (root / "checkpoints").symlink_to(tiny_root / "checkpoints")
    write_vision(root / CLIP_VISIONS)
    write_adapters(root / "ipadapter", tiny_root)
    return root


@pytest.fixture
def context(root: Path) -> Context:
    store = ModelStore(ModelsFolder(root), torch.device("cpu"), 2**30)
    return Context(store, on_steps=lambda _: None, input_files={}, limits=Limits())


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
    inputs = {"weight_type": "linear", "combine_embeds": "concat", "embeds_scaling": "V only"}
    (model,) = driven(
        node_of(extension, "IPAdapterAdvanced")(
            context,
            model=base,
            ipadapter=loaded,
            image=image,
            clip_vision=vision,
            weight=weight,
            start_at=0.0,
            end_at=1.0,
            **inputs,
        )
    )
    x, tokens = torch.randn(2, 4, 8, 8), torch.randn(2, 77, TEXT_WIDTH)
    time = torch.full((2,), 500)
    placed = PlacedCondition(Condition(tokens), None, None, (1e9, 0.0))
    rows = [placed_prompts(model.image_prompts, placed, x), []]
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
    told = {
        "weight": 1.0,
        "weight_type": "linear",
        "combine_embeds": "concat",
        "start_at": 0.0,
        "end_at": 1.0,
        "embeds_scaling": "V only",
        "clip_vision": ["11", 0],
        "image": ["12", 0],
    }
    prompt["3"]["inputs"]["model"] = ["13", 0]
    return prompt | {
        "10": node("IPAdapterModelLoader", ipadapter_file=adapter),
        "11": node("CLIPVisionLoader", clip_name=VISION),
        "12": node("EmptyImage", width=40, height=32, batch_size=1, color=color),
        "13": node(
            "IPAdapterAdvanced",
            model=["4", 0],
            ipadapter=["10", 0],
            **told | inputs,
        ),
    }


@pytest.fixture(scope="module")
def service(root: Path, extension: Extension) -> Generator[Service]:
    service = Service(root, extension)
    yield service
    service.engine.stop()


class Service:
    """An engine with the package, and its catalogue."""

    def __init__(self, root: Path, extension: Extension) -> None:
        models = ModelsFolder(root, ttl_s=0)
        self.catalogue = Catalogue(models, (*NODE_TYPES, *nodes_of([extension])))
        self.engine = Engine(models=models, more_nodes=extension.node_types)
        self.engine.start()

    def submit(self, prompt: dict[str, Any]) -> Watched:
        watched = Watched()
        self.engine.submit(validate(prompt, self.catalogue, Limits()), on_event=watched.take)
        return watched

    def pictures(self, *prompts: dict[str, Any]) -> list[Any]:
        """The first image of each, all run at once."""
        watched = [self.submit(each) for each in prompts]
        return [each.images()[0].pixels.astype(int) for each in watched]

    def error(self, prompt: dict[str, Any]) -> str:
        end = self.submit(prompt).wait()
        assert isinstance(end, Errored)
        return str(end.error)


def differ(one: Any, other: Any) -> bool:
    return bool(np.abs(one - other).max() > 3)


def test_a_picture_follows_its_image_prompt_and_is_the_same_beside_others(
    service: Service,
) -> None:
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


def test_a_weight_of_0_is_no_adapter(service: Service) -> None:
    (plain,), (zero,) = map(service.pictures, (drawing(None), drawing(RED, weight=0.0)))
    assert np.array_equal(plain, zero)


def test_it_counts_in_its_steps_alone(service: Service) -> None:
    prompts = drawing(None), drawing(RED, start_at=1.0), drawing(RED, end_at=0.2)
    (plain,), (late,), (early,) = map(service.pictures, prompts)
    assert np.array_equal(plain, late)
    assert differ(plain, early)


def test_a_mask_says_where_it_counts(service: Service) -> None:
    masks = {
        name: node("SolidMask", value=value, width=64, height=64)
        for name, value in (("black", 0.0), ("white", 1.0))
    }
    none, all_of_it, black, white = service.pictures(
        drawing(None),
        drawing(RED),
        *(drawing(RED, attn_mask=[name, 0]) | masks for name in masks),
    )
    assert np.abs(none - black).max() <= 1
    assert np.abs(all_of_it - white).max() <= 1


@pytest.mark.parametrize("combining", ["concat", "add", "subtract", "average", "norm average"])
def test_several_pictures_are_one_prompt(combining: str, service: Service) -> None:
    both = drawing(RED, combine_embeds=combining, image=["both", 0], image_negative=["14", 0])
    both |= {
        "14": node("EmptyImage", width=40, height=32, batch_size=1, color=BLUE),
        "both": node("ImageBatch", image1=["12", 0], image2=["14", 0]),
    }
    one, two = service.pictures(drawing(RED), both)
    assert differ(one, two)


def test_what_does_not_fit_is_told(service: Service, root: Path) -> None:
    without = drawing(RED)
    del without["13"]["inputs"]["clip_vision"]
    assert "connect one to clip_vision" in service.error(without)
    save_file({"x": torch.zeros(1)}, root / "ipadapter" / "none.safetensors")
    assert "is no IP-Adapter" in service.error(drawing(RED, adapter="none.safetensors"))
    plain = load_file(root / "ipadapter" / PLAIN)
    first = "ip_adapter.1.to_k_ip.weight"
    save_file(plain | {first: torch.zeros(8, TEXT_WIDTH)}, root / "ipadapter" / "xl.safetensors")
    assert "another family of models" in service.error(drawing(RED, adapter="xl.safetensors"))
    lora = {"ip_adapter.0.to_q_lora.down.weight": torch.zeros(1)}
    save_file(plain | lora, root / "ipadapter" / "face.safetensors")
    assert "needs a detector of faces" in service.error(drawing(RED, adapter="face.safetensors"))


def test_the_unified_loader_finds_its_files_by_their_names(service: Service, root: Path) -> None:
    name = "CLIP-ViT-H-14-laion2B-s32B-b79K.safetensors"
    prompt = drawing(RED)
    prompt["10"] = node(
        "IPAdapterUnifiedLoader", model=["4", 0], preset="STANDARD (medium strength)"
    )
    prompt["13"] = node(
        "IPAdapter",
        model=["10", 0],
        ipadapter=["10", 1],
        image=["12", 0],
        weight=1.0,
        start_at=0.0,
        end_at=1.0,
        weight_type="standard",
    )
    assert f"put {name} there" in service.error(prompt)
    (root / CLIP_VISIONS / name).symlink_to(root / CLIP_VISIONS / VISION)
    write_config(root / CLIP_VISIONS / name)
    found, expected = service.pictures(prompt, drawing(RED))
    assert np.abs(found - expected).max() <= 1


def test_many_pictures_cost_what_they_hold(service: Service) -> None:
    many = drawing(RED)
    many["12"]["inputs"]["batch_size"] = 16
    assert validate(many, service.catalogue, Limits()).cost.live_bytes > 2**28
    with pytest.raises(GraphInvalid, match="costs too much"):
        validate(many, service.catalogue, Limits(max_live_bytes=2**28))


def test_the_layouts_of_a_vision_model_make_no_difference(service: Service) -> None:
    other = drawing(RED)
    other["11"]["inputs"]["clip_name"] = OPEN
    one, same = service.pictures(drawing(RED), other)
    assert np.abs(one - same).max() <= 1
