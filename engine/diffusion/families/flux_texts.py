"""The texts of Flux: the states of T5, and the pooled vector of CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tokenizers import Tokenizer
from torch import Tensor, nn

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.text.encoding import Clip, chunks_of, encode, weigh_from_empty
from engine.diffusion.text.family_texts import FamilyTexts
from engine.diffusion.text.language_models import T5, Ids, encode_texts
from engine.diffusion.text.text_encoders import EncodingCache
from engine.diffusion.text.weighting import weighted_segments
from engine.errors import EngineError
from engine.families.flux import FLUX

_END, _PAD = 1, 0
_LEAST_TOKENS = 256
"""A shorter text is padded, and what pads it is attended to."""
_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class FluxTexts(FamilyTexts):
    title = FLUX.title
    clip: Clip
    encoder: T5
    tokenizer: Tokenizer
    cache: EncodingCache

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (*self.clip.networks, self.encoder)

    def with_networks(self, networks: Sequence[Any]) -> Self:
        *clip, encoder = networks
        return replace(self, clip=self.clip.with_networks(clip), encoder=encoder)

    def encode(self, text: str) -> Work[Conditioning]:
        return self.encode_pair(text, text)

    def encode_pair(self, first: str, second: str) -> Work[Conditioning]:
        """That of a text for CLIP and one for T5."""
        chunks = chunks_of(first, self.clip.tokenizer, self.clip.embeddings)
        (condition,) = yield from encode(self.clip, chunks)
        states = yield from self._states(second)
        return (replace(condition, tokens=states[None]),)

    def _states(self, text: str) -> Work[Tensor]:
        ids, weights = self._weighted(text)
        if all(weight == 1.0 for weight in weights):
            (states,) = yield from encode_texts(self.encoder, self.cache, [ids])
            return states
        empty: Ids = (_END, *[_PAD] * (len(ids) - 1))
        states, nothing = yield from encode_texts(self.encoder, self.cache, [ids, empty])
        return weigh_from_empty(states, states.new_tensor(weights)[:, None], nothing)

    def _weighted(self, text: str) -> tuple[Ids, list[float]]:
        """The tokens of a text and their weights, ended and padded."""
        ids: list[int] = []
        weights: list[float] = []
        for segment, weight in weighted_segments(text):
            own = self.tokenizer.encode(segment, add_special_tokens=False).ids
            ids += own
            weights += [weight] * len(own)
        ids.append(_END)
        if len(ids) > _MOST_TOKENS:
            raise EngineError(f"the text has {len(ids)} tokens, at most {_MOST_TOKENS} are taken")
        ids += [_PAD] * (_LEAST_TOKENS - len(ids))
        return tuple(ids), weights + [1.0] * (len(ids) - len(weights))
