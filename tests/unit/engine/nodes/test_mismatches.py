"""Values of another family in every input that takes their type.

Each run ends well, or with an error of the caller that names a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import GraphInvalid, InputsInvalid
from engine.graph.declarations import (
    Boolean,
    Choice,
    Float,
    Input,
    Int,
    Link,
    NodeType,
    String,
)
from engine.graph.models_folder import (
    CHECKPOINTS,
    CLIP_VISIONS,
    CONTROL_NETS,
    DIFFUSION_MODELS,
    GLIGENS,
    HYPERNETWORKS,
    LORAS,
    TEXT_ENCODERS,
    UPSCALE_MODELS,
    VAES,
)
from engine.nodes import NODE_TYPES
from engine.reports import Errored, Finished
from tests.support.engine.control_nets import (
    tiny_control_net,
    tiny_flux_control_net,
    write_in_ldm_keys,
)
from tests.support.engine.engines import Running, running
from tests.support.engine.gligens import tiny_gligen, write_gligen
from tests.support.engine.loras import FLUX, flat, layer_pairs, pairs_for, state_of, with_alpha
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import TINY, Prompt, node, text_to_image, with_input
from tests.support.vision.clip_vision import UNCLIP_NAME, VISION, write_unclip, write_vision
from training.make_tiny import write_checkpoint
from training.tiny_families import FAMILIES, write_family
from training.tiny_transformers import write_flux, write_z_image

FILES = {
    CHECKPOINTS: TINY,
    CLIP_VISIONS: VISION,
    CONTROL_NETS: "own.safetensors",
    DIFFUSION_MODELS: "tiny-z-image.safetensors",
    GLIGENS: "own.safetensors",
    HYPERNETWORKS: "own.pt",
    LORAS: "own.safetensors",
    TEXT_ENCODERS: "tiny-qwen3.safetensors",
    UPSCALE_MODELS: "own.safetensors",
    VAES: "tiny-ae.safetensors",
}
"""The file of each folder that belongs to the tiny checkpoint, where there is one."""
SIZE = {"width": 64, "height": 64}
OTHER_FILES = {
    CONTROL_NETS: ["text.safetensors", "layers.safetensors", "flux.safetensors"],
    HYPERNETWORKS: ["wide.pt"],
    LORAS: ["flux.safetensors", "wide.safetensors"],
}
TYPES = {each.class_type: each for each in NODE_TYPES}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("mismatches")
    write_checkpoint(root / CHECKPOINTS / TINY)
    for family in FAMILIES:
        write_family(family, root / CHECKPOINTS / f"{family}.safetensors", root / "rest" / family)
    write_z_image(root)
    write_flux(root)
    write_unclip(root)
    write_vision(root / CLIP_VISIONS)
    for folder in (CONTROL_NETS, LORAS, HYPERNETWORKS):
        (root / folder).mkdir()
    write_gligen(tiny_gligen(1), root / GLIGENS / "own.safetensors")
    write_gligen(tiny_gligen(1, widths=[32] * 6), root / GLIGENS / "layers.safetensors")
    write_gligen(tiny_gligen(1, text_width=24), root / GLIGENS / "text.safetensors")
    own = tiny_control_net(1)
    write_in_ldm_keys(own, root / CONTROL_NETS / "own.safetensors")
    write_in_ldm_keys(
        tiny_control_net(1, cross_attention_dim=40), root / CONTROL_NETS / "text.safetensors"
    )
    write_in_ldm_keys(
        tiny_control_net(1, block_out_channels=[32, 32]), root / CONTROL_NETS / "layers.safetensors"
    )
    control = tiny_flux_control_net(1, num_single_layers=0)
    save_file(control.state_dict(), root / CONTROL_NETS / "flux.safetensors")
    flux = pairs_for(state_of(root, FLUX), ("double_blocks",))
    save_file(with_alpha(flux, flat("lora_unet_")), root / LORAS / "flux.safetensors")
    pairs = layer_pairs(own, r"attn2\.to_k", seed=1)
    save_file(with_alpha(pairs, flat("lora_unet_")), root / LORAS / "own.safetensors")
    wide = {name: (down.repeat(1, 2), up) for name, (down, up) in pairs.items()}
    save_file(with_alpha(wide, flat("lora_unet_")), root / LORAS / "wide.safetensors")
    for name, width in (("own", 64), ("wide", 24)):
        weights = {"linear.0.weight": torch.eye(width), "linear.0.bias": torch.zeros(width)}
        torch.save({width: [weights, weights]}, root / HYPERNETWORKS / f"{name}.pt")
    with running(root) as found:
        yield found


def checkpoint(name: str) -> dict[str, Any]:
    return node("CheckpointLoaderSimple", ckpt_name=name)


BASE: Prompt = {
    **{key: each for key, each in text_to_image().items() if key in "4567"},
    "image": node("EmptyImage", **SIZE, batch_size=1, color=200),
    "mask": node("SolidMask", **SIZE, value=1.0),
    "latent": node("VAEEncode", pixels=["image", 0], vae=["4", 2]),
    "net": node("ControlNetLoader", control_net_name="own.safetensors"),
    "boxes": node("GLIGENLoader", gligen_name="own.safetensors"),
    "vision": node("CLIPVisionLoader", clip_name=VISION),
    "seen": node("CLIPVisionEncode", clip_vision=["vision", 0], image=["image", 0], crop="none"),
    "guider": node("CFGGuider", model=["4", 0], positive=["6", 0], negative=["7", 0], cfg=2.0),
    "noise": node("RandomNoise", noise_seed=1),
    "sampler": node("KSamplerSelect", sampler_name="euler"),
    "sigmas": node("BasicScheduler", model=["4", 0], scheduler="normal", steps=1, denoise=1.0),
}
OWN = {
    "MODEL": ["4", 0],
    "CLIP": ["4", 1],
    "VAE": ["4", 2],
    "CONDITIONING": ["6", 0],
    "LATENT": ["latent", 0],
    "IMAGE": ["image", 0],
    "MASK": ["mask", 0],
    "IMAGE,MASK": ["image", 0],
    "CONTROL_NET": ["net", 0],
    "GLIGEN": ["boxes", 0],
    "CLIP_VISION": ["vision", 0],
    "CLIP_VISION_OUTPUT": ["seen", 0],
    "GUIDER": ["guider", 0],
    "NOISE": ["noise", 0],
    "SAMPLER": ["sampler", 0],
    "SIGMAS": ["sigmas", 0],
}
"""An output of each type that belongs to the tiny checkpoint."""


def _foreign() -> tuple[Prompt, dict[str, list[list[Any]]]]:
    """Nodes with values of other families and sizes, and their outputs by type."""
    nodes: Prompt = {}
    found: dict[str, list[list[Any]]] = {}

    def add(name: str, made: dict[str, Any], *types: str) -> None:
        nodes[name] = made
        for at, each in enumerate(types):
            found.setdefault(each, []).append([name, at])

    for family in (*FAMILIES, UNCLIP_NAME.removesuffix(".safetensors")):
        add(f"{family}", checkpoint(f"{family}.safetensors"), "MODEL", "CLIP", "VAE")
    for name, graph in (("z", z_image_graph()), ("flux", flux_graph())):
        for key, kind in (("1", "MODEL"), ("2", "CLIP"), ("3", "VAE")):
            add(f"{name}{key}", graph[key], kind)
    for name, at in list(found["CLIP"]):
        add(f"{name}-text", node("CLIPTextEncode", text="a", clip=[name, at]), "CONDITIONING")
    add("deep", node("VAEEncode", pixels=["image", 0], vae=["z3", 0]), "LATENT")
    add("three", node("RepeatLatentBatch", samples=["latent", 0], amount=3), "LATENT")
    small = {"upscale_method": "area", "width": 32, "height": 48, "crop": "disabled"}
    add("small", node("LatentUpscale", samples=["latent", 0], **small), "LATENT")
    add("two", node("EmptyImage", width=40, height=24, batch_size=2, color=9), "IMAGE")
    clear = node("JoinImageWithAlpha", image=["image", 0], alpha=["mask", 0])
    add("clear", clear, "IMAGE")
    add("flat", node("SolidMask", width=24, height=16, value=0.5), "MASK")
    add("masks", node("ImageToMask", image=["two", 0], channel="red"), "MASK")
    for name in ("text", "layers", "flux"):
        net = node("ControlNetLoader", control_net_name=f"{name}.safetensors")
        add(f"{name}-net", net, "CONTROL_NET")
    for name in ("text", "layers"):
        gligen = node("GLIGENLoader", gligen_name=f"{name}.safetensors")
        add(f"{name}-boxes", gligen, "GLIGEN")
    schedule = {"scheduler": "simple", "steps": 1, "denoise": 1.0}
    add("flow-sigmas", node("BasicScheduler", model=["z1", 0], **schedule), "SIGMAS")
    for name, at in found["MODEL"]:
        texts = {"positive": ["6", 0], "negative": ["7", 0]}
        add(f"{name}-guider", node("CFGGuider", model=[name, at], **texts, cfg=2.0), "GUIDER")
    return nodes, found


FOREIGN, FOREIGN_OF = _foreign()


def literal(name: str, declared: Input) -> Any:
    match declared:
        case Int() | Float():
            usual = {"width": 64, "height": 64, "steps": 1}.get(name, declared.default)
            return max(declared.min, min(declared.max, usual))
        case String() | Boolean():
            return declared.default
        case Choice():
            return FILES[declared.folder] if declared.folder else declared.values[0]
        case _:
            raise AssertionError(declared)


MORE_THAN_A_FEW = {f"images.image{number}" for number in range(3, 50)}


def under_test(declared: NodeType) -> dict[str, Any]:
    """The node with values that belong to the tiny checkpoint."""
    inputs: dict[str, Any] = {}
    for name, each in declared.all_inputs.items():
        if isinstance(each, Link):
            if name not in MORE_THAN_A_FEW:
                inputs[name] = OWN[each.type]
        elif name in declared.inputs:
            inputs[name] = literal(name, each)
    return node(declared.class_type, **inputs)


USES = {
    "MODEL": ("KSampler", "model"),
    "CLIP": ("CLIPTextEncode", "clip"),
    "CONDITIONING": ("KSampler", "positive"),
    "LATENT": ("VAEDecode", "samples"),
    "VAE": ("VAEDecode", "vae"),
    "IMAGE": ("SaveImage", "images"),
    "IMAGE,MASK": ("SaveImage", "images"),
    "MASK": ("MaskToImage", "mask"),
    "CONTROL_NET": ("ControlNetApply", "control_net"),
    "CLIP_VISION": ("CLIPVisionEncode", "clip_vision"),
    "CLIP_VISION_OUTPUT": ("unCLIPConditioning", "clip_vision_output"),
    "GUIDER": ("SamplerCustomAdvanced", "guider"),
    "NOISE": ("SamplerCustomAdvanced", "noise"),
    "SAMPLER": ("SamplerCustomAdvanced", "sampler"),
    "SIGMAS": ("SamplerCustomAdvanced", "sigmas"),
}
"""A node and its input that uses a value of each type."""


def using(kind: str, source: list[Any]) -> Prompt:
    """Nodes that use an output of that type, up to an output node, or {} if none does."""
    found: Prompt = {}
    while kind in USES:
        class_type, name = USES[kind]
        declared, id = TYPES[class_type], f"use of {kind}"
        found |= with_input({id: under_test(declared)}, id, **{name: source})
        if declared.is_output:
            return found
        kind, source = declared.outputs[0], [id, 0]
    return {}


def graphs_of(declared: NodeType) -> Iterator[tuple[str, Prompt]]:
    """Graphs with the node, and what each tests. The first has no foreign value."""
    own = under_test(declared)
    used = [using(kind, ["node", at]) for at, kind in enumerate(declared.outputs)]
    uses = [each for each in used if each] or [{}]
    for at, use in enumerate(uses):
        base = {**BASE, **FOREIGN, "node": own, **use}
        yield f"own {at}", base
        for name, each in declared.all_inputs.items():
            match each:
                case Link():
                    values: list[Any] = FOREIGN_OF.get(each.type, [])
                case Choice(folder=str() as folder):
                    values = OTHER_FILES.get(folder, [])
                case _:
                    values = []
            for source in values:
                yield f"{name} = {source} {at}", with_input(base, "node", **{name: source})


def problem_of(service: Running, prompt: Prompt) -> str | None:
    """Whether a run ended otherwise than it may, and how."""
    try:
        end = service.submit(prompt).wait()
    except GraphInvalid:
        return None
    if not isinstance(end, Errored):
        return None
    error = end.error
    if isinstance(error, InputsInvalid):
        return None if error.node_id in prompt else f"no node: {error}"
    return f"{type(error).__name__} {end.node}: {error}"


def links_of(declared: NodeType) -> set[str]:
    return {each.type for each in declared.all_inputs.values() if isinstance(each, Link)}


TAKING = [
    each
    for each in NODE_TYPES
    if links_of(each) and links_of(each) <= OWN.keys() and not each.file_inputs
]


@pytest.mark.parametrize("declared", TAKING, ids=lambda each: each.class_type)
def test_a_foreign_value_is_an_error_of_the_caller(declared: NodeType, service: Running) -> None:
    problems = {what: problem_of(service, prompt) for what, prompt in graphs_of(declared)}
    assert not {what: each for what, each in problems.items() if each}


FOR_OTHERS = {
    "CLIPTextEncodeFlux",
    "ModelSamplingAuraFlow",
    "ModelSamplingFlux",
    "ModelSamplingSD3",
    "GetImageSize",  # no output node uses its numbers
}
"""Nodes that cannot run with the values of Stable Diffusion 1."""


@pytest.mark.parametrize("declared", TAKING, ids=lambda each: each.class_type)
def test_values_of_one_family_fit(declared: NodeType, service: Running) -> None:
    """So the runs above reach the node with its foreign value."""
    _, prompt = next(graphs_of(declared))
    if declared.class_type in FOR_OTHERS:
        assert problem_of(service, prompt) is None
    else:
        assert isinstance(service.submit(prompt).wait(), Finished)


@pytest.mark.parametrize(
    ("node_id", "name", "link", "failed"),
    [("8", "vae", ["z", 0], ("8", "VAEDecode")), ("6", "clip", ["y", 0], ("3", "KSampler"))],
)
def test_a_part_of_another_family_names_its_node(
    node_id: str, name: str, link: list[Any], failed: tuple[str, str], service: Running
) -> None:
    others = {"z": z_image_graph()["3"], "y": z_image_graph()["2"]}
    prompt = with_input({**text_to_image(), **others}, node_id, **{name: link})
    error = service.submit(prompt).error(InputsInvalid)
    assert (error.code, error.node_id, error.class_type) == ("invalid_input", *failed)
    assert str(error).startswith(f"node {failed[0]} ({failed[1]}): the ")
