"""Families whose network is a transformer that predicts a flow."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.adapters import updated
from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.families.model_family import Call, ModelFamily
from engine.diffusion.host_copies import copied
from engine.diffusion.loading.layout import KeyMap
from engine.diffusion.loading.lora_layers import LayersByName, transformer_layers
from engine.diffusion.samplers.noise_levels import FlowLevels, NoiseLevels
from engine.diffusion.text.encoding import FamilyTexts
from engine.diffusion.text.text_encoders import EncodingCache
from engine.errors import EngineError

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""The shapes of a file's tensors by name."""


@dataclass(frozen=True, slots=True)
class LatentFormat:
    """The format of a family's latents: the network gets (latent - shift) * scale."""

    scale: float
    shift: float


_SHORT_TOKENS = 512
"""Texts up to this length share calls. Texts in a call are padded to the longest text. So a longer
text shares a call only with texts whose lengths are between the same two powers of 2.
"""
FLUX_LATENT = LatentFormat(0.3611, 0.1159)


class TransformerFamily(ModelFamily):
    """A family whose network is a transformer. A subclass reads the files and calls the network."""

    predicts_flow = True
    repeats_texts = False
    latent: ClassVar[LatentFormat] = FLUX_LATENT
    network: ClassVar[type[Any]]
    """The class of the network in diffusers."""
    encoders: ClassVar[tuple[str, ...]]
    """The kinds of the family's text encoders."""

    @abstractmethod
    def texts(self, encoders: Mapping[str, Any], cache: EncodingCache) -> FamilyTexts:
        """Return the object that encodes texts with these encoders, which are given by kind.

        The value for CLIP-L is a `Clip`; the value for a language model is the model and its
        tokenizer.
        """

    @abstractmethod
    def config(self, shapes: Shapes) -> dict[str, Any]:
        """Return the configuration of the network from the shapes of its weights.

        The weights may have the layout of diffusers or of the model's authors. Raises LookupError
        or ArithmeticError if the shapes do not belong to the family.
        """

    @abstractmethod
    def key_map(self, names: Sequence[str], shapes: Shapes) -> KeyMap:
        """Return the key map of a file with these `shapes`. Keys have no prefix."""

    def file_keys(self, network: Any, names: Sequence[str]) -> KeyMap:  # noqa: ARG002 - used by subclasses
        """Return the key map of a file in the layout of the model's authors."""
        return self.key_map(names, {})

    def joined_tokens(self, call: Call) -> Mapping[str, Sequence[int]]:  # noqa: ARG002 - used by subclasses
        """Return the number of tokens of each row, for layers that join all rows' tokens.

        The first axis of these layers has the tokens of all rows one after the other. The first
        axis of all other layers has the rows.
        """
        return {}

    def layers(self, network: Any) -> LayersByName:
        return transformer_layers(network, partial(self.file_keys, network))

    @abstractmethod
    def levels(self, network: Any) -> FlowLevels:
        """Return the noise levels on which the network was trained."""

    @abstractmethod
    def text_width(self, network: Any) -> int:
        """Return the number of features of an encoded token that the network needs."""

    @abstractmethod
    def velocity(self, network: Any, call: Call) -> Tensor:
        """Return noise - x0 for each row of the call, (rows, channels, h, w).

        The times of the call are sigmas. Texts of different lengths are padded to share the call,
        and attention ignores this padding.
        """

    def output(self, network: Any, call: Call) -> Tensor:
        adapters = [each.adapters for each in call.parts]
        with updated(network, adapters, call.counts, self.joined_tokens(call)):
            return self.velocity(network, call)

    def sharing(self, levels: NoiseLevels, tokens: int) -> Hashable:  # noqa: ARG002 - the method is inherited
        return max(0, tokens - 1).bit_length() if tokens > _SHORT_TOKENS else 0

    def require_own(self, network: Any, condition: Condition) -> None:
        width, own = condition.tokens.shape[-1], self.text_width(network)
        if width != own or condition.size_conditioning is not None:
            title = self.traits.title
            raise EngineError(
                f"the text was encoded for another model: it has the width {width}, but {title} "
                f"needs {own}; encode it with the text encoders of {title}"
            )
        for control in condition.controls:
            self.require_control(network, control)
        if condition.grounding is not None:
            raise EngineError(f"GLIGEN is not for {self.traits.title}, only for models with a UNet")

    def require_control(self, network: Any, control: Control) -> None:  # noqa: ARG002 - used by subclasses
        """Raise EngineError if a ControlNet is for another network."""
        raise EngineError(f"the ControlNet is for another model than {self.traits.title}")


def padded_to_patches(x: Tensor) -> Tensor:
    """Return latents with even sides. An odd side is padded from the opposite edge."""
    down, across = (side % 2 for side in x.shape[2:])
    return functional.pad(x, (0, across, 0, down), mode="circular") if down or across else x


def patches_of(planes: Tensor) -> Tensor:
    """Return the patches of 2 x 2 cells as (rows, patches, 4 * channels)."""
    # In half precision, a linear layer rounds differently if its input is not contiguous.
    return functional.pixel_unshuffle(planes, 2).flatten(2).mT.contiguous()


def count_of(shapes: Shapes, prefix: str) -> int:
    """Return the number of layers in a list: the number of different numbers after the prefix."""
    numbers = (
        key.removeprefix(prefix).partition(".")[0] for key in shapes if key.startswith(prefix)
    )
    return len({each for each in numbers if each.isdigit()})


def padded_texts(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return texts (n, width) padded to the longest, and a mask that is false at the padding.

    The mask is None if there is no padding.
    """
    lengths, device = [len(each) for each in tensors], tensors[0].device
    length = max(lengths)
    if min(lengths) == length:
        return torch.stack(list(tensors)), None
    padded = [functional.pad(each, (0, 0, 0, length - len(each))) for each in tensors]
    own = torch.arange(length, device=device) < copied(torch.tensor(lengths), device)[:, None]
    return torch.stack(padded), own
