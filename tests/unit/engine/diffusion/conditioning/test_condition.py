"""Texts that are joined to one are of one model."""

from __future__ import annotations

import pytest
import torch

from engine.diffusion.conditioning.condition import Condition
from engine.errors import EngineError


def test_texts_of_different_models_are_not_joined() -> None:
    one, other = Condition(torch.ones(1, 2, 8)), Condition(torch.ones(1, 2, 4))
    for join in (one.concatenated, lambda text: one.averaged(text, 0.5)):
        assert join(one).tokens.shape[-1] == 8
        with pytest.raises(EngineError, match="different models: one is 8 wide, the other 4"):
            join(other)
    pooled = [Condition(torch.ones(1, 2, 8), torch.ones(1, width)) for width in (6, 3)]
    with pytest.raises(EngineError, match="one is 6 wide, the other 3"):
        pooled[0].averaged(pooled[1], 0.5)
