"""The torch device of an engine, with the models that are loaded on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from engine.activity import ModelUse
from engine.diffusion.context import Context
from engine.diffusion.device_error import is_device_error, is_lost
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.memory_probe import memory_probe_of
from engine.diffusion.previews import Previewer, RunPreviews
from engine.errors import Cancelled, DeviceFailed, TooLarge
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.options import DeviceOptions


class Device:
    """The device of one engine."""

    def __init__(self, models: ModelsFolder, options: DeviceOptions) -> None:
        self._options = options
        self._device = device = _find(options.device)
        self.memory_probe = memory_probe_of(device)
        self._previewer = Previewer(options.preview_period_s)
        self._store = ModelStore(
            models,
            device,
            options.cache_bytes,
            text_cache_bytes=options.text_cache_bytes,
            unets=options.unets,
        )

    def diagnosed(self, error: Exception) -> Exception:
        """The error that ended a run, or DeviceFailed where the device is the reason for it."""
        lost = not isinstance(error, Cancelled | TooLarge) and is_lost(self._device)
        if not lost and not is_device_error(error):
            return error
        return DeviceFailed(f"The device failed: {error}", lost)

    @property
    def model_use(self) -> ModelUse:
        return self._store.use

    def free_memory(self) -> bool:
        """Drop what no run uses, because memory ran out. Returns whether there was anything."""
        return self._store.free_unused()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The settings of torch that the device thread works with."""
        if self._options.threads is not None:
            torch.set_num_threads(self._options.threads)
        with torch.inference_mode():
            yield

    def context(
        self,
        limits: Limits,
        on_steps: Callable[[int], None],
        input_files: Mapping[str, bytes],
        *,
        on_preview: Callable[[bytes], None] | None = None,
    ) -> Context:
        """The access of one run to the device; `on_steps` gets the number of new sampler steps.

        `on_preview` gets JPEGs of what its samplers have, in another thread; None wants none.

        `limits` apply to the images and latents that its nodes make.
        """
        return Context(
            self._store,
            on_steps=on_steps,
            input_files=input_files,
            previews=on_preview and RunPreviews(self._previewer, on_preview),
            limits=limits,
            step_seed_offset=self._options.step_seed_offset,
        )


def _find(name: str) -> torch.device:
    """The device of that name; `auto` is the first GPU, or the CPU if torch sees none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
