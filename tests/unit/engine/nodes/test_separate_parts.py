"""Checkpoints without a part that is loaded separately, and text encoders in files of their own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from engine.errors import CheckpointUnavailable, GraphInvalid
from engine.families.family import UNET, VAE, Family
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.reports import Errored
from tests.support.engine.engines import Running, running
from tests.support.engine.graphs import refusal_of
from tests.support.engine.workflows import TINY, Prompt, node, text_to_image, with_input
from training.make_tiny import write_checkpoint
from training.tiny_families import FAMILIES, write_family
from training.tiny_transformers import write_whole, write_z_image

TEXTS = "cond_stage_model."
LAYERS = {"text_encoder": 24, "text_encoder_2": 31}
"""The number of layers by which the text encoders of Stable Diffusion 2 and XL are known."""


def without(source: Path, name: str, *prefixes: str) -> None:
    """Write the checkpoint without tensors of those prefixes, as `name`."""
    kept = {key: each for key, each in load_file(source).items() if not key.startswith(prefixes)}
    save_file(kept, source.with_name(name))
    if source.with_suffix(".config").is_dir():
        shutil.copytree(
            source.with_suffix(".config"), source.with_name(name).with_suffix(".config")
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("parts")
    checkpoints = root / "checkpoints"
    write_checkpoint(checkpoints / TINY)
    without(checkpoints / TINY, "no-text.safetensors", TEXTS)
    without(checkpoints / TINY, "no-vae.safetensors", VAE)
    without(checkpoints / TINY, "network.safetensors", VAE, TEXTS)
    made = write_z_image(root)
    write_whole(checkpoints / "z.safetensors", Family.Z_IMAGE, made)
    made["tokenizer"].save(str(checkpoints / "z.config/tokenizer.json"))
    without(checkpoints / "z.safetensors", "z-no-text.safetensors", "text_encoders.")
    without(checkpoints / "z.safetensors", "z-no-vae.safetensors", "vae.")
    network = (root / "diffusion_models/tiny-z-image.safetensors").read_bytes()
    (checkpoints / "z-network.safetensors").write_bytes(network)
    for family, tiny in FAMILIES.items():
        encoders = {
            name: {**config, "num_attention_heads": 1, "num_hidden_layers": layers_of(family, name)}
            for name, config in tiny.text_encoders.items()
        }
        folder = root / "rest" / family
        deep = replace(tiny, text_encoders=encoders)
        write_family(family, checkpoints / f"{family}.safetensors", folder, deep)
        for name in encoders:
            file = root / "text_encoders" / f"{family}-{name}.safetensors"
            shutil.copy(folder / name / "model.safetensors", file)
    xl = load_file(checkpoints / f"{Family.SDXL}.safetensors")
    prefix = "conditioner.embedders.1.model."
    open_clip = {k.removeprefix(prefix): each for k, each in xl.items() if k.startswith(prefix)}
    save_file(open_clip, root / "text_encoders" / "open-clip.safetensors")
    with running(root) as found:
        yield found


def layers_of(family: Family, name: str) -> int:
    return 3 if family is Family.SDXL and name == "text_encoder" else LAYERS[name]


def graph(name: str, *, clip: str = "", vae: str = "") -> Prompt:
    """The usual graph with a checkpoint, and with parts of other checkpoints."""
    prompt = with_input(text_to_image(), "4", ckpt_name=f"{name}.safetensors")
    if clip:
        prompt["clip"] = node("CheckpointLoaderSimple", ckpt_name=f"{clip}.safetensors")
        for each in "67":
            prompt = with_input(prompt, each, clip=["clip", 1])
    if vae:
        prompt["vae"] = node("CheckpointLoaderSimple", ckpt_name=f"{vae}.safetensors")
        prompt = with_input(prompt, "8", vae=["vae", 2])
    return prompt


BASE = TINY.removesuffix(".safetensors")


@pytest.mark.parametrize(
    ("name", "parts", "base"),
    [
        ("no-text", {"clip": BASE}, BASE),
        ("no-vae", {"vae": BASE}, BASE),
        ("network", {"clip": BASE, "vae": BASE}, BASE),
        (BASE, {"clip": "no-vae", "vae": "no-text"}, BASE),
        ("z-no-text", {"clip": "z"}, "z"),
        ("z-no-vae", {"vae": "z"}, "z"),
        ("z-network", {"clip": "z", "vae": "z"}, "z"),
    ],
)
def test_a_part_that_is_loaded_separately_may_be_missing(
    name: str, parts: dict[str, str], base: str, service: Running
) -> None:
    found, wanted = service.pictures(graph(name, **parts), graph(base))
    assert np.array_equal(found, wanted)


def test_a_lora_may_lie_between(service: Running) -> None:
    """It changes the text encoder of the checkpoint, which nothing uses."""
    (service.models.root / "loras").mkdir(exist_ok=True)
    tensors = load_file(service.models.root / "checkpoints" / TINY)
    key = f"{UNET}input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight"
    out, width = tensors[key].shape
    pair = {"up": tensors[key][:, :1] * 0 + 0.1, "down": tensors[key][:1] * 0 + 0.1}
    assert (len(pair["up"]), pair["down"].shape[1]) == (out, width)
    layer = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_k"
    save_file(
        {f"{layer}.lora_{at}.weight": each.contiguous() for at, each in pair.items()},
        service.models.root / "loras" / "x.safetensors",
    )
    strengths = {"strength_model": 1.0, "strength_clip": 1.0}
    links = {"model": ["4", 0], "clip": ["4", 1]}
    lora = node("LoraLoader", lora_name="x.safetensors", **strengths, **links)
    pictures = []
    for name in ("no-text", BASE):
        prompt = with_input(graph(name, clip=BASE), "3", model=["lora", 0])
        pictures += service.pictures({**prompt, "lora": lora})
    assert np.array_equal(*pictures)


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        (graph("no-text"), "no-text.safetensors has no known text encoder"),
        (graph("no-vae"), "no-vae.safetensors has no VAE"),
        (graph("z-network", clip="z"), "z-network.safetensors has no VAE"),
    ],
)
def test_a_missing_part_that_is_used_is_refused(
    prompt: Prompt, problem: str, service: Running
) -> None:
    (error,) = refusal_of(prompt, service.catalogue).node_errors["4"]["errors"]
    assert error["type"] == "model_not_supported"
    assert problem in error["details"]


def test_a_part_that_went_missing_is_named_with_its_node(service: Running) -> None:
    checkpoint = service.models.root / "checkpoints" / "later.safetensors"
    shutil.copy(checkpoint.with_name(TINY), checkpoint)
    shutil.copytree(
        checkpoint.with_name(TINY).with_suffix(".config"), checkpoint.with_suffix(".config")
    )
    accepted = validate(graph("later"), service.catalogue, Limits())
    shutil.copy(checkpoint.with_name("no-vae.safetensors"), checkpoint)
    end = service.submit(accepted).wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, CheckpointUnavailable)
    assert end.node is not None
    assert (end.node.node_id, end.node.class_type) == ("8", "VAEDecode")


def loaded(family: Family, *names: str, **inputs: Any) -> Prompt:
    """The graph of a family with text encoders from files of these names."""
    prompt = graph(family)
    files = [f"{name}.safetensors" for name in names]
    if len(files) == 1:
        prompt["clip"] = node("CLIPLoader", clip_name=files[0], **inputs)
    else:
        both = {"clip_name1": files[0], "clip_name2": files[1]}
        prompt["clip"] = node("DualCLIPLoader", **both, **inputs)
    for each in "67":
        prompt = with_input(prompt, each, clip=["clip", 0])
    return prompt


XL = (f"{Family.SDXL}-text_encoder", f"{Family.SDXL}-text_encoder_2")


@pytest.mark.parametrize(
    ("family", "names", "type"),
    [
        (Family.SD2, (f"{Family.SD2}-text_encoder",), "stable_diffusion"),
        (Family.SD2, (f"{Family.SD2}-text_encoder",), "sd3"),
        (Family.SDXL_REFINER, (f"{Family.SDXL_REFINER}-text_encoder_2",), "stable_diffusion"),
        (Family.SDXL, XL, "sdxl"),
        (Family.SDXL, XL[::-1], "flux"),
        (Family.SDXL, (XL[0], "open-clip"), "sdxl"),
    ],
)
def test_the_file_shows_the_text_encoder(
    family: Family, names: tuple[str, ...], type: str, service: Running
) -> None:
    found, wanted = service.pictures(loaded(family, *names, type=type), graph(family))
    assert np.array_equal(found, wanted)


def test_text_encoders_that_no_model_has_are_refused(service: Running) -> None:
    prompt = loaded(Family.SDXL, XL[1], XL[1], type="sdxl")
    with pytest.raises(GraphInvalid, match="no supported model has the text encoders"):
        service.submit(prompt)
