"""Pictures of the families of transformers: those of diffusers, shared calls, and templates."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, ZImagePipeline
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoints import load_vae
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.previews import jpeg_of, with_preview
from engine.diffusion.text.encoding import load_tokenizer
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Finished
from tests.support.comfyui.official import renamed, template, with_models
from tests.support.engine.diffusion_requests import compiled
from tests.support.engine.engines import Running
from tests.support.engine.latents import farthest
from tests.support.engine.stores import store_of
from tests.support.engine.transformer_graphs import (
    decibels,
    flux_graph,
    latent_of,
    saving_latent,
    z_image_graph,
)
from tests.support.engine.workflows import Submit, held, node, with_input
from tests.support.uploads import png_of


def _flux_pipeline(made: dict[str, Any]) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made["tokenizer_2"], pad_token="<pad>", eos_token="</s>"
    )
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15
        ),
        vae=made["vae"],
        text_encoder=made["text_encoder"],
        tokenizer=deepcopy(load_tokenizer()),  # the pipeline sets its padding for good
        text_encoder_2=made["text_encoder_2"],
        tokenizer_2=tokenizer,
        transformer=made["transformer"],
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_latents_of_flux_are_those_of_diffusers(start: Submit, flux: dict[str, Any]) -> None:
    ours = start(saving_latent(flux_graph("a red square", guidance=2.5, steps=4)))
    noise = torch.randn((1, 16, 8, 8), generator=torch.Generator().manual_seed(5))
    packed = FluxPipeline._pack_latents(noise, 1, 16, 8, 8)
    theirs = _flux_pipeline(flux)(
        "a red square",
        height=64,
        width=64,
        num_inference_steps=4,
        guidance_scale=2.5,
        max_sequence_length=256,
        latents=packed,
        output_type="latent",
    ).images
    wanted = FluxPipeline._unpack_latents(theirs, 64, 64, 8)
    assert decibels(latent_of(ours), wanted) > 90


Graph = Callable[..., dict[str, Any]]
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _z_image_pipeline(made: dict[str, Any]) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made["tokenizer"], chat_template=_CHAT, pad_token="<|endoftext|>"
    )
    pipeline = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=made["vae"],
        text_encoder=made["text_encoder"],
        tokenizer=tokenizer,
        transformer=made["transformer"],
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_latents_of_z_image_are_those_of_diffusers(start: Submit, z_image: dict[str, Any]) -> None:
    ours = start(saving_latent(z_image_graph("a red square", negative="blue", cfg=3.0, steps=4)))
    noise = torch.randn((1, 16, 8, 8), generator=torch.Generator().manual_seed(5))
    theirs = _z_image_pipeline(z_image)(
        "a red square",
        negative_prompt="blue",
        height=64,
        width=64,
        num_inference_steps=4,
        guidance_scale=2.0,  # it counts from the conditional estimate
        latents=noise,
        output_type="latent",
    ).images
    assert decibels(latent_of(ours), theirs) > 90


_SAMPLERS = ("euler", "heun", "dpmpp_2m", "euler_ancestral", "res_multistep", "dpmpp_sde")
_TEXT = "a red square beside two green circles on a long blue line in the evening sun"
_WORDS = _TEXT.split(" ")


def _job(at: int) -> dict[str, Any]:
    return z_image_graph(
        " ".join(_WORDS[: 1 + at]),
        seed=at,
        steps=3 + at % 3,
        cfg=1.5 + at % 3,
        shift=2.0 + at % 2,
        sampler_name=_SAMPLERS[at % len(_SAMPLERS)],
    )


def test_sixteen_mixed_jobs_share_calls_and_have_the_pictures_of_each_alone(flow: Running) -> None:
    alone = [flow.pictures(_job(at))[0] for at in range(16)]
    with held(flow.engine, flow.models):
        watched = [flow.submit(_job(at)) for at in range(16)]
    shared = [each.images()[0].pixels for each in watched]
    assert max(map(farthest, alone, shared)) <= 1
    ends = [each.events[-1] for each in watched]
    rows = [end.rows_per_call for end in ends if isinstance(end, Finished)]
    assert sum(rows) / len(rows) >= 12


def test_texts_of_different_length_of_flux_share_a_call(flow: Running) -> None:
    short, long = flux_graph("a cat", steps=2), flux_graph(" ".join(_WORDS * 8), steps=2)
    (alone,) = flow.pictures(short)
    shared, _ = flow.pictures(short, long)
    assert farthest(shared, alone) <= 1


@pytest.mark.parametrize("graph", [z_image_graph, flux_graph], ids=["z_image", "flux"])
def test_an_odd_latent_is_continued_to_whole_patches(flow: Running, graph: Graph) -> None:
    (found,) = flow.pictures(with_input(graph(steps=1), "6", width=72))
    assert found.shape == (64, 72, 3)


_START = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
_MASK = np.zeros((64, 64), dtype=np.uint8)
_MASK[16:48, 16:48] = 255
_FILES = {"start.png": png_of(_START), "mask.png": png_of(_MASK)}


def _from_picture(graph: dict[str, Any], *, tiles: int = 0, denoise: float = 0.5) -> dict[str, Any]:
    """The graph, which starts from a picture."""
    size = {"tile_size": tiles, "overlap": 0} if tiles else {}
    kind = "Tiled" if tiles else ""
    graph["6"] = node(f"VAEEncode{kind}", pixels=["20", 0], vae=["3", 0], **size)
    graph["9"] = node(f"VAEDecode{kind}", samples=["8", 0], vae=["3", 0], **size)
    graph["8"]["inputs"]["denoise"] = denoise
    return {**graph, "20": node("LoadImage", image="start.png")}


@pytest.mark.parametrize("graph", [z_image_graph, flux_graph], ids=["z_image", "flux"])
def test_the_less_is_denoised_the_nearer_is_the_start(graph: Graph, start: Submit) -> None:
    def made(denoise: float) -> NDArray[np.uint8]:
        wanted = _from_picture(graph(steps=2), denoise=denoise)
        return start(wanted, input_files=_FILES).images()[0].pixels

    kept, little, much = made(0.0), made(0.01), made(1.0)
    near, far = (np.abs(kept.astype(int) - each).mean() for each in (little, much))
    assert near < 0.7 * far  # the tiny VAE makes much of little


def test_tiles_as_large_as_the_picture_change_nothing(start: Submit) -> None:
    graphs = [_from_picture(z_image_graph(steps=2), tiles=tiles) for tiles in (0, 512)]
    whole, tiled = (start(graph, input_files=_FILES).images()[0].pixels for graph in graphs)
    assert farthest(whole, tiled) <= 1


@pytest.mark.parametrize("compatibility", ["comfyui", "webui"])
def test_the_diffusion_flavour_starts_from_pictures(compatibility: str, flow: Running) -> None:
    body: dict[str, Any] = {"steps": 2, "cfg_scale": 1.0, "denoising_strength": 0.5}
    if compatibility == "webui":
        body |= {"mask": "mask.png", "compatibility": "webui"}
    found = compiled(flow.catalogue, **body, init_images=["start.png"], default="whole.safetensors")
    (image,) = flow.submit(found.prompt, input_files=_FILES).images()
    assert image.pixels.shape == (64, 64, 3)


def test_a_latent_of_another_vae_ends_the_job(start: Submit) -> None:
    graph = z_image_graph(steps=1)
    graph["6"] = node("EmptyLatentImage", width=64, height=64, batch_size=1)
    graph["8"] = node("VAEDecode", samples=["6", 0], vae=["3", 0])
    graph["10"]["inputs"]["images"] = ["8", 0]
    told = str(start(graph).error(EngineError))
    assert "use the VAE of the model that made the latent" in told


def test_a_loaded_vae_leaves_a_map(z_image: dict[str, Any], transformers_root: Path) -> None:
    store = store_of(transformers_root)
    with torch.inference_mode():
        load_vae(store, "tiny-ae.safetensors")
    assert len(store.previews[16].weights) == 16


class _Colours(torch.nn.Module):
    """An autoencoder whose latents are the colours of cells, each some times over."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(latent_channels=16, scaling_factor=0.5, shift_factor=0.25)
        self.weight = torch.nn.Parameter(torch.ones(1))

    def encode(self, pixels: Tensor, *, return_dict: bool) -> list[Any]:
        cells = torch.nn.functional.avg_pool2d(pixels, 8)
        latent = torch.cat([cells] * 6, dim=1)[:, :16]

        class Modes:
            def mode(self) -> Tensor:
                return latent

        return [Modes()]


