"""What the models of IP-Adapter keep in memory of a call that several jobs shared."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import nn

from tests.support.engine.extensions import ROOT, forget


@torch.inference_mode()
def test_a_model_holds_nothing_of_other_jobs_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "packages" / "ipadapter")
    try:
        adapters, prompts = (
            import_module(f"darkroom_ipadapter.{n}") for n in ("adapter", "prompts")
        )
        tokens = nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (2, 6)))
        matrices = (torch.randn(8, 6),)
        adapter = adapters.Adapter("x", tokens, matrices, matrices, is_plus=False, seen_width=4)
        requests = [prompts.Project(adapter, torch.randn(count, 4)) for count in (1, 7)]
        pair = prompts.Project.run_batch(requests)[0][0]
        own = prompts.weighted(pair, 1.0, "V only")
    finally:
        forget("darkroom_ipadapter")
    for each in (own.keys, own.values):
        assert each.untyped_storage().nbytes() == each.nbytes
