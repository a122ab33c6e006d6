"""The parts of what is loaded: files of their own, or those weights of one that share a prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.diffusion.families.transformer import Shapes
from engine.diffusion.loading.checkpoint_info import Component
from engine.diffusion.loading.layout import KeyMap
from engine.diffusion.loading.weights import Weights, component_files
from engine.families.family import UNET


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Those weights of one or more files whose names begin with a prefix."""

    weights: Weights
    prefix: str = ""

    @property
    def shapes(self) -> Shapes:
        """By their names without the prefix."""
        start = len(self.prefix)
        return {
            key[start:]: shape
            for key, shape in self.weights.shapes.items()
            if key.startswith(self.prefix)
        }

    def component(
        self, config: dict[str, Any], key_map: Callable[[Sequence[str], Shapes], KeyMap]
    ) -> Component:
        """The weights with what they are for."""
        shapes = self.shapes

        def prefixed(names: Any) -> KeyMap:
            found = key_map(list(names), shapes)
            return {name: replace(at, key=self.prefix + at.key) for name, at in found.items()}

        return Component(config, self.weights, prefixed)


def network_part(path: Path) -> Part:
    """The network in a file, or in a diffusers folder; raises CheckpointUnavailable."""
    weights = Weights(*component_files(path / "transformer") if path.is_dir() else (path,))
    prefix = UNET if any(key.startswith(UNET) for key in weights.shapes) else ""
    return Part(weights, prefix)
