from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.shapes.trainer import Trainer

STEPS = 8


class Stopped(Exception):
    pass


@pytest.fixture
def trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """Makes trainers of a linear layer, which save after each step."""

    def make(name: str) -> Trainer:
        torch.manual_seed(1)
        return Trainer(
            name, tmp_path, nn.Linear(2, 1), steps=STEPS, learning_rates={"": 0.1}, save_s=0.0
        )

    return make


def loss_of(trainer: Trainer, *, stop: int = STEPS) -> Callable[[int], Tensor]:
    """The loss for batches that depend only on the step; raises Stopped at the step `stop`."""

    def loss(step: int) -> Tensor:
        if step == stop:
            raise Stopped
        batch = torch.randn(4, 2, generator=torch.Generator().manual_seed(step))
        wrong: Tensor = trainer.model(batch) - batch.sum(dim=1, keepdim=True)
        return wrong.square().mean()

    return loss


def test_a_trainer_that_was_stopped_ends_as_one_that_was_not(
    trainer: Callable[..., Trainer],
) -> None:
    whole = trainer("whole")
    whole.run(loss_of(whole))
    stopped = trainer("stopped")
    with pytest.raises(Stopped):
        stopped.run(loss_of(stopped, stop=STEPS // 2))
    resumed = trainer("stopped")
    resumed.run(loss_of(resumed))
    assert torch.equal(whole.model.weight, resumed.model.weight)


def test_loss_and_scores_are_written_as_it_goes(
    trainer: Callable[..., Trainer], tmp_path: Path
) -> None:
    line = trainer("line")
    line.run(loss_of(line), lambda: {"bias": float(line.model.bias)})
    entries = [json.loads(text) for text in (tmp_path / "line.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries] == list(range(1, STEPS + 1))
    assert all({"seconds", "loss", "bias"} < entry.keys() for entry in entries)


def test_a_trainer_ends_with_its_cpu_time(tmp_path: Path) -> None:
    line = Trainer(
        "line", tmp_path, nn.Linear(2, 1), steps=10**9, learning_rates={"": 0.1}, cpu_budget_s=0.01
    )
    line.run(loss_of(line, stop=10**9))
    last = json.loads((tmp_path / "line.jsonl").read_text().splitlines()[-1])
    assert 0 < last["step"] < 10**6
