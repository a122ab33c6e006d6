"""The files of transformers: layouts, eight-bit weights, and what is wrong with others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from engine.diffusion.families.encoders import load_texts
from engine.diffusion.families.loading import load_diffusion_model
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.errors import CheckpointUnavailable
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.options import UnetOptions
from engine.reports import Errored
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import Watched, node
from training.tiny_transformers import write_flux, write_z_image

NETWORK = "diffusion_models/tiny-z-image.safetensors"
NAME = "tiny-z-image.safetensors"
_EIGHT_BITS = torch.float8_e4m3fn


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_z_image(tmp_path)
    return tmp_path


@pytest.fixture
def store(root: Path) -> ModelStore:
    return ModelStore(ModelsFolder(root), torch.device("cpu"), 2**30)


def _change(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    save_file(change(load_file(path)), path)


def _scaled(state: dict[str, Any], marks: bool) -> dict[str, Any]:
    """The state with its layers in eight bits and a scale for each."""
    found = dict(state)
    for key, each in state.items():
        if not key.startswith("layers.") or each.ndim != 2:
            continue
        scale = each.abs().max() / 448
        found[key] = (each / scale).to(_EIGHT_BITS)
        stem = key.removesuffix(".weight")
        found[f"{stem}.{'weight_scale' if marks else 'scale_weight'}"] = scale
        if marks:
            content = bytearray(b'{"format": "float8_e4m3fn"}')
            found[f"{stem}.comfy_quant"] = torch.frombuffer(content, dtype=torch.uint8).clone()
    return found


@pytest.mark.parametrize("marks", [False, True], ids=["scale_weight", "comfy_quant"])
def test_eight_bit_weights_are_read_with_their_scales(
    marks: bool, root: Path, store: ModelStore
) -> None:
    plain = load_diffusion_model(store, NAME, "default").unet.state_dict()
    _change(root / NETWORK, lambda state: _scaled(state, marks))
    scaled = load_diffusion_model(store, NAME, "default").unet.state_dict()
    key = "layers.1.attention.to_k.weight"
    error = (plain[key] - scaled[key]).abs().max() / plain[key].abs().max()
    assert 0 < error < 0.05
    assert scaled[key].dtype is torch.float32


def test_weights_with_many_scales_are_refused(root: Path, store: ModelStore) -> None:
    key = "layers.0.feed_forward.w1"
    _change(root / NETWORK, lambda state: {**state, f"{key}.weight_scale": torch.ones(4, 4)})
    with pytest.raises(CheckpointUnavailable, match="16 scales: only fp8 with one is read"):
        load_diffusion_model(store, NAME, "default")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("double_stream_modulation_img.lin.weight", "Flux.2"),
        ("joint_blocks.0.x", "Stable Diffusion 3"),
        ("lora_unet_x", "a LoRA: it belongs into loras/"),
        ("nothing.known", "no diffusion model that is known"),
    ],
)
def test_a_foreign_file_says_what_it_is(key: str, kind: str, root: Path, store: ModelStore) -> None:
    save_file({key: torch.zeros(1)}, root / NETWORK)
    with pytest.raises(CheckpointUnavailable, match=f"is {kind}"):
        load_diffusion_model(store, NAME, "default")


def test_what_a_damaged_file_lacks_is_named(root: Path, store: ModelStore) -> None:
    lost = "layers.1.feed_forward.w2.weight"
    _change(root / NETWORK, lambda state: {k: v for k, v in state.items() if k != lost})
    with pytest.raises(CheckpointUnavailable, match=f"has no {lost}"):
        load_diffusion_model(store, NAME, "default")


def test_a_missing_tokenizer_is_named_with_its_places(root: Path, store: ModelStore) -> None:
    place = root / "text_encoders/tiny-qwen3.config/tokenizer.json"
    content = place.read_bytes()
    place.unlink()
    with pytest.raises(CheckpointUnavailable, match=r"tiny-qwen3.config/tokenizer.json or .*qwen3"):
        load_texts(store, Family.Z_IMAGE, ["tiny-qwen3.safetensors"])
    shared = root / "text_encoders/qwen3.config/tokenizer.json"
    shared.parent.mkdir()
    shared.write_bytes(content)
    load_texts(store, Family.Z_IMAGE, ["tiny-qwen3.safetensors"])


def test_a_text_encoder_of_another_kind_is_refused(root: Path, store: ModelStore) -> None:
    write_flux(root)
    with pytest.raises(CheckpointUnavailable, match="z_image takes the text encoders qwen3"):
        load_texts(store, Family.Z_IMAGE, ["tiny-clip-l.safetensors"])


def test_a_tokenizer_of_more_tokens_than_the_encoder_knows_is_refused(
    root: Path, store: ModelStore
) -> None:
    place = root / "text_encoders/tiny-qwen3.config/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(place))
    tokenizer.add_tokens([f"<token {at}>" for at in range(320)])
    tokenizer.save(str(place))
    with pytest.raises(CheckpointUnavailable, match="tokenizer of tiny-qwen3"):
        load_texts(store, Family.Z_IMAGE, ["tiny-qwen3.safetensors"])


def test_a_clip_of_another_vocabulary_is_refused(root: Path, store: ModelStore) -> None:
    write_flux(root)
    key = "text_model.embeddings.token_embedding.weight"
    path = root / "clip/tiny-clip-l.safetensors"
    _change(path, lambda state: {**state, key: state[key][:100].clone()})
    with pytest.raises(CheckpointUnavailable, match="no CLIP-L: it knows 100 tokens"):
        load_texts(store, Family.FLUX, ["tiny-clip-l.safetensors", "tiny-t5xxl.safetensors"])


def test_what_is_in_memory_is_had_without_waiting_for_the_folder(
    z_image: dict[str, Any], transformers_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore(ModelsFolder(transformers_root), torch.device("cpu"), 2**30)
    loads: list[Callable[[], Any]] = [
        lambda: load_texts(store, Family.Z_IMAGE, ["tiny-qwen3.safetensors"]).encoder,  # type: ignore[attr-defined]
        lambda: load_checkpoint(store, "whole.safetensors").model.unet,
        lambda: load_checkpoint(store, "folder").model.unet,
    ]
    kept = [load() for load in loads]
    here, look = threading.get_ident(), os.stat

    def watched_stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        is_model = str(path).startswith(str(transformers_root))
        assert not is_model or threading.get_ident() != here, path
        return look(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", watched_stat)
    assert [load() for load in loads] == kept


def test_a_whole_checkpoint_and_a_folder_make_the_same_picture(
    start: Callable[..., Watched],
) -> None:
    pictures = [start(z_image_graph(steps=1)).images()[0].pixels]
    for name in ("whole.safetensors", "folder"):
        loaded = {
            "1": node("CheckpointLoaderSimple", ckpt_name=name),
            "4": node("CLIPTextEncode", text="a red square", clip=["1", 1]),
            "5": node("CLIPTextEncode", text="", clip=["1", 1]),
            "9": node("VAEDecode", samples=["8", 0], vae=["1", 2]),
        }
        pictures.append(start({**z_image_graph(steps=1), **loaded}).images()[0].pixels)
    for other in pictures[1:]:
        assert np.abs(pictures[0].astype(int) - other).max() <= 1


def test_the_diffusion_flavour_takes_a_whole_checkpoint(
    start: Callable[..., Watched], transformers_root: Path
) -> None:
    catalogue = Catalogue(ModelsFolder(transformers_root))
    body = {"prompt": "a red square", "seed": 5, "steps": 2, "cfg_scale": 2.0}
    asked = parse_parameters(body)
    found = compile_parameters(asked, catalogue, Limits(), default_checkpoint="folder")
    assert [each["inputs"]["width"] for each in found.prompt.values() if _is_empty(each)] == [1024]
    for each in filter(_is_empty, found.prompt.values()):
        each["inputs"] |= {"width": 64, "height": 64}
    other = parse_parameters({**body, "prompt": "two blue circles", "width": 64, "height": 64})
    prompts = [
        found.prompt,
        compile_parameters(other, catalogue, Limits(), default_checkpoint="folder").prompt,
    ]
    first, second = (start(each).images()[0].pixels for each in prompts)
    assert first.shape == (64, 64, 3)
    assert np.abs(first.astype(int) - second).max() > 20


def _is_empty(one: dict[str, Any]) -> bool:
    return bool(one["class_type"] == "EmptyLatentImage")


def test_half_precision_is_bfloat16(root: Path) -> None:
    options = UnetOptions(precision="float16")
    store = ModelStore(ModelsFolder(root), torch.device("cpu"), 2**30, unets=options)
    assert load_diffusion_model(store, NAME, "default").dtype is torch.bfloat16


def test_texts_and_patches_of_other_families_end_the_job_alone(
    start: Callable[..., Watched],
) -> None:
    mixed = {**z_image_graph(steps=1), "2": flux_graph()["2"]}
    sd = node("FreeU", model=["1", 0], b1=1.1, b2=1.2, s1=0.9, s2=0.2)
    patched = {**z_image_graph(steps=1, model=["20", 0]), "20": sd}
    guided = {**z_image_graph(steps=1, model=["20", 0]), "20": node("RescaleCFG", model=["1", 0])}
    guided["20"]["inputs"]["multiplier"] = 0.7
    relevelled = {**z_image_graph(steps=1, model=["20", 0])}
    relevelled["20"] = node("ModelSamplingDiscrete", model=["1", 0], sampling="eps", zsnr=False)
    wanted = {
        "leave out the ModelSampling node": relevelled,
        "encoded for another model": mixed,
        "made for UNets, and Z-Image has a transformer": patched,
        "RescaleCFG is for models that predict noise": guided,
    }
    for message, graph in wanted.items():
        end = start(graph).wait()
        assert isinstance(end, Errored)
        assert message in str(end.error)
    assert start(z_image_graph(steps=1)).images()
