"""The files of transformers: layouts, eight-bit weights, and what is wrong with others."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_checkpoint, load_diffusion_model, load_texts
from engine.diffusion.loading.store import ModelStore
from engine.errors import CheckpointUnavailable, EngineError, GraphInvalid
from engine.options import UnetOptions
from tests.support.engine.diffusion_requests import compiled
from tests.support.engine.engines import Running, running
from tests.support.engine.latents import farthest
from tests.support.engine.spiece_model import spiece_model
from tests.support.engine.stores import store_of
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import TINY, Submit, node, text_to_image
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
    return store_of(root)


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
def test_eight_bit_weights_have_their_scales(marks: bool, root: Path, store: ModelStore) -> None:
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
    with pytest.raises(
        CheckpointUnavailable, match="16 scales: only fp8 with one scale is supported"
    ):
        load_diffusion_model(store, NAME, "default")


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("double_stream_modulation_img.lin.weight", "Flux.2"),
        ("joint_blocks.0.x", "Stable Diffusion 3"),
        ("lora_unet_x", "a LoRA, which belongs into loras/"),
        ("nothing.known", "not a known diffusion model"),
    ],
)
def test_a_foreign_file_says_what_it_is(key: str, kind: str, root: Path, store: ModelStore) -> None:
    save_file({key: torch.zeros(1)}, root / NETWORK)
    with pytest.raises(CheckpointUnavailable, match=f"is {kind}"):
        load_diffusion_model(store, NAME, "default")


_T5 = ["tiny-clip-l.safetensors", "tiny-t5xxl.safetensors"]


def test_the_tokenizer_of_t5_is_in_one_of_several_places(root: Path) -> None:
    write_flux(root)
    place = root / "clip/tiny-t5xxl.config/tokenizer.json"
    content = place.read_bytes()
    place.unlink()
    with pytest.raises(
        CheckpointUnavailable,
        match=r"put its tokenizer.json, which ComfyUI has in comfy/text_encoders/t5_tokenizer/, at "
        r"clip/tiny-t5xxl.config/tokenizer.json or text_encoders/t5xxl.config/tokenizer.json",
    ):
        load_texts(store_of(root), _T5)
    comfyui = root / "other/comfy/text_encoders/t5_tokenizer/tokenizer.json"
    for other in (root / "text_encoders/t5xxl.config/tokenizer.json", comfyui):
        other.parent.mkdir(parents=True)
        other.write_bytes(content)
        store = store_of(root)
        store.models.comfyui_dir = root / "other"
        load_texts(store, _T5)
        other.unlink()


def test_a_t5_may_have_its_tokenizer_in_a_tensor(root: Path, store: ModelStore) -> None:
    write_flux(root)
    (root / "clip/tiny-t5xxl.config/tokenizer.json").unlink()
    content = np.frombuffer(spiece_model(), np.uint8).copy()
    stored = {"spiece_model": torch.from_numpy(content)}
    _change(root / "clip/tiny-t5xxl.safetensors", lambda state: {**state, **stored})
    request: Any = next(load_texts(store, _T5)._states("a red square"))  # type: ignore[union-attr]
    known = sentencepiece.SentencePieceProcessor(model_proto=content.tobytes())
    assert request.texts == [(*(ids := known.encode("a red square")), 1, *[0] * (255 - len(ids)))]


def test_a_qwen3_needs_no_tokenizer_in_the_models_folder(root: Path, store: ModelStore) -> None:
    (root / "text_encoders/tiny-qwen3.config/tokenizer.json").unlink()
    with pytest.raises(CheckpointUnavailable, match="it has a token 151664, but the encoder knows"):
        load_texts(store, ["tiny-qwen3.safetensors"])


def test_a_text_encoder_of_another_kind_is_refused(root: Path, store: ModelStore) -> None:
    write_flux(root)
    with pytest.raises(
        CheckpointUnavailable, match="no supported model has the text encoders t5xxl"
    ):
        load_texts(store, ["tiny-t5xxl.safetensors"])


def test_a_tokenizer_of_unknown_tokens_is_refused(root: Path, store: ModelStore) -> None:
    place = root / "text_encoders/tiny-qwen3.config/tokenizer.json"
    tokenizer = Tokenizer.from_file(str(place))
    tokenizer.add_tokens([f"<token {at}>" for at in range(320)])
    tokenizer.save(str(place))
    with pytest.raises(CheckpointUnavailable, match="tokenizer of tiny-qwen3"):
        load_texts(store, ["tiny-qwen3.safetensors"])


def test_a_clip_of_another_vocabulary_is_refused(root: Path, store: ModelStore) -> None:
    write_flux(root)
    key = "text_model.embeddings.token_embedding.weight"
    path = root / "clip/tiny-clip-l.safetensors"
    _change(path, lambda state: {**state, key: state[key][:100].clone()})
    with pytest.raises(CheckpointUnavailable, match="not CLIP: it has a vocabulary of 100 tokens"):
        load_texts(store, ["tiny-clip-l.safetensors", "tiny-t5xxl.safetensors"])


def test_what_is_in_memory_is_had_without_waiting_for_the_folder(
    z_image: dict[str, Any], transformers_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(transformers_root)
    loads: list[Callable[[], Any]] = [
        lambda: load_texts(store, ["tiny-qwen3.safetensors"]).encoder,  # type: ignore[attr-defined]
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


def test_a_whole_checkpoint_and_a_folder_make_the_same_picture(start: Submit) -> None:
    pictures = [start(z_image_graph(steps=1)).images()[0].pixels]
    for name in ("whole.safetensors", "folder"):
        loaded = {
            "1": node("CheckpointLoaderSimple", ckpt_name=name),
            "4": node("CLIPTextEncode", text="a red square", clip=["1", 1]),
            "5": node("CLIPTextEncode", text="", clip=["1", 1]),
            "9": node("VAEDecode", samples=["8", 0], vae=["1", 2]),
        }
        pictures.append(start({**z_image_graph(steps=1), **loaded}).images()[0].pixels)
    assert max(farthest(pictures[0], other) for other in pictures) <= 1


def test_the_diffusion_flavour_takes_a_whole_checkpoint(flow: Running) -> None:
    body: dict[str, Any] = {"steps": 2, "cfg_scale": 2.0, "default": "folder"}
    large = compiled(flow.catalogue, **body, width=None, height=None).prompt
    assert large["latent"]["inputs"]["width"] == 1024
    prompts = [compiled(flow.catalogue, **body, prompt=text).prompt for text in ("a red", "two")]
    first, second = flow.pictures(*prompts)
    assert first.shape == (64, 64, 3)
    assert farthest(first, second) > 20


def test_half_precision_is_bfloat16(root: Path) -> None:
    options = UnetOptions(precision="float16")
    store = store_of(root, unets=options)
    assert load_diffusion_model(store, NAME, "default").dtype is torch.bfloat16


FREE_U = node("FreeU", model=["1", 0], b1=1.1, b2=1.2, s1=0.9, s2=0.2)
DISCRETE = node("ModelSamplingDiscrete", model=["1", 0], sampling="eps", zsnr=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"2": flux_graph()["2"]}, "encoded for another model"),
        ({"20": DISCRETE}, "leave out the ModelSampling node"),
        ({"20": FREE_U}, "for UNets, but Z-Image has a transformer"),
        (
            {"20": node("RescaleCFG", model=["1", 0], multiplier=0.7)},
            "RescaleCFG is for models that predict noise",
        ),
    ],
)
def test_texts_and_patches_of_other_families_end_the_job_alone(
    changed: dict[str, Any], message: str, start: Submit
) -> None:
    model = ["20", 0] if "20" in changed else ["7", 0]
    assert message in str(start(z_image_graph(steps=1, model=model) | changed).error(EngineError))
    assert start(z_image_graph(steps=1)).images()


_LORA = "lora_unet_mid_block_attentions_0_transformer_blocks_0_attn1_to_q"
_KEYS = {
    "checkpoints": "model.diffusion_model.input_blocks.0.0.weight",
    "diffusion_models": "layers.0.attention.qkv.weight",
    "text_encoders": "model.layers.0.self_attn.q_norm.weight",
    "vae": "decoder.conv_in.weight",
    "loras": f"{_LORA}.lora_down.weight",
}
"""A tensor of a file of each kind."""


def _graph(kind: str, name: str) -> dict[str, Any]:
    """A graph that takes the file of that name."""
    if kind == "loras":
        lora = {"lora_name": name, "strength_model": 1.0}
        changed = node("LoraLoaderModelOnly", model=["4", 0], **lora)
        return text_to_image(steps=1, model=["l", 0]) | {"l": changed}
    graph = text_to_image(steps=1) if kind == "checkpoints" else z_image_graph(steps=1)
    at, member = {
        "checkpoints": ("4", "ckpt_name"),
        "diffusion_models": ("1", "unet_name"),
        "text_encoders": ("2", "clip_name"),
        "vae": ("3", "vae_name"),
    }[kind]
    graph[at]["inputs"][member] = name
    return graph


@pytest.fixture(scope="module")
def good(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damaged")
    shutil.copytree(tiny_root / "checkpoints", root / "checkpoints")
    write_z_image(root)
    (root / "loras").mkdir()
    matrices = {"lora_down": torch.ones(2, 64), "lora_up": torch.ones(64, 2)}
    state = {f"{_LORA}.{name}.weight": each for name, each in matrices.items()}
    save_file({**state, f"{_LORA}.alpha": torch.tensor(1.0)}, root / "loras/good.safetensors")
    return root


@pytest.fixture(scope="module")
def submit(good: Path) -> Iterator[Submit]:
    with running(good) as engine:
        yield engine.submit


def _good(root: Path, kind: str) -> Path:
    return root / kind / TINY if kind == "checkpoints" else next((root / kind).glob("[gt]*.safe*"))


def _damaged(root: Path, kind: str, name: str) -> Path:
    """A place for a damaged file, with what lies beside a good one."""
    path = root / kind / f"{name}.safetensors"
    beside = _good(root, kind).with_suffix(".config")
    if beside.is_dir():
        shutil.copytree(beside, path.with_suffix(".config"), dirs_exist_ok=True)
    return path


def _lying(content: bytes) -> bytes:
    """The file, whose header says that its first tensor is larger than it is."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    next(each for name, each in header.items() if name != "__metadata__")["shape"] = [3, 2**40]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "of other bytes": lambda content: b"\xff" * len(content),
    "cut in its header": lambda content: content[:60],
    "cut at its end": lambda content: content[:-10],
    "lying": _lying,
}
_TENSORS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "without a tensor": lambda _: None,
    "with a shorter tensor": lambda tensor: tensor[:-1].clone(),
    "with a number for a tensor": lambda _: torch.tensor(1.0),
    "with an empty tensor": lambda tensor: tensor[:0].clone(),
    "with whole numbers": lambda tensor: tensor.to(torch.int8),
}


