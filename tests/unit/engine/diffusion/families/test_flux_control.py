"""ControlNets of Flux.1: their files, residuals and shared calls, and graphs that misuse them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition, controlled
from engine.diffusion.conditioning.control_file import read_control_net
from engine.diffusion.conditioning.control_net import Control, ControlNet
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.flux import Flux
from engine.diffusion.families.flux_control import _by_block, flux_residuals
from engine.diffusion.families.model_family import Call, CallRows
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoints import load_diffusion_model, load_vae
from engine.diffusion.model import Model
from engine.errors import CheckpointUnavailable, EngineError, GraphInvalid, InputsInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import CONTROL_NETS, ModelsFolder
from engine.graph.validation import validate
from tests.support.engine.control_nets import (
    picture,
    tiny_control_net,
    tiny_flux_control_net,
    write_in_ldm_keys,
    write_in_xlabs_keys,
)
from tests.support.engine.engines import Running, running
from tests.support.engine.stores import CPU, store_of
from tests.support.engine.transformer_graphs import flux_graph, latent_of, saving_latent
from tests.support.engine.workflows import TINY, Prompt, node, text_to_image
from training.make_tiny import write_checkpoint
from training.tiny_transformers import write_flux

FILES: dict[str, dict[str, Any]] = {
    "union": {"num_layers": 2, "num_single_layers": 2, "num_mode": 4},
    "plain": {"num_layers": 1, "num_single_layers": 0, "guidance_embeds": True},
    "xlabs": {
        "num_layers": 2,
        "num_single_layers": 0,
        "guidance_embeds": True,
        "conditioning_embedding_channels": 16,
        "patch_size": 2,
    },
}
pytestmark = pytest.mark.usefixtures("inference")


@pytest.fixture(scope="module")
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def networks() -> dict[str, Any]:
    return {name: tiny_flux_control_net(7, **sizes) for name, sizes in FILES.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, networks: dict[str, Any]) -> Path:
    """The tiny Flux, its ControlNets, and a ControlNet and a checkpoint of Stable Diffusion."""
    root = tmp_path_factory.mktemp("flux-control")
    write_flux(root)
    write_checkpoint(root / "checkpoints" / TINY)
    (root / CONTROL_NETS).mkdir()
    for name, network in networks.items():
        path = root / CONTROL_NETS / f"{name}.safetensors"
        if name == "xlabs":
            write_in_xlabs_keys(network, path)
        else:
            save_file(network.state_dict(), path)
    write_in_ldm_keys(tiny_control_net(1), root / CONTROL_NETS / "sd.safetensors")
    return root


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Model, Vae, dict[str, ControlNet]]:
    store = store_of(folder)
    nets = {
        name: ControlNet(read_control_net(folder / CONTROL_NETS / f"{name}.safetensors", CPU))
        for name in FILES
    }
    model = load_diffusion_model(store, "tiny-flux-dev.safetensors", "default")
    return model, load_vae(store, "tiny-flux-ae.safetensors"), nets


@pytest.mark.parametrize("name", FILES)
def test_files_of_both_layouts_are_read(name: str, networks: dict[str, Any], folder: Path) -> None:
    found = read_control_net(folder / CONTROL_NETS / f"{name}.safetensors", CPU)
    wanted = networks[name].state_dict()
    assert wanted.keys() == found.state_dict().keys()
    assert all(torch.equal(each, wanted[key]) for key, each in found.state_dict().items())
    assert {key: found.config[key] for key in FILES[name]} == FILES[name]


def test_what_is_wrong_with_a_file_is_said(folder: Path, tmp_path: Path) -> None:
    state = load_file(folder / CONTROL_NETS / "plain.safetensors")
    path = tmp_path / "x.safetensors"
    save_file({key: each for key, each in state.items() if "blocks.0.bias" not in key}, path)
    with pytest.raises(CheckpointUnavailable, match=r"has no controlnet_blocks\.0\.bias"):
        read_control_net(path, CPU)
    save_file(state | {"controlnet_x_embedder.weight": torch.zeros(64, 68)}, path)
    with pytest.raises(CheckpointUnavailable, match="mask"):
        read_control_net(path, CPU)


def test_residuals_are_spread_over_the_blocks_of_the_published_models() -> None:
    parts = [torch.tensor(float(at)) for at in range(5)]
    spread = _by_block(parts, 19, 19, is_cyclic=False)
    assert [int(each) for each in spread] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 3
    cyclic = _by_block(parts[:2], 19, 19, is_cyclic=True)
    assert [int(each) for each in cyclic] == [0, 1] * 9 + [0]


def text(seed: int, tokens: int = 256) -> Condition:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(1, tokens * 48 + 64, generator=generator)
    return Condition(draw[:, 64:].view(1, tokens, 48), draw[:, :64], guidance=2.0)


X = torch.randn((1, 16, 6, 8), generator=torch.Generator().manual_seed(3))


def encoded(control: Control) -> Control:
    """The control, whose hint is encoded for `X`."""
    work, answer = control.encode_hint(X), None
    while True:
        try:
            request = work.send(answer)
        except StopIteration:
            return control
        (answer,) = type(request).run_batch([request])


def test_residuals_are_those_of_diffusers(loaded: tuple[Model, Vae, dict[str, ControlNet]]) -> None:
    model, vae, nets = loaded
    hint = picture(1, 48, 64)
    control = encoded(nets["union"].with_type(3).control(hint, 0.5, vae=vae))
    condition = text(1)
    latents = vae.autoencoder.encode(hint.movedim(-1, 1) * 2 - 1).latent_dist.mode()

    def packed(planes: Tensor) -> Tensor:
        cells = planes.view(1, 16, 3, 2, 4, 2).permute(0, 2, 4, 1, 3, 5)
        return cells.reshape(1, 12, 64)

    inputs: dict[str, Any] = {
        "hidden_states": packed(X),
        "encoder_hidden_states": condition.tokens,
        "pooled_projections": condition.pooled,
        "timestep": torch.tensor([0.7]),
        "img_ids": torch.tensor([[0.0, y, x] for y in range(3) for x in range(4)]),
        "txt_ids": torch.zeros(256, 3),
        "return_dict": False,
    }
    doubles, singles = nets["union"].network(
        **inputs,
        controlnet_cond=packed((latents - 0.1159) * 0.3611),
        controlnet_mode=torch.tensor([[3]]),
        conditioning_scale=0.5,
    )
    velocity = model.unet(
        **inputs,
        guidance=torch.tensor([2.0]),
        controlnet_block_samples=doubles[:1],
        controlnet_single_block_samples=singles[:1],
    )[0]
    cond, uncond = fitted_conditionings(
        controlled((condition,), control), (text(2),), X, model.levels
    )
    (x0,) = Denoise.run_batch([Denoise(model, X, torch.tensor(0.7), cond, uncond, 1.0)])
    assert torch.allclose(packed(x0), packed(X) - 0.7 * velocity, atol=1e-4)


def test_jobs_with_and_without_control_nets_share_calls(
    loaded: tuple[Model, Vae, dict[str, ControlNet]],
) -> None:
    model, vae, nets = loaded

    def control(name: str, seed: int, number: int | None = None) -> Control:
        return encoded(nets[name].with_type(number).control(picture(seed), 0.6, vae=vae))

    conditionings = [
        (text(1),),
        controlled((text(2),), control("union", 1, 2)),
        controlled((text(3),), control("union", 2, 2)),
        controlled((text(4, 300),), control("union", 3)),
        controlled(controlled((text(5),), control("plain", 4)), control("xlabs", 5)),
    ]
    asked = []
    for each, sigma in zip(conditionings, (1.0, 0.9, 0.5, 0.4, 0.2), strict=True):
        both = fitted_conditionings(each, (text(9),), X, model.levels)
        asked.append(Denoise(model, X, torch.tensor(sigma), *both, 3.0))
    calls = Counter[str]()
    watched = {"base": model.unet, **{name: each.network for name, each in nets.items()}}
    with ExitStack() as hooks:
        for name, network in watched.items():
            hook = network.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
            hooks.callback(hook.remove)
        together = Denoise.run_batch(asked)
    # The union gets a type in two rows, and in a third row no type and a longer text.
    assert calls == {"base": 1, "union": 2, "plain": 1, "xlabs": 1}
    assert len({request.key for request in asked}) == 1
    plain = Denoise.run_batch(
        [replace(each, cond=asked[0].cond, uncond=asked[0].uncond) for each in asked[:1]]
    )
    assert torch.allclose(together[0], plain[0], atol=1e-4)
    for request, found in zip(asked, together, strict=True):
        (alone,) = Denoise.run_batch([request])
        assert torch.allclose(found, alone, atol=1e-4)


def graph(
    name: str, number: str | None = None, *, vae: bool = True, strength: float = 1.0
) -> Prompt:
    prompt: Prompt = flux_graph(steps=1)
    loader = node("ControlNetLoader", control_net_name=f"{name}.safetensors")
    typed = node("SetUnionControlNetType", control_net=["20", 0], type=number or "auto")
    links = {"positive": ["4", 0], "negative": ["5", 0], "control_net": ["21", 0]}
    apply = node(
        "ControlNetApplyAdvanced",
        **links,
        image=["22", 0],
        strength=strength,
        start_percent=0.0,
        end_percent=1.0,
        **({"vae": ["3", 0]} if vae else {}),
    )
    prompt["8"]["inputs"] |= {"positive": ["23", 0], "negative": ["23", 1]}
    image = node("EmptyImage", width=48, height=80, batch_size=1, color=0xFF8000)
    return {**prompt, "20": loader, "21": typed, "22": image, "23": apply}


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Running]:
    with running(folder) as found:
        yield found


def test_graphs_run_with_each_kind_of_network(service: Running) -> None:
    def latent(prompt: Prompt) -> Tensor:
        return latent_of(service.submit(saving_latent(prompt, keeps=("3",))))

    plain = latent(graph("union", strength=0.0))
    found = [latent(graph(name)) for name in ("union", "plain", "xlabs")]
    found += [latent(graph("union", name)) for name in ("openpose", "depth")]
    found.append(latent(graph("xlabs", vae=False)))
    assert torch.equal(found[2], found.pop())
    assert all((one - plain).abs().max() > 0.01 for one in found)
    assert all((a - b).abs().max() > 1e-4 for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("prompt", "node_id", "message"),
    [
        (graph("union", vae=False), "23", "needs a VAE"),
        (graph("plain", "openpose"), "21", "not a union"),
        (graph("sd", "openpose"), "21", "not a union"),
        (graph("union", "normal"), "21", "types 0 to 3, but this is type 4"),
        (graph("union", "sketch"), "21", "type: 'sketch' not in"),
    ],
)
def test_a_misused_network_is_refused_before_the_run(
    prompt: Prompt, node_id: str, message: str, folder: Path
) -> None:
    with pytest.raises(GraphInvalid) as caught:
        validate(prompt, Catalogue(ModelsFolder(folder)), Limits())
    (error,) = caught.value.node_errors[node_id]["errors"]
    assert message in error["details"]


def test_a_network_without_effect_needs_no_vae(folder: Path) -> None:
    prompt = graph("union", vae=False, strength=0.0)
    assert validate(prompt, Catalogue(ModelsFolder(folder)), Limits())


def test_networks_of_other_families_are_refused_with_the_node(service: Running) -> None:
    error = service.submit(graph("sd")).error(InputsInvalid)
    assert (error.code, error.node_id) == ("invalid_input", "8")
    assert "another model than Flux.1" in str(error)
    control = {key: each for key, each in graph("plain").items() if key.startswith("2")}
    prompt = {**control, **text_to_image()}
    links = {"positive": ["6", 0], "negative": ["7", 0]}
    prompt["23"] = {**prompt["23"], "inputs": {**prompt["23"]["inputs"], **links}}
    prompt["3"]["inputs"] |= {"positive": ["23", 0], "negative": ["23", 1]}
    prompt["40"] = node("VAELoader", vae_name="tiny-flux-ae.safetensors")
    prompt["23"]["inputs"]["vae"] = ["40", 0]
    error = service.submit(prompt).error(InputsInvalid)
    assert (error.node_id, error.class_type) == ("3", "KSampler")
    assert "UNet" in str(error)
    prompt["23"]["inputs"]["vae"] = ["4", 2]
    error = service.submit(prompt).error(InputsInvalid)
    assert (error.node_id, error.class_type) == ("23", "ControlNetApplyAdvanced")
    assert "4 channels" in str(error)


def test_a_loaded_network_checks_its_vae_and_type(
    loaded: tuple[Model, Vae, dict[str, ControlNet]],
) -> None:
    _, vae, nets = loaded
    with pytest.raises(EngineError, match="needs a VAE"):
        nets["plain"].control(picture(0), 1.0)
    with pytest.raises(EngineError, match="not a union"):
        nets["plain"].with_type(0)
    assert nets["xlabs"].control(picture(0), 1.0, vae=vae).vae is None


def test_the_tokens_of_reference_latents_get_no_residuals(
    loaded: tuple[Model, Vae, dict[str, ControlNet]],
) -> None:
    model, _, nets = loaded
    control = nets["xlabs"].control(picture(1), 0.6)
    condition = replace(text(1), references=(X[..., :5],))
    (condition,) = controlled((condition,), control)
    call = Call(X, torch.tensor([0.5]), [CallRows(1, condition, condition.controls)], 256)
    (residual,) = flux_residuals(model.unet, call, Flux.latent)["controlnet_block_samples"]
    assert residual.shape[1] == 3 * 4 + 3 * 3
    assert residual[:, :12].any(-1).all()
    assert not residual[:, 12:].any()
