"""What a family of models is on the device: what conditions it, and the calls of its network.

A family is one subclass in a module of its own. `lookup.py` finds it by the table of
`engine.families`, which says what any process knows of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from engine.diffusion.adapters import Adapters
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.control.control_net import Control
from engine.diffusion.loading.changes.layers import Known
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.vision.row_prompts import PlacedPrompt
from engine.families.family import Traits


@dataclass(frozen=True, slots=True, eq=False)
class CallRows:
    """Rows of a call that belong to one condition of one request."""

    count: int
    condition: Condition
    controls: Sequence[Control] = ()
    """The ControlNets that apply at their sigma."""
    adapters: Adapters = ()
    concat_latent: Tensor | None = None
    """(count, n, h, w): channels that the network of an inpainting model gets after those of x."""
    prompts: Sequence[PlacedPrompt] = ()
    """The image prompts that apply at their sigma."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a network, which rows of many requests share."""

    x: Tensor
    """(rows, channels, h, w), scaled for the network and in its type."""
    times: Tensor
    """(rows,): what the network is told of the noise levels, timesteps or sigmas."""
    parts: Sequence[CallRows]
    text_length: int
    """The length to which texts are repeated, where the family repeats them."""

    @property
    def counts(self) -> list[int]:
        return [each.count for each in self.parts]

    @property
    def conditions(self) -> list[Condition]:
        """That of each row."""
        return [each.condition for each in self.parts for _ in range(each.count)]


class ModelFamily(ABC):
    """A family of models. It has no state: networks are given to it."""

    traits: ClassVar[Traits]
    predicts_flow: ClassVar[bool]
    """Whether its noise levels are those of a flow, and no others are possible."""
    repeats_texts: ClassVar[bool]
    """Whether texts of different length share a call by being repeated to a common length."""

    def __str__(self) -> str:
        return str(self.traits.family)

    @abstractmethod
    def output(self, network: Any, call: Call) -> Tensor:
        """What the network answers, (rows, channels, h, w)."""

    @abstractmethod
    def sharing(self, levels: NoiseLevels, tokens: int) -> Hashable:
        """What requests must have in common to share calls, beside network, size and prediction.

        `tokens` are those of the longest text of a request.
        """

    @abstractmethod
    def require_own(self, network: Any, condition: Condition) -> None:
        """Raises EngineError for a text, or something with it, that is for other models."""

    @abstractmethod
    def layers(self, network: Any) -> Known:
        """The layers of the network by their names in files of LoRAs."""

    def told_of_images(
        self,
        network: Any,  # noqa: ARG002 - of families that are told of images
        condition: Condition,
        seed: int,  # noqa: ARG002 - the same
    ) -> Condition:
        """The condition with what the network is told of its images, with noise of a seed.

        Raises EngineError for images that were encoded for other models.
        """
        return condition

    def with_size_conditioning(
        self,
        conditioning: Conditioning,
        latent: Tensor,  # noqa: ARG002 - of families that are told sizes
        *,
        negative: bool,  # noqa: ARG002 - the same
    ) -> Conditioning:
        """The conditioning with what the network is told of the picture's size."""
        return conditioning

    def inpaints(self, network: Any) -> bool:  # noqa: ARG002 - of families that have such networks
        """Whether the network gets a mask and what it leaves: see `inpainting.concat_latent`."""
        return False