def _told(submit: Submit, kind: str, name: str) -> str:
    """Return the message about the file of that name, which cannot be used."""
    try:
        said = str(submit(_graph(kind, f"{name}.safetensors")).error(EngineError))
    except GraphInvalid as refusal:  # The header shows what is wrong.
        said = str(refusal)
    assert f"{name}.safetensors" in said
    assert "cannot be used" not in said, "what is wrong is known, and can be said"
    assert len(said) < 600
    return said


@pytest.mark.parametrize("kind", _KEYS)
def test_a_file_that_is_damaged_is_said_to_be(kind: str, good: Path, submit: Submit) -> None:
    content = _good(good, kind).read_bytes()
    for name, damage in _BYTES.items():
        _damaged(good, kind, name).write_bytes(damage(content))
        _told(submit, kind, name)
    assert submit(_graph(kind, _good(good, kind).name)).images()


@pytest.mark.parametrize("kind", _KEYS)
def test_what_is_wrong_with_a_tensor_is_said(kind: str, good: Path, submit: Submit) -> None:
    state, key = load_file(_good(good, kind)), _KEYS[kind]
    for name, damage in _TENSORS.items():
        if kind == "loras" and name == "with whole numbers":
            continue  # they are what they say, in float32
        damaged = damage(state[key])
        changed = {each: tensor for each, tensor in state.items() if each != key}
        save_file(
            changed if damaged is None else changed | {key: damaged}, _damaged(good, kind, name)
        )
        said = _told(submit, kind, name)
        if damaged is None and kind in {"checkpoints", "diffusion_models"}:
            assert f"has no {key}" in said
    assert submit(_graph(kind, _good(good, kind).name)).images()
