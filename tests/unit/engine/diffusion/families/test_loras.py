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

from engine.diffusion.families.encoders import load_texts
from engine.diffusion.families.loading import load_diffusion_model
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.model import Model
from engine.engine import Engine
from engine.errors import CheckpointUnavailable
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Finished
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import Watched, node

Z_IMAGE, FLUX = "tiny-z-image.safetensors", "tiny-flux-dev.safetensors"
FOLDERS = {Z_IMAGE: "diffusion_models", FLUX: "unet"}
PLAIN = "diffusion_model."
RANK, ALPHA = 2, 4.0
Pairs = dict[str, tuple[Tensor, Tensor]]


@pytest.fixture(scope="module")
def root(
    z_image: dict[str, Any],
    flux: dict[str, Any],
    transformers_root: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The tiny models, and a folder for LoRAs and for networks with them."""
    root = tmp_path_factory.mktemp("transformer-loras")
    for folder in transformers_root.iterdir():
        (root / folder.name).mkdir()
        for file in folder.iterdir():
            (root / folder.name / file.name).symlink_to(file)
    (root / "loras").mkdir()
    return root


@pytest.fixture
def store(root: Path) -> ModelStore:
    return ModelStore(ModelsFolder(root, ttl_s=0), torch.device("cpu"), 2**30)


def state_of(root: Path, network: str) -> dict[str, Tensor]:
    return load_file(root / FOLDERS[network] / network)


def pairs_for(state: Mapping[str, Tensor], words: tuple[str, ...] = ("",), seed: int = 0) -> Pairs:
    """Matrices for the layers whose names have one of these words."""
    generator = torch.Generator().manual_seed(seed)
    return {
        key.removesuffix(".weight"): (
            torch.randn(RANK, weight.shape[1], generator=generator) * 0.2,
            torch.randn(len(weight), RANK, generator=generator) * 0.2,
        )
        for key, weight in state.items()
        if weight.ndim == 2 and key.endswith(".weight") and any(word in key for word in words)
    }


def product(pair: tuple[Tensor, Tensor]) -> Tensor:
    down, up = pair
    return ALPHA / RANK * up @ down


def with_alpha(pairs: Pairs, name: Callable[[str], str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for layer, (down, up) in pairs.items():
        key = name(layer)
        found |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up}
        found[f"{key}.alpha"] = torch.tensor(ALPHA)
    return found


def as_peft(pairs: Pairs, prefix: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for layer, (down, up) in pairs.items():
        found[f"{prefix}{layer}.lora_A.weight"] = down
        found[f"{prefix}{layer}.lora_B.weight"] = up * (ALPHA / RANK)
    return found


def flat(prefix: str) -> Callable[[str], str]:
    return lambda layer: prefix + layer.replace(".", "_")


def applied(store: ModelStore, tensors: Mapping[str, Tensor], model: Model) -> Networks:
    path = store.models.at_top("loras") / "own.safetensors"
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


def written(root: Path, network: str, state: Mapping[str, Tensor], name: str) -> str:
    save_file(
        {key: each.contiguous() for key, each in state.items()}, root / FOLDERS[network] / name
    )
    return name


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


def test_eight_bit_weights_beneath_a_lora_count_with_their_scales(
    root: Path, store: ModelStore
) -> None:
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
    path = store.models.at_top("loras") / "texts.safetensors"
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
    texts = load_texts(store, Family.FLUX, names)
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


def test_the_text_encoder_of_z_image_is_changed(store: ModelStore, root: Path) -> None:
    texts = load_texts(store, Family.Z_IMAGE, ["tiny-qwen3.safetensors"])
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
    with pytest.raises(CheckpointUnavailable, match="made for a model of another family"):
        applied(store, with_alpha(pairs, flat("lora_unet_")), model)


@pytest.fixture
def run(root: Path) -> Iterator[Callable[..., list[Watched]]]:
    """Runs graphs side by side, in an engine of its own."""
    engine = Engine(models=ModelsFolder(root, ttl_s=0))
    engine.start()

    def run(*graphs: dict[str, Any]) -> list[Watched]:
        catalogue = Catalogue(ModelsFolder(root, ttl_s=0))
        found = []
        for graph in graphs:
            watched = Watched()
            watched.run = engine.submit(validate(graph, catalogue, Limits()), on_event=watched.take)
            found.append(watched)
        return found

    yield run
    engine.stop()


def with_loader(graph: dict[str, Any], name: str | None) -> dict[str, Any]:
    if name is None:
        return graph
    loader = node("LoraLoaderModelOnly", model=["1", 0], lora_name=name, strength_model=0.5)
    sampling = graph["7"]
    changed = {**sampling, "inputs": {**sampling["inputs"], "model": ["20", 0]}}
    return {**graph, "20": loader, "7": changed}


def on_network(graph: dict[str, Any], name: str) -> dict[str, Any]:
    return {**graph, "1": node("UNETLoader", unet_name=name, weight_dtype="default")}


@pytest.mark.parametrize("network", [FLUX, Z_IMAGE])
def test_jobs_with_different_loras_and_none_share_calls_and_are_as_with_merged_weights(
    network: str, root: Path, run: Callable[..., list[Watched]]
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
        (alone,) = run(on_network(each, networks[at]))
        assert np.abs(shared[at] - alone.images()[0].pixels).max() <= 1
    assert len({each.tobytes() for each in shared}) == len(shared)


def test_a_prompt_of_the_diffusion_flavour_names_a_lora(
    root: Path, store: ModelStore, run: Callable[..., list[Watched]]
) -> None:
    pairs = pairs_for(state_of(root, Z_IMAGE))
    save_file(with_alpha(pairs, flat("lora_unet_")), root / "loras" / "mine.safetensors")
    catalogue = Catalogue(ModelsFolder(root))
    graphs = []
    for prompt in ("a cat", "a cat<lora:mine:0.5>"):
        asked = parse_parameters(
            {"prompt": prompt, "seed": 5, "steps": 1, "cfg_scale": 1, "width": 64, "height": 64}
        )
        found = compile_parameters(asked, catalogue, Limits(), default_checkpoint="folder")
        graphs.append(found.prompt)
    loaders = [each for each in graphs[1].values() if each["class_type"] == "LoraLoader"]
    assert [each["inputs"]["lora_name"] for each in loaders] == ["mine.safetensors"]
    first, second = (each.images()[0].pixels for each in run(*graphs))
    assert not np.array_equal(first, second)


def test_a_damaged_lora_fails_its_job_alone(root: Path, run: Callable[..., list[Watched]]) -> None:
    key = f"{PLAIN}layers.0.attention.to_q"
    save_file({f"{key}.lora_A.weight": torch.ones(2, 64)}, root / "loras" / "half.safetensors")
    broken, well = run(
        with_loader(z_image_graph(steps=1), "half.safetensors"), z_image_graph(steps=1)
    )
    end = broken.wait()
    assert "half.safetensors is damaged" in str(getattr(end, "error", end))
    assert isinstance(well.wait(), Finished)
