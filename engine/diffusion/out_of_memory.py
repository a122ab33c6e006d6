"""Recognises the errors with which torch says that memory ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import OutOfMemory

# The CPU's allocator raises a plain RuntimeError.
_CPU_ALLOCATOR = ("not enough memory", "can't allocate memory")


@contextmanager
def memory_checked() -> Iterator[None]:
    """Raises OutOfMemory when torch runs out of the device's memory or the host's."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        torch.cuda.empty_cache()
        raise OutOfMemory from error
    except RuntimeError as error:
        if any(phrase in str(error) for phrase in _CPU_ALLOCATOR):
            raise OutOfMemory from error
        raise
