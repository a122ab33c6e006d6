"""The device, opened once per engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from engine.diffusion.context import Context
from engine.diffusion.store import ModelStore
from engine.models_folder import ModelsFolder


class Device:
    """A torch device with the models that are on it."""

    def __init__(
        self,
        models: ModelsFolder,
        name: str,
        *,
        cache_bytes: int,
        text_cache_bytes: int = 128 * 2**20,
        threads: int | None,
    ) -> None:
        self._threads = threads
        self._store = ModelStore(models, _find(name), cache_bytes, text_cache_bytes)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Names of the checkpoints in memory."""
        return self._store.labels

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What the device thread works in."""
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            yield

    def context(self, *, on_steps: Callable[[int], None]) -> Context:
        """A run's access to the device."""
        return Context(self._store, on_steps=on_steps)


def _find(name: str) -> torch.device:
    """`auto` is the first GPU, or the CPU where torch sees none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
