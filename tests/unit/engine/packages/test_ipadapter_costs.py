"""The cost of the image prompts of IP-Adapter: time of each step, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.graph.catalogue import Catalogue
from engine.graph.declarations import gather_nodes
from tests.support.engine.extensions import ROOT, forget
from tests.support.engine.graphs import catalogue_of, cost_of
from tests.support.engine.workflows import TINY, node, text_to_image

ADAPTER = {
    "ipadapter": ["10", 0],
    "image": ["12", 0],
    "weight": 1.0,
    "start_at": 0.0,
    "end_at": 1.0,
    "weight_type": "standard",
}


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Catalogue]:
    monkeypatch.syspath_prepend(ROOT / "packages" / "ipadapter")
    models = catalogue_of(tmp_path, f"checkpoints/{TINY}", f"ipadapter/{TINY}").models
    yield Catalogue(models, gather_nodes(import_module("darkroom_ipadapter.nodes")))
    forget("darkroom_ipadapter")


def prompted(steps: int, pictures: int, adapters: int) -> dict[str, Any]:
    """An image by a model with so many adapters, one after the other, of so many pictures each."""
    chain = {
        f"a{n}": node("IPAdapter", model=[f"a{n - 1}" if n > 1 else "4", 0], **ADAPTER)
        for n in range(1, adapters + 1)
    }
    return text_to_image(model=[f"a{adapters}" if adapters else "4", 0], steps=steps) | {
        **chain,
        "10": node("IPAdapterModelLoader", ipadapter_file=TINY),
        "12": node("EmptyImage", width=32, height=32, batch_size=pictures, color=0),
    }


@pytest.mark.parametrize(
    ("pictures", "adapters", "more"), [(1, 1, 0.0061), (1, 2, 0.0122), (16, 1, 0.0229)]
)
def test_each_prompt_and_picture_adds_to_a_step(
    pictures: int, adapters: int, more: float, catalogue: Catalogue
) -> None:
    def of_a_step(adapters: int) -> float:
        few, many = (
            cost_of(prompted(steps, pictures, adapters), catalogue).work for steps in (100, 600)
        )
        return (many - few) / 500

    assert of_a_step(adapters) / of_a_step(0) - 1.0 == pytest.approx(more, abs=1e-4)


@torch.inference_mode()
def test_a_model_holds_nothing_of_other_jobs_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "packages" / "ipadapter")
    try:
        adapters, prompts = (
            import_module(f"darkroom_ipadapter.{n}") for n in ("adapter", "prompts")
        )
        tokens = nn.Sequential(nn.Linear(4, 12), nn.Unflatten(1, (2, 6)))
        matrices = (torch.randn(8, 6),)
        adapter = adapters.Adapter("x", tokens, matrices, matrices, is_plus=False, vision_width=4)
        requests = [prompts.Project(adapter, torch.randn(count, 4)) for count in (1, 7)]
        pair = prompts.Project.run_batch(requests)[0][0]
        own = prompts.weighted(pair, 1.0, "V only")
    finally:
        forget("darkroom_ipadapter")
    for each in (own.keys, own.values):
        assert each.untyped_storage().nbytes() == each.nbytes
