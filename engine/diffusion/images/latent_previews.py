"""The latent of an unfinished picture as a small JPEG, by a fixed linear map of its channels.

A pixel of a preview is a pixel of the latent. The maps are those of the families, or
fitted to their VAE: a picture of known colours is encoded, and the colours of its cells are fitted
by least squares to the channels of its latent.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import PIXELS_PER_LATENT
from engine.diffusion.images.vae import Encode, Vae
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.previews import RunPreviews
from engine.families.family import Preview, Traits
from engine.families.table import FAMILIES

_MAX_SIDE = 256
_QUALITY = 75
_FITTED_SIDE = 128
_WAVES = 5
_SQUARES = 12
_WHITE = 255.0
_UNMAPPED = {each.latent_channels for each in FAMILIES if each.preview is None}


def show_estimate(
    previews: RunPreviews, family: Traits, fitted: Mapping[int, Preview], estimate: Tensor
) -> None:
    """Have a preview made of the first of a batch, (batch, channels, height, width), where one is
    due and there is a map for the family, or one that was `fitted` to latents of so many channels.
    """
    colours = family.preview or fitted.get(family.latent_channels)
    if colours is not None and previews.wants():
        first = estimate[0].clone()  # the sampler may go on in place
        copy = _copier(first)
        previews.show(lambda: jpeg_of(copy(), colours))


def jpeg_of(latent: NDArray[np.float32], colours: Preview) -> bytes:
    """`latent` is (channels, height, width), as the family's models have it."""
    weights = np.array(colours.weights, np.float32)
    pixels = np.einsum("chw,cr->hwr", latent, weights) + np.array(colours.bias, np.float32)
    pixels = np.nan_to_num(pixels, posinf=255.0, neginf=0.0)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _copier(latent: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Copies it to the host from another thread, which waits for the device in its place."""
    if latent.device.type != "cuda":
        return lambda: _on_host(latent)
    made = torch.cuda.Event()
    made.record()

    def copy() -> NDArray[np.float32]:
        stream = torch.cuda.Stream(latent.device)
        stream.wait_event(made)
        with torch.cuda.stream(stream):
            return _on_host(latent)

    return copy


def _on_host(latent: Tensor) -> NDArray[np.float32]:
    with torch.inference_mode():
        found: NDArray[np.float32] = latent.to("cpu", torch.float32).numpy()
        return found


def with_preview(store: ModelStore, vae: Vae) -> Vae:
    """The VAE, which the store has a map of now, if its latents are of a kind without one."""
    is_wanted = vae.channels in _UNMAPPED and vae.channels not in store.previews
    if is_wanted and (found := fitted_preview(vae)):
        store.previews[vae.channels] = found
    return vae


def fitted_preview(vae: Vae) -> Preview | None:
    """The map from latents as the network has them; None for a VAE that encodes to no numbers."""
    picture = _picture()
    (latent,) = Encode.run_batch([Encode(vae, picture)])
    config = vae.autoencoder.config
    scaled = (latent.cpu().double() - (config.shift_factor or 0.0)) * config.scaling_factor
    channels = scaled.flatten(2)[0].T
    known = torch.cat([channels, torch.ones(len(channels), 1)], dim=1)
    cells = functional.avg_pool2d(picture.movedim(-1, 1).double(), PIXELS_PER_LATENT)
    wanted = cells.flatten(2)[0].T * _WHITE
    if not bool(known.isfinite().all()):
        return None
    # This driver takes channels that say the same.
    found = torch.linalg.lstsq(known, wanted, driver="gelsd").solution.tolist()
    colours = [(red, green, blue) for red, green, blue in found]
    return Preview(tuple(colours[:-1]), colours[-1])


def _picture() -> Tensor:
    """(1, side, side, 3): waves of all colours, and squares of one colour each."""
    random = torch.Generator().manual_seed(1)
    rows, columns = torch.meshgrid(*[torch.arange(_FITTED_SIDE) / _FITTED_SIDE] * 2, indexing="ij")
    planes = torch.zeros(3, _FITTED_SIDE, _FITTED_SIDE)
    for plane in planes:
        for _ in range(_WAVES):
            down, across, phase = torch.rand(3, generator=random).tolist()
            plane.add_(torch.cos(2 * math.pi * (3 * down * rows + 3 * across * columns + phase)))
    picture = (planes - planes.min()) / (planes.max() - planes.min())
    for _ in range(_SQUARES):
        top, left = torch.randint(0, _FITTED_SIDE - 24, (2,), generator=random).tolist()
        picture[:, top : top + 24, left : left + 24] = torch.rand(3, 1, 1, generator=random)
    return picture.movedim(0, -1)[None]
