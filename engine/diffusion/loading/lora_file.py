"""The file of a LoRA, or of one of its kin: the layers that it changes, and their tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from engine.diffusion.adapters import Update
from engine.diffusion.loading.changes.by_row import row_size, row_updates
from engine.diffusion.loading.changes.change import Change, part_of
from engine.diffusion.loading.changes.kinds import Tensors, Unfit
from engine.diffusion.loading.changes.layers import Known, Places
from engine.diffusion.loading.memory.streaming import device_of
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

    def row_sizes(self, known: Known, module: nn.Module) -> Counter[str] | None:
        """How many numbers it adds to each layer by row, by the layer's name in the network.

        None if some of it has to be merged.
        """
        sizes: Counter[str] = Counter()
        for change, places in self.changes(known):
            shapes = {name: self._weights.shapes[key] for name, key in change.keys.items()}
            size = row_size(change, shapes, _shape(_weights(module, places)), places)
            if size is None:
                return None
            # What comes first of its parts is shared by all places.
            sizes += Counter({place.layer: size // len(places) for place in places})
        return sizes

    def row_updates(self, known: Known, module: nn.Module) -> Iterator[tuple[str, Update]]:
        """What is added to the output of each layer by row, by the layer's name."""
        with self.opened() as read:
            for change, places in self.changes(known):
                weights = _weights(module, places)
                tensors = read(change, device_of(module))
                with self.fitting(change, _shape(weights)):
                    updates = row_updates(change, tensors, weights, places)
                for place, update in zip(places, updates, strict=True):
                    yield place.layer, update

    @contextmanager
    def opened(self) -> Iterator[Read]:
        """Gives a function that reads the tensors of a change, in float32, onto a device."""
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
                f"{self.name}: the {change.title} of {change.layer} does not fit this model: "
                f"it has {', '.join(own)}, and the weight is {tuple(shape)}"
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


def _weights(module: nn.Module, places: Places) -> list[Tensor]:
    return [module.get_parameter(f"{place.layer}.weight") for place in places]


def _shape(weights: list[Tensor]) -> torch.Size:
    """That of the layer that the file has for all of them."""
    return torch.Size((sum(map(len, weights)), *weights[0].shape[1:]))
