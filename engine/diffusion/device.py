"""The torch device of an engine, with the models that are loaded on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from engine.activity import ModelUse
from engine.diffusion.context import Context
from engine.diffusion.device_error import is_device_error, is_lost
from engine.diffusion.loading.memory.streaming import Room
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.memory_probe import HostMemoryProbe, memory_probe_of
from engine.diffusion.previews import Previewer, RunPreviews
from engine.errors import Cancelled, DeviceFailed, TooLarge
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.options import DeviceOptions
from engine.reports import Note
from engine.stages import Stage


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
            room=self._room() if options.weight_streaming == "auto" else None,
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

    def _room(self) -> Room | None:
        """What is free on a GPU; on a CPU all weights are where they are needed."""
        probe = self.memory_probe
        if self._device.type != "cuda" or probe is None:
            return None
        return Room(probe.available_bytes, HostMemoryProbe().available_bytes)

    def free_memory(self, stage: Stage | None = None) -> bool:
        """Make more memory free after it ran out in a call of that stage.

        See `ModelStore.free_memory`. For a VAE no model is streamed: it can work tile by tile.
        """
        return self._store.free_memory(may_stream=stage is not Stage.VAE)

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
        on_note: Callable[[Note], None] = lambda _note: None,
    ) -> Context:
        """The access of one run to the device; `on_steps` gets the number of new sampler steps.

        `on_preview` gets JPEGs of what its samplers have, in another thread; None wants none.

        `limits` apply to the images and latents that its nodes make.
        """
        return Context(
            self._store,
            on_steps=on_steps,
            on_note=on_note,
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
