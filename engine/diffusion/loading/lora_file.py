"""The file of a LoRA, or of one of its kin: the layers that it changes, and their tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import torch

from engine.diffusion.loading.changes.change import Change, part_of
from engine.diffusion.loading.changes.kinds import LORA, Tensors, Unfit
from engine.diffusion.loading.changes.layers import Known, Places
from engine.diffusion.loading.weights import Weights
from engine.errors import CheckpointUnavailable, is_out_of_memory

_FOREIGN = {
    ".a1.weight": "a GLoRA",
    ".on_input": "an IA3",
    ".oft_R": "an OFT that turns the inputs of layers",
    ".boft_R": "a BOFT that turns the inputs of layers",
    ".vera_lambda_": "a VeRA",
}
Read: TypeAlias = Callable[[Change, torch.device], Tensors]


class LoraFile:
    """The layers in a file. Their weights are not read yet; raises CheckpointUnavailable."""

    def __init__(self, path: Path) -> None:
        self._weights = Weights(path)
        self.name = self._weights.name
        self.layers: dict[str, Change] = {}
        for key in self._weights.shapes:
            self._refuse_foreign(key)
            if found := part_of(key):
                layer, name = found
                self.layers.setdefault(layer, Change(layer)).keys[name] = key
        self.layers = {layer: each for layer, each in self.layers.items() if each.parts}
        if not self.layers:
            raise CheckpointUnavailable(
                f"{path.name} is no LoRA: it has no pair of up and down, and nothing else that is "
                "known to change layers"
            )
        for change in self.layers.values():
            self._require_whole(change)

    def changes(self, known: Known) -> list[tuple[Change, Places]]:
        """Those of the layers among the `known`, with their places in the network."""
        return [(each, known[name]) for name, each in self.layers.items() if name in known]

    def ranks(self, known: Known) -> Counter[str]:
        """The rank of each layer that it adds two matrices to, by its name in the network."""
        ranks: Counter[str] = Counter()
        for change, places in self.changes(known):
            if change.kind is LORA:
                rank = next(iter(self._weights.shapes[change.keys["down"]]), 0)
                ranks.update({place.layer: rank for place in places})
        return ranks

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Gives a function that reads the tensors of a change, in float32, for a weight's device."""
        with self._weights.opened() as read:

            def tensors(change: Change, device: torch.device) -> Tensors:
                return {
                    name: read(key).to(device, torch.float32) for name, key in change.keys.items()
                }

            yield tensors

    @contextmanager
    def fitting(self, change: Change, shape: torch.Size) -> Iterator[None]:
        """Raises CheckpointUnavailable where the tensors of a change do not fit a weight."""
        try:
            yield
        except (Unfit, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError) or is_out_of_memory(error):
                raise
            own = [f"{name} {self._weights.shapes[key]}" for name, key in change.keys.items()]
            raise CheckpointUnavailable(
                f"{self.name}: the {change.title} of {change.layer} does not fit this model: it has "
                f"{', '.join(own)}, and the weight is {tuple(shape)}"
            ) from error

    def _refuse_foreign(self, key: str) -> None:
        for mark, kind in _FOREIGN.items():
            if mark in key:
                raise CheckpointUnavailable(
                    f"{self.name} is {kind}, which is not read; LoRA, LoHa, LoKr, DoRA and OFT are"
                )

    def _require_whole(self, change: Change) -> None:
        if missing := change.missing:
            raise CheckpointUnavailable(
                f"{self.name} is damaged: {change.layer} has {', '.join(sorted(change.keys))}, and "
                f"lacks {' and '.join(sorted(missing))}"
            )
