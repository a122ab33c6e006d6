"""ControlNets of Z-Image: their files, residuals and shared calls, and graphs that misuse them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.control_file import read_model_patch
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.z_image_control import ZImageControl, z_image_control
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoints import load_diffusion_model, load_vae
from engine.diffusion.model import Model
from engine.errors import EngineError, GraphInvalid, InputsInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import MODEL_PATCHES, ModelsFolder
from engine.graph.validation import validate
from tests.support.engine.control_nets import picture, tiny_z_image_control_net
from tests.support.engine.engines import Running, running
from tests.support.engine.stores import CPU, store_of
from tests.support.engine.transformer_graphs import (
    flux_graph,
    latent_of,
    saving_latent,
    z_image_graph,
)
from tests.support.engine.workflows import TINY, Prompt, node, text_to_image
from training.make_tiny import write_checkpoint
from training.tiny_transformers import write_flux, write_z_image

VERSIONS = ("1", "2.0", "2.1")
OTHERS = {
    "qwen": ("controlnet_blocks.0.y_rms.weight", "Qwen-Image"),
    "uso": ("feature_embedder.mid_layer_norm.bias", "USO"),
    "unknown": ("weight", "not a ControlNet of Z-Image"),
}
X = torch.randn((1, 16, 8, 16), generator=torch.Generator().manual_seed(3))
"""Latents whose patches fill the sequence without padding."""
HINT = picture(1, 64, 128)
pytestmark = pytest.mark.usefixtures("inference")
Loaded = tuple[Model, Vae, dict[str, Any]]


@pytest.fixture(scope="module")
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    return {version: tiny_z_image_control_net(7, version) for version in VERSIONS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, networks: dict[str, Any]) -> Path:
    """The tiny Z-Image with 6 layers, its ControlNets, other patches and other models."""
    root = tmp_path_factory.mktemp("z-image-control")
    write_z_image(root, layers=6)
    write_flux(root)
    write_checkpoint(root / "checkpoints" / TINY)
    (root / MODEL_PATCHES).mkdir()
    for version, network in networks.items():
        save_file(network.state_dict(), root / MODEL_PATCHES / f"{version}.safetensors")
    for name, (key, _) in OTHERS.items():
        save_file({key: torch.zeros(1)}, root / MODEL_PATCHES / f"{name}.safetensors")
    state = networks["1"].state_dict() | {"control_all_x_embedder.2-1.weight": torch.zeros(64, 80)}
    save_file(state, root / MODEL_PATCHES / "channels.safetensors")
    return root


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Loaded:
    store = store_of(folder)
    nets = {
        version: read_model_patch(folder / MODEL_PATCHES / f"{version}.safetensors", CPU)
        for version in VERSIONS
    }
    model = load_diffusion_model(store, "tiny-z-image.safetensors", "default")
    return model, load_vae(store, "tiny-ae.safetensors"), nets


def control(
    loaded: Loaded,
    version: str,
    strength: float = 0.6,
    x: Tensor = X,
    *,
    image: Tensor | None = HINT,
    inpaint_image: Tensor | None = None,
    mask: Tensor | None = None,
) -> ZImageControl:
    """A control whose hint is encoded for `x`."""
    _, vae, nets = loaded
    found = z_image_control(
        nets[version],
        vae,
        strength,
        image=image,
        inpaint_image=inpaint_image,
        mask=mask,
        on_tiled=lambda: None,
    )
    work, answer = found.encode_hint(x), None
    while True:
        try:
            request = work.send(answer)
        except StopIteration:
            return found
        (answer,) = type(request).run_batch([request])


def text(seed: int, tokens: int = 32) -> Condition:
    return Condition(torch.randn(1, tokens, 32, generator=torch.Generator().manual_seed(seed)))


def asked(
    model: Model, *controls: ZImageControl, seed: int = 1, sigma: float = 0.7, x: Tensor = X
) -> Denoise:
    model = replace(model, controls=controls)
    sized = [
        model.with_size_conditioning((text(each),), x, negative=False, seed=0) for each in (seed, 9)
    ]
    cond, uncond = fitted_conditionings(*sized, x, model.levels)
    return Denoise(model, x, torch.tensor(sigma), cond, uncond, 1.0)


def latents(vae: Vae, image: Tensor) -> Tensor:
    encoded: Tensor = vae.autoencoder.encode(image.movedim(-1, 1) * 2 - 1).latent_dist.mode()
    return (encoded - 0.1159) * 0.3611


def by_hand(unet: Any, net: Any, hint: Tensor, version: str, strength: float) -> Tensor:
    """The output of the transformer for `X` at sigma 0.7 and the first text."""

    def patches(planes: Tensor) -> Tensor:
        cells = planes.view(1, -1, 4, 2, 8, 2).permute(0, 2, 4, 3, 5, 1)
        return cells.reshape(1, 32, -1)

    def rope(*ids: tuple[int, int, int]) -> Tensor:
        found: Tensor = unet.rope_embedder(torch.tensor(ids))[None]
        return found

    time = unet.t_embedder(torch.tensor([300.0]))
    places = rope(*((33, y, x) for y in range(4) for x in range(8)))
    text_places = rope(*((1 + at, 0, 0) for at in range(32)))
    tokens = unet.all_x_embedder["2-1"](patches(X))
    state = net.control_all_x_embedder["2-1"](patches(hint))
    (refiner,) = unet.noise_refiner
    start, tokens = tokens, refiner(tokens, None, places, time)
    if version == "1":
        (block,) = net.control_noise_refiner
        state = block(state, None, places, time)
    else:
        for block in net.control_layers if version == "2.0" else net.control_noise_refiner:
            state = block(state, start, None, places, time)
        tokens = tokens + strength * state[0]
        state = state[-1]
    (context,) = unet.context_refiner
    words = context(unet.cap_embedder(text(1).tokens), None, text_places)
    for block in net.control_layers:
        state = block(state, tokens, None, places, time)
    joined, all_places = torch.cat([tokens, words], 1), torch.cat([places, text_places], 1)
    for at, layer in enumerate(unet.layers):
        joined = layer(joined, None, all_places, time)
        if at in (residuals := dict(zip(net.control_layers_places, state, strict=False))):
            joined = joined + strength * functional.pad(residuals[at], (0, 0, 0, 32))
    out = unet.all_final_layer["2-1"](joined, c=time)[:, :32]
    whole: Tensor = out.view(1, 4, 8, 2, 2, 16).permute(0, 5, 1, 3, 2, 4)
    return whole.reshape(X.shape)


@pytest.mark.parametrize("version", VERSIONS)
def test_residuals_are_added_to_the_layers(
    version: str, loaded: Loaded, networks: dict[str, Any]
) -> None:
    model, vae, _ = loaded
    hint = latents(vae, HINT)
    if version != "1":
        grey = latents(vae, torch.full_like(HINT, 0.5))
        hint = torch.cat([hint, torch.zeros_like(hint[:, :1]), grey], dim=1)
    output = by_hand(model.unet, networks[version], hint, version, 0.6)
    (x0,) = Denoise.run_batch([asked(model, control(loaded, version))])
    assert torch.allclose(x0, X + 0.7 * output, atol=1e-4)
    (plain,) = Denoise.run_batch([asked(model)])
    assert (x0 - plain).abs().max() > 0.1


def test_the_painted_part_is_hidden_from_the_network(loaded: Loaded) -> None:
    mask = torch.zeros(1, 32, 64)
    mask[..., 32:] = 1
    inpaint = picture(2, 64, 128)
    found = control(loaded, "2.1", image=None, inpaint_image=inpaint, mask=mask)
    hint = found.latent_hint_for(X)
    shown = torch.cat([inpaint[:, :, :64], torch.full((1, 64, 64, 3), 0.5)], dim=2)
    grey = torch.full_like(inpaint, 0.5)
    assert torch.allclose(hint[:, :16], latents(loaded[1], grey), atol=1e-5)
    assert hint[0, 16].tolist() == [[1.0] * 8 + [0.0] * 8] * 8
    assert torch.allclose(hint[:, 17:], latents(loaded[1], shown), atol=1e-5)
    ignoring = control(loaded, "1", inpaint_image=inpaint, mask=mask)
    assert torch.equal(ignoring.latent_hint_for(X), control(loaded, "1").latent_hint_for(X))


def test_hints_fit_latents_with_odd_sides_and_are_used_in_turn(loaded: Loaded) -> None:
    x = torch.randn((3, 16, 5, 7), generator=torch.Generator().manual_seed(4))
    hints = torch.cat([picture(1, 50, 30), picture(2, 50, 30)])
    found = control(loaded, "2.1", x=x, image=hints).latent_hint_for(x)
    assert found.shape == (3, 33, 6, 8)
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_jobs_with_and_without_control_nets_share_calls(loaded: Loaded) -> None:
    model, _, nets = loaded
    used = [control(loaded, version, image=picture(at)) for at, version in enumerate(VERSIONS)]
    requests = [
        asked(model),
        asked(model, used[0], seed=2, sigma=0.9),
        asked(model, used[1], seed=3, sigma=0.5),
        asked(model, used[1], used[2], seed=4, sigma=0.2),
        asked(model, control(loaded, "2.1", -0.5), seed=5),
    ]
    assert len({request.key for request in requests}) == 1
    calls = Counter[str]()
    watched = {"base": model.unet} | {
        version: net.control_all_x_embedder["2-1"] for version, net in nets.items()
    }
    hooks = [
        each.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
        for name, each in watched.items()
    ]
    together = Denoise.run_batch(requests)
    for hook in hooks:
        hook.remove()
    assert calls == {"base": 1, "1": 1, "2.0": 1, "2.1": 1}
    for request, found in zip(requests, together, strict=True):
        (alone,) = Denoise.run_batch([request])
        assert torch.allclose(found, alone, atol=1e-4)


def graph(version: str, *, strength: float = 1.0, **links: Any) -> Prompt:
    prompt: Prompt = z_image_graph(steps=1)
    prompt["8"]["inputs"]["model"] = ["22", 0]
    inputs = {"model": ["7", 0], "model_patch": ["20", 0], "vae": ["3", 0], "image": ["21", 0]}
    own = {name: each for name, each in (inputs | links).items() if each is not None}
    return {
        **prompt,
        "20": node("ModelPatchLoader", name=f"{version}.safetensors"),
        "21": node("EmptyImage", width=48, height=80, batch_size=1, color=0xFF8000),
        "22": node("ZImageFunControlnet", **own, strength=strength),
        "23": node("SolidMask", width=32, height=32, value=0.0),
    }


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running(folder) as found:
        yield found


def test_graphs_run_with_each_version(service: Running) -> None:
    def latent(prompt: Prompt) -> Tensor:
        return latent_of(service.submit(saving_latent(prompt, keeps=("3",))))

    painted = graph("2.1", image=None, inpaint_image=["21", 0], mask=["23", 0])
    prompts = [graph("1", strength=0.0), *map(graph, VERSIONS), painted]
    found = [latent(prompt) for prompt in prompts]
    assert all((a - b).abs().max() > 0.001 for a, b in pairwise(found))
    other = graph("1")
    other["22"]["class_type"] = "QwenImageDiffsynthControlnet"
    assert torch.equal(latent(other), found[1])


def test_a_run_whose_hint_was_encoded_in_tiles_says_it_at_its_end(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, sides = AutoencoderKL.encode, (320, 512)

    def encode_within_memory(vae: AutoencoderKL, x: Tensor, **options: Any) -> Any:
        if x.shape[2:] == sides:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return encode(vae, x, **options)

    monkeypatch.setattr(AutoencoderKL, "encode", encode_within_memory)
    prompt = graph("1")
    prompt["6"]["inputs"] |= {"height": sides[0], "width": sides[1]}
    watched = service.submit(saving_latent(prompt, keeps=("3",)))
    latent_of(watched)
    assert getattr(watched.events[-1], "notes", None) == ("vae_tiled",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *((name, message) for name, (_, message) in OTHERS.items()),
        ("channels", "20 input channels"),
    ],
)
def test_other_files_are_refused_before_the_run(name: str, message: str, folder: Path) -> None:
    with pytest.raises(GraphInvalid) as caught:
        validate(graph(name), Catalogue(ModelsFolder(folder)), Limits())
    (error,) = caught.value.node_errors["20"]["errors"]
    assert message in error["details"]


@pytest.mark.parametrize(
    ("version", "links"), [("2.1", {}), ("1", {"inpaint_image": ["21", 0], "mask": ["23", 0]})]
)
def test_a_network_without_its_picture_is_refused_before_the_run(
    version: str, links: Prompt, folder: Path, loaded: Loaded
) -> None:
    prompt, catalogue = graph(version, image=None, **links), Catalogue(ModelsFolder(folder))
    with pytest.raises(GraphInvalid) as caught:
        validate(prompt, catalogue, Limits())
    (error,) = caught.value.node_errors["22"]["errors"]
    assert error["details"] == "image: the ControlNet needs an image: link one to the node"
    painted = graph("2.1", image=None, inpaint_image=["21", 0])
    assert validate(painted, catalogue, Limits())
    with pytest.raises(EngineError, match="needs an image"):
        control(loaded, "1", image=None, inpaint_image=HINT)


def test_a_misused_network_is_an_error_of_its_node(service: Running) -> None:
    def error(prompt: Prompt) -> tuple[str | None, str]:
        found = service.submit(prompt).error(InputsInvalid)
        return found.node_id, str(found)

    checkpoint = {"40": node("CheckpointLoaderSimple", ckpt_name=TINY)}
    node_id, message = error({**graph("1", vae=["40", 2]), **checkpoint})
    assert (node_id, "4 channels" in message) == ("22", True)
    parts = {key: each for key, each in graph("1").items() if key in {"20", "21", "22", "23"}}
    flux = {**flux_graph(steps=1), **parts}
    flux["8"]["inputs"]["model"] = ["22", 0]
    node_id, message = error(flux)
    assert (node_id, "another model than Flux.1" in message) == ("8", True)
    sd = {**text_to_image(), **parts, "30": node("VAELoader", vae_name="tiny-ae.safetensors")}
    sd["22"]["inputs"] |= {"model": ["4", 0], "vae": ["30", 0]}
    sd["3"]["inputs"]["model"] = ["22", 0]
    node_id, message = error(sd)
    assert (node_id, "UNet" in message) == ("3", True)


def test_a_network_of_another_width_is_refused(loaded: Loaded) -> None:
    model, _, _ = loaded
    found = control(loaded, "1")
    found.network.register_to_config(dim=128)
    try:
        with pytest.raises(EngineError, match="another model than Z-Image"):
            asked(model, found)
    finally:
        found.network.register_to_config(dim=64)
