"""Stores of models on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from engine.diffusion.context import Context
from engine.diffusion.loading.store import ModelStore
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder

CPU = torch.device("cpu")


def store_of(root: Path, cache_bytes: int = 2**30, **options: Any) -> ModelStore:
    """A store of the models below a folder, whose listing is never remembered."""
    return ModelStore(ModelsFolder(root, ttl_s=0), CPU, cache_bytes, **options)


def context_of(store: ModelStore) -> Context:
    return Context(store, on_steps=lambda _: None, input_files={}, limits=Limits())
