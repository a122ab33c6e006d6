"""The text encoders of a family whose texts CLIP alone does not encode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, Self

from torch import nn

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Conditioning
from engine.errors import EngineError


class FamilyTexts(ABC):
    """What stands in the place of a `Clip`. What is made for CLIP alone raises EngineError."""

    title: ClassVar[str]

    @property
    @abstractmethod
    def networks(self) -> tuple[nn.Module, ...]:
        """What a LoRA changes, in the order of its numbers in files."""

    @abstractmethod
    def with_networks(self, networks: Sequence[Any]) -> Self:
        """The same with others in their places."""

    @abstractmethod
    def encode(self, text: str) -> Work[Conditioning]:
        """The conditioning of a text."""

    def encode_pair(
        self,
        first: str,  # noqa: ARG002 - of families with two encoders
        second: str,  # noqa: ARG002 - the same
    ) -> Work[Conditioning]:
        """That of a text for CLIP and one for the language model."""
        raise self._refusal("encodes one text")

    @property
    def encoders(self) -> NoReturn:
        raise self._refusal("has no encoders of Stable Diffusion")

    def stopping_at(self, layer: int) -> NoReturn:  # noqa: ARG002 - as of a `Clip`
        raise self._refusal("is read at one layer alone")

    def _refusal(self, why: str) -> EngineError:
        return EngineError(f"the text encoder of {self.title} {why}, so this node does not take it")
