"""Text to conditioning: chunks of 75 tokens through CLIP, then the weights.

CLIP: Radford et al. 2021 (arXiv:2103.00020); 77 tokens with one start and one end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from transformers import CLIPTokenizer

from engine.batcher import Request, Work
from engine.diffusion.conditioning import Condition, Conditioning
from engine.diffusion.memory import memory_checked
from engine.diffusion.weighting import weighted_segments
from engine.errors import EngineError

START, END = 49406, 49407
_VOCABULARY = 49408
CHUNK = 75
_WHOLE_WORD = 8
"""A word of fewer tokens is never split over two chunks."""
_CACHED_CHUNKS = 256
_CHUNKS_PER_REQUEST = 16
_TOKENIZER_FOLDER = Path(__file__).parent / "configs" / "tokenizer"

Chunk = tuple[tuple[int, float], ...]
"""77 tokens with their weights."""
Tokens = tuple[int, ...]
Encoded = dict[Tokens, Tensor]
"""(77, width) of each chunk."""
Weigh: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A chunk (77, width), its weights (77, 1) and an empty chunk, to the weighted chunk."""


def load_tokenizer() -> CLIPTokenizer:
    """The one vocabulary that all CLIP text encoders share."""
    tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(
        _TOKENIZER_FOLDER, local_files_only=True
    )
    # Where its files are missing it loads in silence and knows no word.
    if len(tokenizer) != _VOCABULARY:
        raise EngineError(f"the tokenizer in {_TOKENIZER_FOLDER} knows {len(tokenizer)} tokens")
    return tokenizer


def chunks_of(prompt: str, tokenizer: CLIPTokenizer) -> list[Chunk]:
    """The prompt's tokens with their weights, in chunks; one empty chunk for an empty prompt."""
    chunks: list[list[tuple[int, float]]] = [[]]
    for word in _words(prompt, tokenizer):
        room = CHUNK - len(chunks[-1])
        if room < len(word) < _WHOLE_WORD:
            chunks.append([])
            room = CHUNK
        chunks[-1] += word[:room]
        chunks += [word[at : at + CHUNK] for at in range(room, len(word), CHUNK)]
    return [padded(chunk) for chunk in chunks]


def _words(prompt: str, tokenizer: CLIPTokenizer) -> Iterator[list[tuple[int, float]]]:
    weighted = [
        (word, weight)
        for segment, weight in weighted_segments(prompt)
        for word in segment.replace("\n", " ").split(" ")
        if word
    ]
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [word for word, _ in weighted], add_special_tokens=False
    )
    for (_, weight), encoding in zip(weighted, encoded, strict=True):
        yield [(token, weight) for token in encoding.ids]


def padded(tokens: Sequence[tuple[int, float]]) -> Chunk:
    ends = [(END, 1.0)] * (CHUNK + 1 - len(tokens))
    return ((START, 1.0), *tokens, *ends)


_EMPTY: Tokens = (START, *(END,) * (CHUNK + 1))


@dataclass
class _Cache:
    """Encoded chunks by layer and tokens, least recently used first."""

    _encoded: OrderedDict[tuple[int, Tokens], Tensor] = field(default_factory=OrderedDict)

    def get(self, key: tuple[int, Tokens]) -> Tensor | None:
        if key in self._encoded:
            self._encoded.move_to_end(key)
        return self._encoded.get(key)

    def put(self, key: tuple[int, Tokens], encoded: Tensor) -> None:
        self._encoded[key] = encoded
        while len(self._encoded) > _CACHED_CHUNKS:
            self._encoded.popitem(last=False)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Clip:
    """A text encoder; `layer` counts from the last, -1."""

    encoder: Any
    tokenizer: CLIPTokenizer
    layer: int = -1
    cache: _Cache = field(default_factory=_Cache)

    def stopping_at(self, layer: int) -> Clip:
        return replace(self, layer=layer)

    def encode_chunks(self, chunks: Sequence[Tokens]) -> Encoded:
        """Each chunk encoded, taken from the cache where it was before."""
        found: Encoded = {}
        missing: list[Tokens] = []
        for chunk in dict.fromkeys(chunks):
            encoded = self.cache.get((self.layer, chunk))
            if encoded is None:
                missing.append(chunk)
            else:
                found[chunk] = encoded
        for chunk, encoded in zip(missing, self._forward(missing) if missing else (), strict=True):
            self.cache.put((self.layer, chunk), encoded)
            found[chunk] = encoded
        return found

    def _forward(self, chunks: Sequence[Tokens]) -> Tensor:
        ids = torch.tensor(chunks, device=self.encoder.device)
        output = self.encoder(ids, output_hidden_states=True)
        # A layer that the model does not have means its last.
        if self.layer == -1 or -self.layer > self.encoder.config.num_hidden_layers:
            last: Tensor = output.last_hidden_state
            return last
        normed: Tensor = self.encoder.final_layer_norm(output.hidden_states[self.layer])
        return normed


@dataclass(slots=True, eq=False)
class Encode(Request):
    """Chunks to be encoded; the result has them all."""

    clip: Clip
    chunks: Sequence[Tokens]

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.chunks)

    @property
    def key(self) -> Hashable:
        return "encode", id(self.clip.encoder), self.clip.layer

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Encoded]:
        with memory_checked():
            every = [chunk for request in requests for chunk in request.chunks]
            encoded = requests[0].clip.encode_chunks(every)
            return [{chunk: encoded[chunk] for chunk in each.chunks} for each in requests]


def encode(clip: Clip, chunks: Sequence[Chunk], weigh: Weigh | None = None) -> Work[Conditioning]:
    """The conditioning of a prompt in chunks; without a rule of its own weighed as ComfyUI does."""
    encoded: Encoded = {}
    for some in _in_parts(chunks):
        encoded |= yield Encode(clip, some)
    return _weighted(chunks, encoded, weigh or _from_empty)


def _in_parts(chunks: Sequence[Chunk]) -> list[Sequence[Tokens]]:
    """What has to be encoded for a prompt, in parts that leave room for other jobs in between."""
    needed = list(dict.fromkeys([_EMPTY, *(_tokens(chunk) for chunk in chunks)]))
    size = _CHUNKS_PER_REQUEST
    return [needed[start : start + size] for start in range(0, len(needed), size)]


def _from_empty(chunk: Tensor, weights: Tensor, empty: Tensor) -> Tensor:
    """A weight scales what sets a token off an empty prompt."""
    return torch.where(weights == 1.0, chunk, empty + weights * (chunk - empty))


def _weighted(chunks: Sequence[Chunk], encoded: Encoded, weigh: Weigh) -> Conditioning:
    """Chunks joined on the token axis, with their weights."""
    empty = encoded[_EMPTY]
    pieces = []
    for chunk in chunks:
        piece = encoded[_tokens(chunk)]
        if any(weight != 1.0 for _, weight in chunk):
            weights = torch.tensor([weight for _, weight in chunk], device=piece.device)[:, None]
            piece = weigh(piece, weights, empty)
        pieces.append(piece)
    return (Condition(torch.cat(pieces)[None]),)


def _tokens(chunk: Chunk) -> Tokens:
    return tuple(token for token, _ in chunk)
