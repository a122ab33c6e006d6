"""The torch device of an engine, with the engine's models, free memory and torch settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from engine.activity import ModelUse
from engine.diffusion.context import Context
from engine.diffusion.device_error import is_device_error, is_lost
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.streaming import FreeMemory
from engine.diffusion.memory_probes import HostMemoryProbe, memory_probe_of
from engine.diffusion.previews import Previewer, RunPreviews
from engine.errors import Cancelled, DeviceFailed, TooLarge
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.options import DeviceOptions
from engine.stages import Stage

_CPU_CACHE_BYTES = 8 * 2**30


def cache_bytes(options: DeviceOptions, device: torch.device) -> int:
    """Return the largest size of all loaded models together, in bytes.

    The default leaves a quarter of the engine's GPU memory for activations and images.
    """
    if options.cache_bytes is not None:
        return options.cache_bytes
    if device.type != "cuda":
        return _CPU_CACHE_BYTES
    _, total_bytes = torch.cuda.mem_get_info(device)
    return int(0.75 * options.gpu_share * total_bytes)


class Device:
    def __init__(self, models: ModelsFolder, options: DeviceOptions) -> None:
        self._options = options
        self._device = device = _opened(options.device)
        self.memory_probe = memory_probe_of(device)
        self._previewer = Previewer()
        self._store = ModelStore(
            models,
            device,
            cache_bytes(options, device),
            unets=options,
            free_memory_of=self._free_memory_of(),
        )

    def diagnosed(self, error: Exception) -> Exception:
        """Return `error`, which ended a run, or DeviceFailed if the device caused the error."""
        lost = not isinstance(error, Cancelled | TooLarge) and is_lost(self._device)
        if not lost and not is_device_error(error):
            return error
        return DeviceFailed(f"The device failed: {error}", lost)

    @property
    def model_use(self) -> ModelUse:
        return self._store.use

    def _free_memory_of(self) -> FreeMemory | None:
        """Return None for a CPU, which needs no streaming."""
        probe = self.memory_probe
        if self._device.type != "cuda" or probe is None:
            return None
        return FreeMemory(probe.available_bytes, HostMemoryProbe().available_bytes)

    def free_memory(self, stage: Stage | None = None) -> bool:
        """Free memory after `stage` ran out of memory; see `ModelStore.free_memory`.

        In the VAE stage no model is streamed, because a VAE can work tile by tile instead.
        """
        return self._store.free_memory(may_stream=stage is not Stage.VAE)

    @contextmanager
    def scope(self) -> Iterator[None]:
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
        on_note: Callable[[str], None] = lambda _note: None,
    ) -> Context:
        """Return the context of one run.

        `on_steps` is called with the number of sampler steps since its previous call. `on_preview`
        is called in another thread with JPEG previews. None: no previews are made. `limits` apply
        to the images and latents of the run.
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


def _opened(name: str) -> torch.device:
    """Return the device. Raises DeviceFailed if torch sees no GPU but the device is one."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        built_for = torch.version.cuda or torch.version.hip
        why = (
            f"this torch was built for {built_for}, and CUDA_VISIBLE_DEVICES is {visible!r}: check "
            "the driver with nvidia-smi"
            if built_for
            else "this torch was built without GPUs: install a build of torch for them"
        )
        advice = "To compute on the CPU, let the endpoint have 0 `gpus`."
        raise DeviceFailed(f"The worker has a GPU, but torch sees none; {why}. {advice}", True)
    # TF32 has the precision of float16 and the range of float32. The convolutions of a VAE, which
    # is in float32, are several times faster with it.
    cudnn: Any = torch.backends.cudnn  # The types of torch lack `conv`.
    cudnn.conv.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    # With a benchmark of each shape, the same job could run with other kernels, which round
    # differently, and each new number of rows would wait for a benchmark.
    cudnn.benchmark = False
    return device
