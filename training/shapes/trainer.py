"""Trains a model with a learning rate schedule, averages its weights, and writes a journal.

The random numbers of a step depend only on the seed and the number of the step. An interrupted
training therefore gives the same result as an uninterrupted training.
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
_FINAL_RATE_FACTOR = 0.02
_MAX_GRADIENT_NORM = 1.0
_EMA_DECAY = 0.999


@dataclass(slots=True)
class Trainer:
    """Trains `model` for `steps`, with its state in `folder`/`name`.pt and a journal beside it."""

    name: str
    folder: Path
    model: nn.Module
    steps: int = field(kw_only=True)
    learning_rates: Mapping[str, float] = field(kw_only=True)
    """The highest learning rates, by prefixes of the names of parameters. The longest prefix of a
    name applies.
    """
    save_s: float = field(default=60.0, kw_only=True)
    """Seconds between two saves of the state. Each save adds a line to the journal."""
    cpu_budget_s: float = field(default=math.inf, kw_only=True)
    """The seconds of CPU time of all threads after which training ends, even before `steps`. The
    learning rate depends on the limit that is closer: steps or CPU time.
    """
    _step: int = field(default=0, init=False)
    _seconds: float = field(default=0.0, init=False)
    _cpu_s: float = field(default=0.0, init=False)
    _ema: dict[str, Tensor] = field(default_factory=dict, init=False)
    """An exponential moving average of the weights."""
    _losses: list[float] = field(default_factory=list, init=False)

    def run(
        self,
        loss_of: Callable[[int], Tensor],
        scores_of: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """Train from the saved state to the end. The model then has the averaged weights.

        `loss_of` takes the number of a step. `scores_of` is called at each save, while the model
        has the averaged weights. Its scores are written to the journal.
        """
        optimizer = torch.optim.AdamW(
            self._parameter_groups(), betas=(0.9, 0.99), weight_decay=1e-3
        )
        self._ema = {name: each.clone() for name, each in self.model.state_dict().items()}
        self._resume(optimizer)
        began, cpu_began = time.monotonic(), time.process_time()
        with _bar() as bar:
            task = bar.add_task(self.name, total=self.steps, completed=self._step, loss=math.nan)
            while self._progress < 1:
                self._losses.append(self._train_step(optimizer, loss_of))
                bar.update(task, completed=self._step, loss=self._losses[-1])
                cpu_ended = time.process_time()
                self._cpu_s += cpu_ended - cpu_began
                cpu_began = cpu_ended
                if time.monotonic() - began > self.save_s or self._progress >= 1:
                    self._seconds += time.monotonic() - began
                    self._save(optimizer)
                    self._log(bar.console, scores_of)
                    began = time.monotonic()
        self.model.load_state_dict(self._ema)

    @property
    def _progress(self) -> float:
        return max(self._step / self.steps, self._cpu_s / self.cpu_budget_s)

    def _parameter_groups(self) -> list[dict[str, Any]]:
        groups: dict[str, dict[str, Any]] = {
            prefix: {"params": [], "rate": rate} for prefix, rate in self.learning_rates.items()
        }
        for name, parameter in self.model.named_parameters():
            prefix = max((each for each in groups if name.startswith(each)), key=len)
            groups[prefix]["params"].append(parameter)
        return list(groups.values())

    def _train_step(
        self, optimizer: torch.optim.Optimizer, loss_of: Callable[[int], Tensor]
    ) -> float:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * self._rate_factor()
        loss = loss_of(self._step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), _MAX_GRADIENT_NORM)
        optimizer.step()
        self._step += 1
        # The average covers few steps at the beginning, and about a thousand steps later.
        decay = min(_EMA_DECAY, self._step / (self._step + 10))
        with torch.no_grad():
            for name, each in self.model.state_dict().items():
                self._ema[name].lerp_(each, 1 - decay)
        return loss.item()

    def _rate_factor(self) -> float:
        """Return a factor that first rises linearly, and then falls as a cosine."""
        warm_up = min(1.0, (self._step + 1) / _WARM_UP_STEPS)
        cosine = (1 + math.cos(math.pi * min(1.0, self._progress))) / 2
        return warm_up * (_FINAL_RATE_FACTOR + (1 - _FINAL_RATE_FACTOR) * cosine)

    @property
    def _path(self) -> Path:
        return self.folder / f"{self.name}.pt"

    def _resume(self, optimizer: torch.optim.Optimizer) -> None:
        if self._path.exists():
            state = torch.load(self._path, weights_only=True)
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            self._ema, self._step = state["average"], state["step"]
            self._seconds, self._cpu_s = state["seconds"], state["cpu_s"]

    def _save(self, optimizer: torch.optim.Optimizer) -> None:
        state = {
            "model": self.model.state_dict(),
            "average": self._ema,
            "optimizer": optimizer.state_dict(),
            "step": self._step,
            "seconds": self._seconds,
            "cpu_s": self._cpu_s,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        # The file is renamed when it is complete, so that an interruption leaves the earlier state.
        unfinished = self._path.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self._path)

    def _log(self, console: Console, scores_of: Callable[[], Mapping[str, float]] | None) -> None:
        entry = {
            "step": self._step,
            "seconds": round(self._seconds, 1),
            "cpu_s": round(self._cpu_s, 1),
            "loss": round(sum(self._losses) / max(1, len(self._losses)), 5),
        }
        self._losses.clear()
        if scores_of is not None:
            entry |= {name: round(score, 4) for name, score in self._ema_scores(scores_of).items()}
        with self._path.with_suffix(".jsonl").open("a") as journal:
            journal.write(json.dumps(entry) + "\n")
        console.print(self.name, *(f"{key} {value}" for key, value in entry.items()), sep="  ")

    def _ema_scores(self, scores_of: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
        trained = {name: each.clone() for name, each in self.model.state_dict().items()}
        self.model.load_state_dict(self._ema)
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
