"""LoRAs for transformers and their texts: every spelling, by row beside others, and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.diffusion.loading.checkpoints import load_diffusion_model, load_texts
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.model import Model
from engine.errors import EngineError
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.reports import Finished
from tests.support.engine.diffusion_requests import compiled
from tests.support.engine.engines import running
from tests.support.engine.latents import farthest
from tests.support.engine.loras import (
    ALPHA,
    FLUX,
    PLAIN,
    RANK,
    Z_IMAGE,
    as_peft,
    flat,
    pairs_for,
    product,
    state_of,
    with_alpha,
    written,
)
from tests.support.engine.stores import store_of
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import Watched, held, node, with_input
from training.tiny_transformers import write_flux, write_z_image


@pytest.fixture
def store(root: Path) -> ModelStore:
    return store_of(root)


def applied(store: ModelStore, tensors: Mapping[str, Tensor], model: Model) -> Networks:
    path = store.models.top_level_path("loras") / "own.safetensors"
    save_file({key: each.clone().contiguous() for key, each in tensors.items()}, path)
    networks = Networks(model.unet, model.family)
    return with_lora(store, path.name, networks, unet_strength=0.5, text_strength=0.0)


def weights_of(networks: Networks) -> dict[str, Tensor]:
    """The weights, with what is added to them by row."""
    found = dict(networks.unet.state_dict())
    for each in networks.adapters:
        for layer, updates in each.adapter.layers.items():
            for update in updates:
                key = f"{layer}.weight"
                found[key] = found[key] + each.strength * update.dense()
    return found


@pytest.mark.parametrize("network", [FLUX, Z_IMAGE])
def test_layers_are_those_of_the_networks_own_file_in_each_spelling(
    network: str, root: Path, store: ModelStore
) -> None:
    state = state_of(root, network)
    pairs = pairs_for(state)
    for layer, pair in pairs.items():
        state[f"{layer}.weight"] += 0.5 * product(pair)
    wanted = load_diffusion_model(store, written(root, network, state, f"own-{network}"), "default")
    model = load_diffusion_model(store, network, "default")
    for tensors in (
        with_alpha(pairs, flat("lora_unet_")),
        with_alpha(pairs, lambda layer: f"{PLAIN}{layer}"),
        as_peft(pairs, PLAIN),
    ):
        found = applied(store, tensors, model)
        assert found.unet is model.unet
        weights = weights_of(found)
        for key, weight in wanted.unet.state_dict().items():
            torch.testing.assert_close(weights[key], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("network", [FLUX, Z_IMAGE])
def test_layers_are_those_of_diffusers_in_each_spelling(network: str, store: ModelStore) -> None:
    model = load_diffusion_model(store, network, "default")
    state = model.unet.state_dict()
    pairs = pairs_for(state)
    for tensors in (
        as_peft(pairs, "transformer."),
        as_peft(pairs, ""),
        as_peft(pairs, PLAIN),
        with_alpha(pairs, lambda layer: f"transformer.{layer}"),
        with_alpha(pairs, flat("lora_transformer_")),
        with_alpha(pairs, flat("lycoris_")),
        with_alpha(pairs, flat("lora_unet_")),
    ):
        weights = weights_of(applied(store, tensors, model))
        for layer, pair in pairs.items():
            wanted = state[f"{layer}.weight"] + 0.5 * product(pair)
            torch.testing.assert_close(weights[f"{layer}.weight"], wanted, rtol=0, atol=1e-5)


def test_eight_bit_weights_below_a_lora_have_their_scales(root: Path, store: ModelStore) -> None:
    state = state_of(root, Z_IMAGE)
    key = "layers.0.attention.qkv"
    scale = state[f"{key}.weight"].abs().max() / 448
    eight = (state[f"{key}.weight"] / scale).to(torch.float8_e4m3fn)
    state |= {f"{key}.weight": eight, f"{key}.scale_weight": scale}
    name = written(root, Z_IMAGE, state, "scaled.safetensors")
    model = load_diffusion_model(store, name, "default")
    pairs = pairs_for(model.unet.state_dict(), ("layers.0.attention.to_k",))
    factors = {"lokr_w1": torch.full((2, 2), 0.1), "lokr_w2": torch.ones(32, 32)}
    wanted = (eight.float() * scale).chunk(3)[1]
    for tensors, added in (
        (as_peft(pairs, PLAIN), product(pairs["layers.0.attention.to_k"])),
        (
            {f"{PLAIN}layers.0.attention.to_k.{each}": at for each, at in factors.items()},
            torch.kron(*factors.values()),
        ),
    ):
        weights = weights_of(applied(store, tensors, model))
        found = weights["layers.0.attention.to_k.weight"]
        torch.testing.assert_close(found, wanted + 0.5 * added, rtol=0, atol=1e-5)


def test_other_kinds_change_what_the_file_has_as_one_layer(root: Path, store: ModelStore) -> None:
    state = state_of(root, FLUX)
    qkv, last = "double_blocks.0.img_attn.qkv", "final_layer.adaLN_modulation.1"
    rows, columns = state[f"{qkv}.weight"].shape
    generator = torch.Generator().manual_seed(3)
    factors = {
        "lokr_w1": torch.randn(rows // 32, 2, generator=generator) * 0.1,
        "lokr_w2": torch.randn(32, columns // 2, generator=generator) * 0.1,
    }
    bias = torch.randn(rows, generator=generator) * 0.1
    whole = torch.randn(state[f"{last}.weight"].shape, generator=generator) * 0.1
    tensors = {f"{PLAIN}{qkv}.{name}": each for name, each in factors.items()}
    tensors |= {f"{PLAIN}{qkv}.diff_b": bias, f"{PLAIN}{last}.diff": whole}
    state[f"{qkv}.weight"] += 0.5 * torch.kron(*factors.values())
    state[f"{qkv}.bias"] += 0.5 * bias
    state[f"{last}.weight"] += 0.5 * whole
    wanted = load_diffusion_model(store, written(root, FLUX, state, "lokr.safetensors"), "default")
    model = load_diffusion_model(store, FLUX, "default")
    found = applied(store, tensors, model)
    assert found.adapters == ()
    assert applied(store, tensors, model) != found  # the file was written anew
    weights = found.unet.state_dict()
    for key, weight in wanted.unet.state_dict().items():
        torch.testing.assert_close(weights[key], weight, rtol=0, atol=1e-5)
    shared = "single_transformer_blocks.0.proj_out.weight"
    assert found.unet.get_parameter(shared) is model.unet.get_parameter(shared)


def test_small_loha_and_lokr_are_added_by_row_to_what_the_file_has_as_one_layer(
    root: Path, store: ModelStore
) -> None:
    qkv, joined = "double_blocks.0.img_attn.qkv", "single_blocks.0.linear1"
    state = state_of(root, FLUX)
    generator = torch.Generator().manual_seed(4)
    rows, columns = state[f"{qkv}.weight"].shape
    factors = {
        "lokr_w1": torch.randn(rows // 16, columns // 16, generator=generator) * 0.1,
        "lokr_w2": torch.randn(16, 16, generator=generator) * 0.1,
    }
    rows, columns = state[f"{joined}.weight"].shape
    halves = {
        f"hada_w{n}_{half}": torch.randn(shape, generator=generator) * 0.3
        for n in (1, 2)
        for half, shape in (("a", (rows, RANK)), ("b", (RANK, columns)))
    }
    tensors = {f"{PLAIN}{qkv}.{name}": each for name, each in factors.items()}
    tensors |= {f"{PLAIN}{joined}.{name}": each for name, each in halves.items()}
    tensors[f"{PLAIN}{joined}.alpha"] = torch.tensor(ALPHA)
    state[f"{qkv}.weight"] += 0.5 * torch.kron(*factors.values())
    a, b, c, d = halves.values()
    state[f"{joined}.weight"] += 0.5 * ALPHA / RANK * (a @ b) * (c @ d)
    wanted = load_diffusion_model(store, written(root, FLUX, state, "rows.safetensors"), "default")
    model = load_diffusion_model(store, FLUX, "default")
    found = applied(store, tensors, model)
    assert found.unet is model.unet
    weights = weights_of(found)
    for key, weight in wanted.unet.state_dict().items():
        torch.testing.assert_close(weights[key], weight, rtol=0, atol=1e-5)


def texts_changed(
    store: ModelStore, network: str, texts: Any, tensors: Mapping[str, Tensor]
) -> Any:
    model = load_diffusion_model(store, network, "default")
    path = store.models.top_level_path("loras") / "texts.safetensors"
    save_file(dict(tensors), path)
    networks = Networks(model.unet, model.family, texts.networks)
    found = with_lora(store, path.name, networks, unet_strength=0.0, text_strength=0.5)
    return texts.with_networks(found.text_encoders)


@pytest.mark.parametrize(
    ("prefix", "at", "layer", "own"),
    [
        ("lora_te1_", 0, "text_model.encoder.layers.0.self_attn.q_proj", ""),
        ("text_encoder.", 0, "text_model.encoder.layers.0.mlp.fc1", ""),
        ("text_encoders.clip_l.transformer.", 0, "text_model.encoder.layers.1.mlp.fc2", ""),
        ("lora_te2_", 1, "encoder.block.0.layer.0.SelfAttention.q", "model.block"),
        ("lora_te3_", 1, "encoder.block.1.layer.1.DenseReluDense.wo", "model.block"),
        ("text_encoder_2.", 1, "encoder.block.0.layer.0.SelfAttention.o", "model.block"),
        (
            "text_encoders.t5xxl.transformer.",
            1,
            "encoder.block.0.layer.0.SelfAttention.k",
            "model.block",
        ),
    ],
)
def test_both_text_encoders_of_flux_are_changed(
    prefix: str, at: int, layer: str, own: str, store: ModelStore, root: Path
) -> None:
    names = ["tiny-clip-l.safetensors", "tiny-t5xxl.safetensors"]
    texts = load_texts(store, names)
    name = layer.replace("encoder.block", own) if own else layer
    weight = texts.networks[at].get_parameter(f"{name}.weight")
    down, up = torch.ones(1, weight.shape[1]), torch.ones(len(weight), 1)
    key = prefix + (layer.replace(".", "_") if prefix.endswith("_") else layer)
    tensors = {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
    changed = texts_changed(store, FLUX, texts, tensors)
    wanted = weight + 0.5
    found = changed.networks[at].get_parameter(f"{name}.weight")
    torch.testing.assert_close(found, wanted.half().float() if at == 0 else wanted)
    assert changed.networks[1 - at] is texts.networks[1 - at]
    assert changed.networks[at].serial != texts.networks[at].serial


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("family", "file", "prefix", "layer"),
    [
        (
            Family.FLUX,
            "clip/tiny-t5xxl.safetensors",
            "text_encoder_2.",
            "encoder.block.0.layer.0.SelfAttention.o",
        ),
        (
            Family.Z_IMAGE,
            "text_encoders/tiny-qwen3.safetensors",
            "text_encoder.",
            "model.layers.0.mlp.up_proj",
        ),
    ],
)
def test_merged_weights_of_a_language_model_are_rounded_to_the_type_of_its_file(
    family: Family, file: str, prefix: str, layer: str, stored: torch.dtype, tmp_path: Path
) -> None:
    (write_flux if family is Family.FLUX else write_z_image)(tmp_path)
    (tmp_path / "loras").mkdir()
    path = tmp_path / file
    state = {name: each.to(stored) for name, each in load_file(path).items()}
    save_file(state, path)
    store = store_of(tmp_path)
    others = ["tiny-clip-l.safetensors"] if family is Family.FLUX else []
    texts = load_texts(store, [*others, path.name])
    weight = state[f"{layer}.weight"].float()
    tensors = {
        f"{prefix}{layer}.lora_A.weight": torch.full((1, weight.shape[1]), 0.125),
        f"{prefix}{layer}.lora_B.weight": torch.ones(len(weight), 1),
    }
    network = FLUX if family is Family.FLUX else Z_IMAGE
    encoder = texts_changed(store, network, texts, tensors).networks[-1]
    changed = {encoder.layer_key(name): each for name, each in encoder.named_parameters()}
    wanted = (weight + 0.5 * 0.125).to(stored).float()
    torch.testing.assert_close(changed[f"{layer}.weight"], wanted, rtol=0, atol=0)


def test_the_text_encoder_of_z_image_is_changed(store: ModelStore, root: Path) -> None:
    texts = load_texts(store, ["tiny-qwen3.safetensors"])
    (encoder,) = texts.networks
    name = "model.layers.0.mlp.up_proj"
    weight = encoder.get_parameter(f"{name}.weight")
    for prefix in ("text_encoders.qwen3_4b.transformer.", "text_encoder."):
        key = f"{prefix}{name}"
        tensors = {
            f"{key}.lora_A.weight": torch.ones(1, weight.shape[1]),
            f"{key}.lora_B.weight": torch.ones(len(weight), 1),
        }
        (changed,) = texts_changed(store, Z_IMAGE, texts, tensors).networks
        torch.testing.assert_close(changed.get_parameter(f"{name}.weight"), weight + 0.5)


def test_a_lora_of_another_family_says_so(store: ModelStore, root: Path) -> None:
    model = load_diffusion_model(store, Z_IMAGE, "default")
    pairs = pairs_for(state_of(root, FLUX), ("double_blocks", "single_blocks"))
    with pytest.raises(EngineError, match="made for a model of another family"):
        applied(store, with_alpha(pairs, flat("lora_unet_")), model)


Run = Callable[..., list[Watched]]


@pytest.fixture
def run(root: Path) -> Iterator[Run]:
    """Runs graphs side by side, in an engine of its own."""
    with running(root) as engine:

        def run(*graphs: dict[str, Any]) -> list[Watched]:
            with held(engine.engine, engine.models):
                return [engine.submit(graph) for graph in graphs]

        yield run


def with_loader(graph: dict[str, Any], name: str | None) -> dict[str, Any]:
    if name is None:
        return graph
    loader = node("LoraLoaderModelOnly", model=["1", 0], lora_name=name, strength_model=0.5)
    return with_input(graph, "7", model=["20", 0]) | {"20": loader}


@pytest.mark.parametrize("network", [FLUX, Z_IMAGE])
def test_jobs_with_different_loras_and_none_share_calls_and_are_as_with_merged_weights(
    network: str, root: Path, run: Run
) -> None:
    state = state_of(root, network)
    graph = flux_graph if network == FLUX else z_image_graph
    names: list[str | None] = [None]
    networks = [network]
    for seed, words in ((1, ("attn", "attention")), (2, ("",))):
        pairs = pairs_for(state, words, seed=seed)
        changed = {**state}
        for layer, pair in pairs.items():
            changed[f"{layer}.weight"] = state[f"{layer}.weight"] + 0.5 * product(pair)
        save_file(with_alpha(pairs, flat("lora_unet_")), root / "loras" / f"{seed}.safetensors")
        names.append(f"{seed}.safetensors")
        networks.append(written(root, network, changed, f"merged-{seed}-{network}"))
    texts = ["a cat", "a red square beside two green circles on a long blue line " * 2, "x"]
    graphs = [graph(text, seed=at, steps=2) for at, text in enumerate(texts * 2)]
    loaded = [with_loader(each, names[at % 3]) for at, each in enumerate(graphs)]
    together = run(*loaded)
    shared = [each.images()[0].pixels.astype(int) for each in together]
    rows = [end.rows_per_call for each in together if isinstance(end := each.events[-1], Finished)]
    assert sum(rows) / len(rows) >= (4 if network == FLUX else 8)
    for at, each in enumerate(graphs[:3]):
        (alone,) = run(with_input(each, "1", unet_name=networks[at]))
        assert farthest(shared[at], alone.images()[0].pixels) <= 1
    assert len({each.tobytes() for each in shared}) == len(shared)


def test_a_prompt_of_the_diffusion_flavour_names_a_lora(root: Path, run: Run) -> None:
    pairs = pairs_for(state_of(root, Z_IMAGE))
    save_file(with_alpha(pairs, flat("lora_unet_")), root / "loras" / "mine.safetensors")
    catalogue = Catalogue(ModelsFolder(root))
    asked: dict[str, Any] = {"steps": 1, "cfg_scale": 1, "default": "folder"}
    texts = ("a cat", "a cat<lora:mine:0.5>")
    graphs = [compiled(catalogue, **asked, prompt=text).prompt for text in texts]
    loaders = [each for each in graphs[1].values() if each["class_type"] == "LoraLoader"]
    assert [each["inputs"]["lora_name"] for each in loaders] == ["mine.safetensors"]
    first, second = (each.images()[0].pixels for each in run(*graphs))
    assert not np.array_equal(first, second)


def test_a_damaged_lora_fails_its_job_alone(root: Path, run: Run) -> None:
    key = f"{PLAIN}layers.0.attention.to_q"
    save_file({f"{key}.lora_A.weight": torch.ones(2, 64)}, root / "loras" / "half.safetensors")
    broken, well = run(
        with_loader(z_image_graph(steps=1), "half.safetensors"), z_image_graph(steps=1)
    )
    assert "half.safetensors is damaged" in str(broken.error(EngineError))
    assert well.images()
