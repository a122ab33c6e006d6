"""Recognises the errors with which torch says that the device failed, whatever it was asked for."""

from __future__ import annotations

import torch

from engine.errors import is_caused_by

# cuDNN and cuBLAS raise a plain RuntimeError.
_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error", "CUDNN_STATUS_", "CUBLAS_STATUS_")
_ARGUMENTS = (
    "invalid argument",
    "invalid configuration argument",
    "STATUS_BAD_PARAM",
    "STATUS_INVALID_VALUE",
    "STATUS_NOT_SUPPORTED",
)
"""The call itself was wrong, and the device would say so each time."""


def is_device_error(error: BaseException | None) -> bool:
    """Whether the device failed: the error itself says so, or one that it was raised from."""
    return is_caused_by(error, _is_of_the_device)


def _is_of_the_device(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
        return False
    text = str(error)
    is_named = isinstance(error, torch.AcceleratorError) or any(each in text for each in _DEVICE)
    return is_named and not any(each in text for each in _ARGUMENTS)


def is_lost(device: torch.device) -> bool:
    """Whether this process can use the device no more.

    Some errors of CUDA stay: each later call raises them again, until the process ends.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
