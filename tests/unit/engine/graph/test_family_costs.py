"""Costs follow the family that the header of a model shows, as an HTTP replica tells them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.families.family import Family
from engine.families.table import TRAITS
from engine.graph import work
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Cost
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.graphs import cost_of, graph_of, refusal_of
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import node

_Z_IMAGE, _FLUX = ("cap_pad_token",), ("double_blocks.0.img_attn.qkv.weight",)
_FILES = {
    "diffusion_models/tiny-z-image": _Z_IMAGE,
    "diffusion_models/tiny-flux-dev": _FLUX,
    "diffusion_models/unknown": None,
    "text_encoders/tiny-qwen3": ("model.layers.0.self_attn.q_norm.weight",),
    "text_encoders/tiny-t5xxl": ("encoder.block.0.layer.0.SelfAttention.q.weight",),
    "text_encoders/tiny-clip-l": ("text_model.encoder.layers.0.layer_norm1.weight",),
    "loras/x": (),
    "vae/tiny-ae": (),
    "vae/tiny-flux-ae": (),
    "checkpoints/sd1": ("x", "first_stage_model.x", "cond_stage_model.transformer.x"),
    "checkpoints/z-image": (*_Z_IMAGE, "text_encoders.x", "vae.x"),
    "checkpoints/flux": (*_FLUX, "text_encoders.x", "vae.x"),
}
_SIZE = {"width": 1024, "height": 1024}


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    root = tmp_path_factory.mktemp("models")
    for name, keys in _FILES.items():
        path = root / f"{name}.safetensors"
        path.parent.mkdir(exist_ok=True)
        if keys is None:
            path.touch()
            continue
        own = [f"model.diffusion_model.{keys[0]}", *keys[1:]] if "checkpoints" in name else keys
        save_file({key: np.zeros(1, np.float16) for key in own}, path)
    tokenizer = root / "text_encoders/t5xxl.config/tokenizer.json"
    tokenizer.parent.mkdir()
    tokenizer.touch()
    return Catalogue(ModelsFolder(root))


def whole(name: str, catalogue: Catalogue) -> Cost:
    body = {"prompt": "x", "seed": 1, "steps": 10, "cfg_scale": 1.0, **_SIZE}
    made = compile_parameters(
        parse_parameters(body), catalogue.models, Limits(), default_checkpoint=f"{name}.safetensors"
    )
    return cost_of(made.prompt, catalogue)


@pytest.mark.parametrize(("name", "family"), [("z-image", Family.Z_IMAGE), ("flux", Family.FLUX)])
def test_a_checkpoint_costs_as_its_family(name: str, family: Family, catalogue: Catalogue) -> None:
    own, plain, found = TRAITS[family].work, whole("sd1", catalogue), whole(name, catalogue)
    megapixels = 1024 * 1024 / 1e6
    calls = 10 * megapixels * (1 + megapixels / work.ATTENTION_MEGAPIXELS)
    more = work.LOAD * (own.load + own.text_load - 1) + calls * (own.call - 1)
    assert found.work - plain.work == pytest.approx(more, rel=0.03)
    assert found.tokens == max(77, TRAITS[family].least_tokens)


def test_parts_cost_as_much_as_the_whole(catalogue: Catalogue) -> None:
    for graph, name in ((z_image_graph, "z-image"), (flux_graph, "flux")):
        parts = graph("x", steps=10, cfg=1.0)
        parts["6"]["inputs"] |= _SIZE
        found = cost_of(parts, catalogue).work
        assert found == pytest.approx(whole(name, catalogue).work + work.LOAD_PART, rel=0.02)


def test_what_lies_between_loader_and_sampler_changes_no_cost(catalogue: Catalogue) -> None:
    plain = flux_graph(steps=4)
    patched = {**plain, "8": node("KSampler", **plain["8"]["inputs"])}
    patched["8"]["inputs"]["model"] = ["1", 0]
    assert cost_of(patched, catalogue).work == cost_of(plain, catalogue).work
    stopped = z_image_graph(steps=4)
    stopped["20"] = node("CLIPSetLastLayer", clip=["2", 0], stop_at_clip_layer=-1)
    before = cost_of(z_image_graph(steps=4), catalogue).work
    for each in ("4", "5"):
        stopped[each]["inputs"]["clip"] = ["20", 0]
    assert cost_of(stopped, catalogue).work == before


def test_a_lora_costs_what_the_models_do_that_it_changes(catalogue: Catalogue) -> None:
    own, before = TRAITS[Family.FLUX].work, cost_of(flux_graph(steps=4), catalogue).work
    for name, more in (("LoraLoader", own.load + own.text_load), ("LoraLoaderModelOnly", own.load)):
        graph = flux_graph(steps=4)
        inputs: dict[str, Any] = {"model": ["1", 0], "lora_name": "x.safetensors"}
        inputs["strength_model"] = 1.0
        if name == "LoraLoader":
            inputs |= {"clip": ["2", 0], "strength_clip": 1.0}
        graph["20"] = node(name, **inputs)
        graph["7"]["inputs"]["model"] = ["20", 0]
        assert cost_of(graph, catalogue).work - before == pytest.approx(work.LOAD * more)


def test_a_network_of_unknown_family_costs_as_the_costliest(catalogue: Catalogue) -> None:
    unknown, known = z_image_graph(steps=4), z_image_graph(steps=4)
    unknown["1"]["inputs"]["unet_name"] = "unknown.safetensors"
    assert cost_of(unknown, catalogue).work > cost_of(known, catalogue).work


def test_limits_hold_for_them(catalogue: Catalogue) -> None:
    graph = flux_graph(steps=30)
    graph["6"]["inputs"] |= _SIZE
    graph_of(graph, catalogue, max_cost=1000.0)
    assert refusal_of(graph, catalogue, max_cost=300.0).extra_info["limit"] == "max_cost"


def test_the_latent_of_a_deep_model_has_its_size_whatever_it_began_as(catalogue: Catalogue) -> None:
    prompts = [
        z_image_graph(steps=1) | {"6": node(f"Empty{kind}Image", **_SIZE, batch_size=8)}
        for kind in ("Latent", "SD3Latent")
    ]
    shallow, deep = (graph_of(each, catalogue).node_bytes["8"] for each in prompts)
    assert shallow == deep


def test_tokens_of_a_long_text_cost_as_patches_of_the_image(catalogue: Catalogue) -> None:
    usual, long, large = (
        cost_of(flux_graph("cat " * count, steps=10) | {"6": _latent(side)}, catalogue)
        for count, side in ((100, 64), (1000, 64), (100, 1024))
    )
    share = (long.tokens - 512) * 256 / 1024**2
    assert 0.8 < share < 0.9
    found = (long.work - usual.work) / (large.work - usual.work)
    assert found == pytest.approx(share, rel=0.1)


def _latent(side: int) -> dict[str, Any]:
    return node("EmptySD3LatentImage", width=side, height=side, batch_size=1)


def test_reference_latents_cost_as_more_pixels_of_the_image(catalogue: Catalogue) -> None:
    graph = flux_graph(steps=10)
    graph["6"]["inputs"] |= _SIZE
    before = cost_of(graph, catalogue).work
    for name, text in (("20", "4"), ("21", "20")):
        graph[name] = node("ReferenceLatent", conditioning=[text, 0], latent=["6", 0])
    graph["8"]["inputs"]["positive"] = ["21", 0]
    sizes = [1024 * 1024 * count / 1e6 for count in (1, 3)]
    tokens = 256 * work.TOKEN_MEGAPIXELS
    one, three = (each * (1 + (each + tokens) / work.ATTENTION_MEGAPIXELS) for each in sizes)
    more = 10 * TRAITS[Family.FLUX].work.call * (three - one)
    assert cost_of(graph, catalogue).work - before == pytest.approx(more, rel=0.01)
