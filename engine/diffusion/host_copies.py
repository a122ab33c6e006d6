"""Copies from the machine's memory to the device for which the host does not wait."""

from __future__ import annotations

import torch
from torch import Tensor


def copied(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device.

    A GPU reads pinned memory by itself. For a copy from other memory, the host waits until the GPU
    has done all its work so far, and then the GPU waits for the next work of the host.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
