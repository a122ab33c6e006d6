"""Model families on the device: how texts condition a model, and how its network is called.

Each family is a subclass of `ModelFamily`. The table in `engine.families` describes the families
without torch, and `family_lookup.py` finds the subclass for an entry of this table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine.diffusion.adapters import Adapters
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.images.latents import Mask
from engine.diffusion.loading.lora_layers import LayersByName
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.vision.row_prompts import FittedPrompt
from engine.families.family import Traits


@dataclass(frozen=True, slots=True, eq=False)
class CallRows:
    """The rows of a call that belong to one condition of one request."""

    count: int
    condition: Condition
    controls: Sequence[Control] = ()
    """The ControlNets that apply at the sigma of these rows."""
    adapters: Adapters = ()
    concat_latent: Tensor | None = None
    """(count, n, h, w): the network gets these channels after those of x."""
    prompts: Sequence[FittedPrompt] = ()
    """The image prompts that apply at the sigma of these rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a network for rows of several requests."""

    x: Tensor
    """(rows, channels, h, w), scaled for the network and in the network's data type."""
    times: Tensor
    """(rows,): the noise levels, as timesteps or as sigmas, whichever the network needs."""
    parts: Sequence[CallRows]
    text_length: int
    """The number of tokens to which texts are repeated, if the family repeats texts."""

    @property
    def inputs(self) -> Tensor:
        """The latents, followed by the further channels of networks that have them."""
        # All rows use the same network, so either all rows or no rows have these channels.
        further = [each.concat_latent for each in self.parts if each.concat_latent is not None]
        if not further:
            return self.x
        return torch.cat([self.x, torch.cat(further).to(self.x.dtype)], dim=1)

    @property
    def references(self) -> list[Tensor]:
        """The reference latents of all rows, (rows, channels, h, w) each."""
        each_part = (each.condition.references for each in self.parts)
        return [torch.cat(each).to(self.x) for each in zip(*each_part, strict=True)]

    @property
    def counts(self) -> list[int]:
        return [each.count for each in self.parts]

    @property
    def conditions(self) -> list[Condition]:
        """The condition of each row."""
        return [each.condition for each in self.parts for _ in range(each.count)]


class ModelFamily(ABC):
    """A family of models. Instances have no state: methods get the network as a parameter."""

    traits: ClassVar[Traits]
    predicts_flow: ClassVar[bool]
    """Whether the networks predict a flow. Such networks need the noise levels of a flow."""
    repeats_texts: ClassVar[bool]
    """Whether texts of different lengths are repeated to a common length to share a call."""

    def __str__(self) -> str:
        return str(self.traits.family)

    @abstractmethod
    def output(self, network: Any, call: Call) -> Tensor:
        """Return the output of the network, (rows, channels, h, w)."""

    @abstractmethod
    def sharing(self, levels: NoiseLevels, tokens: int) -> Hashable:
        """Return a key for a request. Only requests with equal keys share a call.

        Their network, size and kind of prediction must be equal too. `tokens` is the length of the
        request's longest text.
        """

    @abstractmethod
    def require_own(self, network: Any, condition: Condition) -> None:
        """Raise EngineError if a condition has inputs for other models."""

    @abstractmethod
    def layers(self, network: Any) -> LayersByName:
        """Return the layers of the network, by their names in the files of LoRAs."""

    def with_images(
        self,
        network: Any,  # noqa: ARG002 - used by subclasses
        condition: Condition,
        seed: int,  # noqa: ARG002 - used by subclasses
    ) -> Condition:
        """Return the condition with the network's inputs for the images in `condition.unclip`.

        `seed` is the seed of the noise that is added to these inputs. Raises EngineError for images
        that were encoded for other models.
        """
        return condition

    def with_size_conditioning(
        self,
        conditioning: Conditioning,
        latent: Tensor,  # noqa: ARG002 - used by subclasses
        *,
        negative: bool,  # noqa: ARG002 - used by subclasses
    ) -> Conditioning:
        """Return the conditioning with the network's inputs for the size of the picture."""
        return conditioning

    def with_pictures(
        self,
        network: Any,  # noqa: ARG002 - used by subclasses
        condition: Condition,
        *,
        clean: Tensor,  # noqa: ARG002 - used by subclasses
        mask: Mask | None,  # noqa: ARG002 - used by subclasses
        scaled: Callable[[Tensor], Tensor],  # noqa: ARG002 - used by subclasses
    ) -> Condition:
        """Return the condition with the latents that the network gets besides the sampled latent.

        These are `concat_latent` and `references`. `clean` (batch, channels, h, w) is the sampled
        latent without noise, and `mask` is its mask. `scaled` scales a latent of the VAE for the
        network. Raises EngineError if the condition has a picture for other networks.
        """
        return condition

    def row_sharing(self, condition: Condition) -> Hashable:  # noqa: ARG002 - used by subclasses
        """Return a key for the rows of a condition. Only rows with equal keys share a call."""
        return None