def test_a_map_is_fitted_to_the_vae(tmp_path: Path) -> None:
    store = ModelStore(ModelsFolder(tmp_path), torch.device("cpu"), 2**20)
    with torch.inference_mode():
        vae = with_preview(store, Vae(_Colours()))
    colours = torch.tensor([1.0, -1.0, 0.0]).repeat(6)[:16]
    latent = ((colours - 0.25) * 0.5)[:, None, None].expand(16, 4, 4)
    red, green, blue = np.asarray(
        Image.open(io.BytesIO(jpeg_of(latent.numpy(), store.previews[16])))
    )[2, 2]
    assert (int(red) > 250, int(green) < 5, 120 < int(blue) < 136) == (True, True, True)
    assert with_preview(store, vae) is vae


TEMPLATES = {
    "image_z_image_turbo": "z-image",
    "flux_schnell_full_text_to_image": "flux",
    "flux_dev_full_text_to_image": "flux",
    "flux_dev_checkpoint_example": "flux",
    "flux_schnell": "flux",
    "flux1_krea_dev": "flux",
}
TINY = {
    "z-image": {
        "checkpoints": "whole.safetensors",
        "diffusion_models": "tiny-z-image.safetensors",
        "clip_name": "tiny-qwen3.safetensors",
        "vae": "tiny-ae.safetensors",
    },
    "flux": {
        "checkpoints": "whole.safetensors",  # a Z-Image: no tiny Flux is one file
        "diffusion_models": "tiny-flux-dev.safetensors",
        "clip_name1": "tiny-clip-l.safetensors",
        "clip_name2": "tiny-t5xxl.safetensors",
        "vae": "tiny-flux-ae.safetensors",
    },
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_are_valid(name: str, tmp_path: Path) -> None:
    graph = template(name, Catalogue(ModelsFolder(tmp_path)))
    found = validate(graph, with_models(graph, tmp_path), Limits())
    assert found.cost.work > 20
    assert found.cost.outputs >= 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_run_on_tiny_weights(name: str, flow: Running) -> None:
    graph = renamed(template(name, flow.catalogue), flow.catalogue, TINY[TEMPLATES[name]])
    (found,) = flow.pictures(graph)
    assert found.shape == (64, 64, 3)
