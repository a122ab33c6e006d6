"""Previews: small JPEGs of unfinished pictures, made in a separate thread.

No estimate is queued while a preview is made, so previews never delay the device thread.

A linear map converts the channels of each latent cell to the colour of one pixel. Some families
have a fixed map. For other families, a map is fitted to the VAE: a picture of known colours is
encoded, and a least-squares fit maps the latent's channels to these colours.
"""

from __future__ import annotations

import io
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import PIXELS_PER_LATENT
from engine.diffusion.images.vae import Encode, Vae
from engine.diffusion.loading.store import ModelStore
from engine.families.family import Preview, Traits
from engine.families.table import FAMILIES

_log = logging.getLogger(__name__)
_PERIOD_S = 1.0

MakePreview: TypeAlias = Callable[[], bytes]
"""A function that makes a JPEG. It may run in any thread."""


class Previewer:
    """Makes the previews of all runs of an engine."""

    def __init__(
        self, period_s: float = _PERIOD_S, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`period_s` is the least time between two previews of one run."""
        self.period_s = period_s
        self.now = now
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_busy = threading.Event()

    @property
    def is_busy(self) -> bool:
        return self._is_busy.is_set()

    def order(self, make: MakePreview, report: Callable[[bytes], None]) -> None:
        """Call `report` with the result of `make` in the preview thread, which must not be busy."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="previews", daemon=True)
            thread.start()
            self._thread = thread
        self._is_busy.set()
        self._orders.put(lambda: report(make()))

    def _run(self) -> None:
        while True:
            work = self._orders.get()
            try:
                work()
            except Exception:  # noqa: BLE001 - a run continues without the preview
                _log.exception("no preview", extra={"action": "preview"})
            finally:
                self._is_busy.clear()


class RunPreviews:
    """The previews of one run. Only the device thread uses this object."""

    def __init__(self, previewer: Previewer, report: Callable[[bytes], None]) -> None:
        """`report` is called in the preview thread."""
        self._previewer = previewer
        self._report = report
        self._next_at = previewer.now()

    def wants(self) -> bool:
        """Return whether a preview is due and can be made now."""
        return not self._previewer.is_busy and self._previewer.now() >= self._next_at

    def show(self, make: MakePreview) -> None:
        """Order a preview. Call this method only if `wants` is true."""
        self._next_at = self._previewer.now() + self._previewer.period_s
        self._previewer.order(make, self._report)


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
    """Order a preview of the first latent in `estimate`, if a preview is due.

    `estimate` is (batch, channels, height, width). `fitted` has the maps for families without a
    map, by number of channels.
    """
    colours = family.preview or fitted.get(family.latent_channels)
    if colours is not None and previews.wants():
        # The sampler may change the estimate in place.
        first = estimate[0].clone()
        copy = _copier(first)
        previews.show(lambda: jpeg_of(copy(), colours))


def jpeg_of(latent: NDArray[np.float32], colours: Preview) -> bytes:
    """Return a JPEG of a latent (channels, height, width), in the scale of the network."""
    weights = np.array(colours.weights, np.float32)
    pixels = np.einsum("chw,cr->hwr", latent, weights) + np.array(colours.bias, np.float32)
    pixels = np.nan_to_num(pixels, posinf=255.0, neginf=0.0)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def _copier(latent: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Return a function that waits for the device and copies the latent to the host."""
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
    """Fit a map for the VAE's latents if there is none, and return the VAE."""
    is_wanted = vae.channels in _UNMAPPED and vae.channels not in store.previews
    if is_wanted and (found := fitted_preview(vae)):
        store.previews[vae.channels] = found
    return vae


def fitted_preview(vae: Vae) -> Preview | None:
    """Return the map from latents to colours, or None if the VAE's latents are not finite."""
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
    # The driver "gelsd" accepts linearly dependent channels.
    found = torch.linalg.lstsq(known, wanted, driver="gelsd").solution.tolist()
    colours = [(red, green, blue) for red, green, blue in found]
    return Preview(tuple(colours[:-1]), colours[-1])


def _picture() -> Tensor:
    """Return a picture (1, side, side, 3) of coloured waves, and squares of one colour each."""
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
