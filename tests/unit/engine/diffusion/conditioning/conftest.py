from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint
from tests.support.engine.control_nets import tiny_control_net
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import TINY

Networks = tuple[Any, Any]


@pytest.fixture(scope="module")
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def checkpoint(tiny_root: Path) -> Checkpoint:
    return load_checkpoint(store_of(tiny_root), TINY)


@pytest.fixture(scope="module")
def networks() -> Networks:
    return tiny_control_net(1), tiny_control_net(2)
