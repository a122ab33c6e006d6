"""Recognises errors of torch: a device that failed, and memory that ran out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import OutOfMemory, is_caused_by, is_out_of_memory

# cuDNN and cuBLAS raise a plain RuntimeError, so their errors are recognised by these texts.
_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error", "CUDNN_STATUS_", "CUBLAS_STATUS_")
_ARGUMENTS = (
    "invalid argument",
    "invalid configuration argument",
    "STATUS_BAD_PARAM",
    "STATUS_INVALID_VALUE",
    "STATUS_NOT_SUPPORTED",
)
"""Messages about wrong arguments of a call. The device still works after such an error."""


def is_device_error(error: BaseException | None) -> bool:
    """Return whether `error`, or an error in its chain of causes, reports a failed device."""
    return is_caused_by(error, _is_of_the_device)


def _is_of_the_device(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
        return False
    text = str(error)
    is_named = isinstance(error, torch.AcceleratorError) or any(each in text for each in _DEVICE)
    return is_named and not any(each in text for each in _ARGUMENTS)


def is_lost(device: torch.device) -> bool:
    """Return whether the device is lost: after some CUDA errors, every later call fails."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


@contextmanager
def memory_checked() -> Iterator[None]:
    """Raise OutOfMemory if torch runs out of memory on the device or the host."""
    try:
        yield
    except Exception as error:
        if isinstance(error, torch.OutOfMemoryError) or is_out_of_memory(error):
            torch.cuda.empty_cache()
            raise OutOfMemory from error
        raise
