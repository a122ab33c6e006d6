"""A trainer of training: steps with a falling learning rate, an average of the weights, a journal.

Each step takes its randomness from the seed and its own number, so a trainer that was stopped goes
on as if it had not been.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

_WARM_UP_STEPS = 100
_LAST_RATE = 0.02
_LONGEST_GRADIENT = 1.0
_AVERAGED = 0.999


@dataclass(slots=True)
class Trainer:
    """Trains `model` for `steps`; its state lies in `folder`/`name`.pt, its journal beside it."""

    name: str
    folder: Path
    model: nn.Module
    steps: int
    rates: Mapping[str, float]
    """The highest learning rate by the start of a parameter's name; the longest start wins."""
    save_s: float = 60.0
    """How often the state is saved and the journal written."""
    _step: int = 0
    _seconds: float = 0.0
    _average: dict[str, Tensor] = field(default_factory=dict)
    _losses: list[float] = field(default_factory=list)

    def run(
        self,
        loss_of: Callable[[int], Tensor],
        scores_of: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Train to the end, from where an earlier run was stopped; the average stays in the model.

        `scores_of` is asked at each save, while the model holds the average.
        """
        optimizer = torch.optim.AdamW(self._groups(), betas=(0.9, 0.99), weight_decay=1e-3)
        self._average = {name: each.clone() for name, each in self.model.state_dict().items()}
        self._resume(optimizer)
        saved = began = time.monotonic()
        with _bar() as bar:
            task = bar.add_task(self.name, total=self.steps, completed=self._step, loss=math.nan)
            while self._step < self.steps:
                self._losses.append(self._take_step(optimizer, loss_of))
                bar.update(task, completed=self._step, loss=self._losses[-1])
                if time.monotonic() - saved > self.save_s or self._step == self.steps:
                    self._seconds += time.monotonic() - began
                    self._save(optimizer)
                    self._note(bar.console, scores_of)
                    saved = began = time.monotonic()
        self.model.load_state_dict(self._average)

    def _groups(self) -> list[dict[str, Any]]:
        groups: dict[str, dict[str, Any]] = {
            start: {"params": [], "rate": rate} for start, rate in self.rates.items()
        }
        for name, parameter in self.model.named_parameters():
            start = max((each for each in groups if name.startswith(each)), key=len)
            groups[start]["params"].append(parameter)
        return list(groups.values())

    def _take_step(
        self, optimizer: torch.optim.Optimizer, loss_of: Callable[[int], Tensor]
    ) -> float:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * self._share_of_rate()
        loss = loss_of(self._step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), _LONGEST_GRADIENT)
        optimizer.step()
        self._step += 1
        # Early weights are soon forgotten, late ones are averaged over a thousand steps.
        kept = min(_AVERAGED, self._step / (self._step + 10))
        with torch.no_grad():
            for name, each in self.model.state_dict().items():
                self._average[name].lerp_(each, 1 - kept)
        return loss.item()

    def _share_of_rate(self) -> float:
        """Up in a line, then down in half a cosine."""
        warm = min(1.0, (self._step + 1) / _WARM_UP_STEPS)
        fall = (1 + math.cos(math.pi * self._step / self.steps)) / 2
        return warm * (_LAST_RATE + (1 - _LAST_RATE) * fall)

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.name}.pt"

    def _resume(self, optimizer: torch.optim.Optimizer) -> None:
        if self._path.exists():
            state = torch.load(self._path, weights_only=True)
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self._average, self._step = state["average"], state["step"]
            self._seconds = state["seconds"]

    def _save(self, optimizer: torch.optim.Optimizer) -> None:
        state = {
            "model": self.model.state_dict(),
            "average": self._average,
            "optimizer": optimizer.state_dict(),
            "step": self._step,
            "seconds": self._seconds,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that a stop in between costs nothing.
        unfinished = self._path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self._path)

    def _note(self, console: Console, scores_of: Callable[[], Mapping[str, float]] | None) -> None:
        entry = {
            "step": self._step,
            "seconds": round(self._seconds, 1),
            "loss": round(sum(self._losses) / max(1, len(self._losses)), 5),
        }
        self._losses.clear()
        if scores_of is not None:
            entry |= {name: round(score, 4) for name, score in self._scored(scores_of).items()}
        with self._path.with_suffix(".jsonl").open("a") as journal:
            journal.write(json.dumps(entry) + "\n")
        console.print(self.name, *(f"{key} {value}" for key, value in entry.items()), sep="  ")

    def _scored(self, scores_of: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        trained = {name: each.clone() for name, each in self.model.state_dict().items()}
        self.model.load_state_dict(self._average)
        with torch.no_grad():
            scores = scores_of()
        self.model.load_state_dict(trained)
        return scores


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeRemainingColumn(),
    )
