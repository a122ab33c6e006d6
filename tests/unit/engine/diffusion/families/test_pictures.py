"""Families of transformers in img2img, tile by tile, and what is seen of them meanwhile."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from engine.diffusion.images.latent_previews import jpeg_of, with_preview
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading.checkpoints import load_vae
from engine.diffusion.loading.store import ModelStore
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.reports import Errored
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.transformer_graphs import flux_graph, z_image_graph
from tests.support.engine.workflows import Watched, node


def _png(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


_START = np.random.default_rng(1).integers(0, 255, (64, 64, 3), dtype=np.uint8)
_MASK = np.zeros((64, 64), dtype=np.uint8)
_MASK[16:48, 16:48] = 255
_FILES = {"start.png": _png(_START), "mask.png": _png(_MASK)}


def _from_picture(graph: dict[str, Any], *, tiles: int = 0, denoise: float = 0.5) -> dict[str, Any]:
    """The graph, which starts from a picture."""
    size = {"tile_size": tiles, "overlap": 0} if tiles else {}
    kind = "Tiled" if tiles else ""
    graph["6"] = node(f"VAEEncode{kind}", pixels=["20", 0], vae=["3", 0], **size)
    graph["9"] = node(f"VAEDecode{kind}", samples=["8", 0], vae=["3", 0], **size)
    graph["8"]["inputs"]["denoise"] = denoise
    return {**graph, "20": node("LoadImage", image="start.png")}


@pytest.mark.parametrize("graph", [z_image_graph, flux_graph], ids=["z_image", "flux"])
def test_the_less_is_denoised_the_nearer_the_picture_is_to_its_start(
    graph: Callable[..., dict[str, Any]], start: Callable[..., Watched]
) -> None:
    def made(denoise: float) -> NDArray[np.uint8]:
        wanted = _from_picture(graph(steps=2), denoise=denoise)
        return start(wanted, input_files=_FILES).images()[0].pixels

    kept, little, much = made(0.0), made(0.01), made(1.0)
    near, far = (np.abs(kept.astype(int) - each).mean() for each in (little, much))
    assert near < 0.7 * far  # the tiny VAE makes much of little


def test_tiles_as_large_as_the_picture_change_nothing(start: Callable[..., Watched]) -> None:
    whole, tiled = (
        start(_from_picture(z_image_graph(steps=2), tiles=tiles), input_files=_FILES)
        .images()[0]
        .pixels
        for tiles in (0, 512)
    )
    assert np.abs(whole.astype(int) - tiled).max() <= 1


@pytest.mark.parametrize("compatibility", ["comfyui", "webui"])
def test_the_diffusion_flavour_starts_from_pictures(
    compatibility: str, start: Callable[..., Watched], transformers_root: Path
) -> None:
    body = {
        "prompt": "a red square",
        "seed": 5,
        "steps": 2,
        "cfg_scale": 1.0,
        "width": 64,
        "height": 64,
        "init_images": ["start.png"],
        "denoising_strength": 0.5,
    }
    if compatibility == "webui":
        body |= {"mask": "mask.png", "compatibility": "webui"}
    compiled = compile_parameters(
        parse_parameters(body),
        Catalogue(ModelsFolder(transformers_root)),
        Limits(),
        default_checkpoint="whole.safetensors",
    )
    (image,) = start(compiled.prompt, input_files=_FILES).images()
    assert image.pixels.shape == (64, 64, 3)


def test_a_latent_of_another_vae_ends_the_job(start: Callable[..., Watched]) -> None:
    graph = z_image_graph(steps=1)
    graph["6"] = node("EmptyLatentImage", width=64, height=64, batch_size=1)
    graph["8"] = node("VAEDecode", samples=["6", 0], vae=["3", 0])
    graph["10"]["inputs"]["images"] = ["8", 0]
    end = start(graph).wait()
    assert isinstance(end, Errored)
    assert "take the VAE of the model that made it" in str(end.error)


def test_a_loaded_vae_leaves_a_map(z_image: dict[str, Any], transformers_root: Path) -> None:
    store = ModelStore(ModelsFolder(transformers_root), torch.device("cpu"), 2**30)
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
