"""Families whose network is a transformer that predicts a flow: their sizes and noise levels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.families.family import Call, ModelFamily
from engine.diffusion.families.flow_levels import FlowLevels
from engine.diffusion.loading.changes.layers import Known, transformer_layers
from engine.diffusion.loading.layout import KeyMap
from engine.diffusion.row_updates import updated
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.text.family_texts import FamilyTexts
from engine.diffusion.text.text_encoders import EncodingCache
from engine.errors import EngineError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of a file's tensors by name."""


@dataclass(frozen=True, slots=True)
class LatentFormat:
    """The latents of a family: the network gets (latent - shift) * scale."""

    scale: float
    shift: float


_SHORT_TOKENS = 512
"""Longer texts, which are padded to the longest, share calls with those of up to twice their
length."""
FLUX_LATENT = LatentFormat(0.3611, 0.1159)


class TransformerFamily(ModelFamily):
    """A subclass says how its files are read, and calls its network."""

    predicts_flow = True
    repeats_texts = False
    latent: ClassVar[LatentFormat] = FLUX_LATENT
    network: ClassVar[type[Any]]
    """The class of the network in diffusers."""
    encoders: ClassVar[tuple[str, ...]]
    """The kinds of its text encoders."""

    @abstractmethod
    def texts(self, encoders: Mapping[str, Any], cache: EncodingCache) -> FamilyTexts:
        """What encodes its texts, with the encoders by their kinds: CLIP-L as a `Clip`, a language
        model with its tokenizer.
        """

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

    def joined_tokens(self, call: Call) -> Mapping[str, Sequence[int]]:  # noqa: ARG002 - of some
        """The layers that get the tokens of all rows one after the other, and how many of each row.

        All others get rows as the first axis.
        """
        return {}

    def layers(self, network: Any) -> Known:
        return transformer_layers(network, partial(self.file_keys, network))

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

    def output(self, network: Any, call: Call) -> Tensor:
        adapters = [each.adapters for each in call.parts]
        with updated(network, adapters, call.counts, self.joined_tokens(call)):
            return self.velocity(network, call.x, call.times, call.conditions)

    def sharing(self, levels: NoiseLevels, tokens: int) -> Hashable:  # noqa: ARG002 - each row has its sigma
        return max(0, tokens - 1).bit_length() if tokens > _SHORT_TOKENS else 0

    def require_own(self, network: Any, condition: Condition) -> None:
        width, own = condition.tokens.shape[-1], self.text_width(network)
        if width != own or condition.size_conditioning is not None:
            title = self.traits.title
            raise EngineError(
                f"the text was encoded for another model: it is {width} wide, and {title} "
                f"takes {own}; encode it with the text encoders of {title}"
            )
        if condition.controls:
            raise EngineError(f"{self.traits.title} takes no ControlNets of Stable Diffusion")


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
