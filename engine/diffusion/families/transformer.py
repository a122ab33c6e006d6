"""What a family of transformers is: its latents, its sizes, its noise levels and its calls.

A family is one subclass in a module of its own, and one row of `table.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.families.flow_levels import FlowLevels
from engine.diffusion.loading.layout import KeyMap
from engine.errors import EngineError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of a file's tensors by name."""


@dataclass(frozen=True, slots=True)
class LatentFormat:
    """The latents of a family: the network gets (latent - shift) * scale."""

    channels: int
    scale: float
    shift: float


FLUX_LATENT = LatentFormat(16, 0.3611, 0.1159)


class TransformerFamily(ABC):
    """A family whose network predicts a flow. It has no state: weights are given to it."""

    title: ClassVar[str]
    latent: ClassVar[LatentFormat] = FLUX_LATENT
    network: ClassVar[type[Any]]
    """The class of the network in diffusers."""

    @abstractmethod
    def config(self, shapes: Shapes) -> dict[str, Any]:
        """The configuration of the network, by the shapes of its weights in either layout.

        Raises LookupError, ArithmeticError where they are not those of the family.
        """

    @abstractmethod
    def key_map(self, names: Sequence[str], shapes: Shapes) -> KeyMap:
        """The tensors of a file, without its prefix, for the network's weights."""

    def file_keys(self, network: Any, names: Sequence[str]) -> KeyMap:  # noqa: ARG002 - Flux's sizes
        """The tensors that the first publisher's layout has for those weights of a network."""
        return self.key_map(names, {})

    def joined_tokens(
        self,
        network: Any,  # noqa: ARG002 - of families with such layers
        x: Tensor,  # noqa: ARG002 - the same
        conditions: Sequence[Condition],  # noqa: ARG002 - the same
    ) -> Mapping[str, Sequence[int]]:
        """The layers that get the tokens of all rows one after the other, and how many of each row.

        All others get rows as the first axis.
        """
        return {}

    @abstractmethod
    def levels(self, network: Any) -> FlowLevels:
        """The noise levels that the network was trained on."""

    @abstractmethod
    def text_width(self, network: Any) -> int:
        """The width of the texts that it takes."""

    @abstractmethod
    def velocity(
        self, network: Any, x: Tensor, sigmas: Tensor, conditions: Sequence[Condition]
    ) -> Tensor:
        """noise - x0 of each row of x (rows, channels, h, w), by its sigma and its condition.

        Rows with texts of different length share the call: what pads a text is not attended to.
        """

    def require_own(self, network: Any, condition: Condition) -> None:
        """Raises EngineError for a text, or something with it, that is for other models."""
        width, own = condition.tokens.shape[-1], self.text_width(network)
        if width != own or condition.size_conditioning is not None:
            raise EngineError(
                f"the text was encoded for another model: it is {width} wide, and {self.title} "
                f"takes {own}; encode it with the text encoders of {self.title}"
            )
        if condition.controls:
            raise EngineError(f"{self.title} takes no ControlNets of Stable Diffusion")


def padded_to_patches(x: Tensor) -> Tensor:
    """Latents with even sides: an odd one is continued from the opposite edge."""
    down, across = (side % 2 for side in x.shape[2:])
    return functional.pad(x, (0, across, 0, down), mode="circular") if down or across else x


def count_of(shapes: Shapes, prefix: str) -> int:
    """How many numbers follow a prefix: the layers of a list."""
    numbers = (
        key.removeprefix(prefix).partition(".")[0] for key in shapes if key.startswith(prefix)
    )
    return len({each for each in numbers if each.isdigit()})


def rows_of(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Texts (n, width) padded to the longest, and which of their tokens are their own."""
    length = max(map(len, tensors))
    padded = [functional.pad(each, (0, 0, 0, length - len(each))) for each in tensors]
    lengths = torch.tensor([len(each) for each in tensors], device=tensors[0].device)
    own = torch.arange(length, device=tensors[0].device) < lengths[:, None]
    return torch.stack(padded), own
