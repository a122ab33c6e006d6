"""What the tests of patches share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.diffusion.loading.layers import use_plain_attention
from tests.support.engine.tiny_unet import tiny_unet


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def unet() -> Any:
    return use_plain_attention(tiny_unet())
