"""Turns the errors with which torch says that memory ran out into the engine's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import OutOfMemory, is_out_of_memory


@contextmanager
def memory_checked() -> Iterator[None]:
    """Raises OutOfMemory when torch runs out of the device's memory or the host's."""
    try:
        yield
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or is_out_of_memory(error):
            torch.cuda.empty_cache()
            raise OutOfMemory from error
        raise
