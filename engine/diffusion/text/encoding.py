"""Text to conditioning: chunks of 75 tokens through the text encoders, then the weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self, TypeAlias

import torch
from torch import Tensor
from transformers import CLIPTokenizer

from engine.batcher import Request, Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.out_of_memory import memory_checked
from engine.diffusion.text.text_encoders import (
    END,
    START,
    Embedding,
    Encoded,
    Encodings,
    TextEncoder,
    Token,
    Tokens,
)
from engine.diffusion.text.textual_inversion import Embeddings
from engine.diffusion.text.weighting import weighted_segments
from engine.errors import EngineError

_VOCABULARY = 49408
CHUNK = 75
_WHOLE_WORD = 8
"""A word of fewer tokens is never split over two chunks."""
_CHUNKS_PER_REQUEST = 16
_TOKENIZER_FOLDER = Path(__file__).parents[1] / "configs" / "tokenizer"
_EMBEDDING = "embedding:"

Weighted: TypeAlias = tuple[Token, float]
Chunk: TypeAlias = tuple[Weighted, ...]
"""77 tokens with their weights."""
Weigh: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A chunk (77, width), its weights (77, 1) and an empty chunk, to the weighted chunk."""


@cache
def load_tokenizer() -> CLIPTokenizer:
    """The one vocabulary that all CLIP text encoders share."""
    tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(
        _TOKENIZER_FOLDER, local_files_only=True
    )
    # Where its files are missing it loads in silence and knows no word.
    if len(tokenizer) != _VOCABULARY:
        raise EngineError(f"the tokenizer in {_TOKENIZER_FOLDER} knows {len(tokenizer)} tokens")
    return tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """A model's text encoders; those of SDXL are two.

    `layer` counts from the last, -1; None is the one that the encoders are made to be read at.
    """

    encoders: tuple[TextEncoder, ...]
    encodings: Encodings
    embeddings: Embeddings
    layer: int | None = None

    @property
    def tokenizer(self) -> CLIPTokenizer:
        return load_tokenizer()

    def stopping_at(self, layer: int) -> Clip:
        return replace(self, layer=layer)


def chunks_of(
    prompt: str, tokenizer: CLIPTokenizer, embeddings: Embeddings | None = None
) -> list[Chunk]:
    """The prompt's tokens with their weights, in chunks; one empty chunk for an empty prompt.

    Without `embeddings` a prompt names none.
    """
    chunks: list[list[Weighted]] = [[]]
    for word in _words(prompt, tokenizer, embeddings):
        room = CHUNK - len(chunks[-1])
        if room < len(word) < _WHOLE_WORD:
            chunks.append([])
            room = CHUNK
        chunks[-1] += word[:room]
        chunks += [word[at : at + CHUNK] for at in range(room, len(word), CHUNK)]
    return [padded(chunk) for chunk in chunks]


def padded(tokens: Sequence[Weighted]) -> Chunk:
    """Up to 75 tokens between their start and as many ends as make 77."""
    ends = [(END, 1.0)] * (CHUNK + 1 - len(tokens))
    return ((START, 1.0), *tokens, *ends)


_EMPTY: Tokens = (START, *(END,) * (CHUNK + 1))


def _words(
    prompt: str, tokenizer: CLIPTokenizer, embeddings: Embeddings | None
) -> Iterator[list[Weighted]]:
    weighted = [
        (word, weight)
        for segment, weight in weighted_segments(prompt)
        for word in segment.replace("\n", " ").split(" ")
        if word
    ]
    plain = [_without_embedding(word, embeddings) for word, _ in weighted]
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [rest for _, rest in plain], add_special_tokens=False
    )
    for (_, weight), (embedding, _), encoding in zip(weighted, plain, encoded, strict=True):
        if embedding is not None:
            yield [(token, weight) for token in embedding.tokens]
        if encoding.ids:
            yield [(token, weight) for token in encoding.ids]


def _without_embedding(word: str, known: Embeddings | None) -> tuple[Embedding | None, str]:
    """The embedding that a word names, and what follows it; one that is not there is left out."""
    if known is None or not word.startswith(_EMBEDDING):
        return None, word
    name = word.removeprefix(_EMBEDDING)
    stem = name.rstrip(",")
    found = known.find(name)
    if found is None and stem != name:
        return known.find(stem), name[len(stem) :]
    return found, ""


@dataclass(slots=True, eq=False)
class Encode(Request):
    """Chunks to be encoded by one text encoder; the result has them all."""

    clip: Clip
    encoder: TextEncoder
    chunks: Sequence[Tokens]

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.chunks)

    @property
    def key(self) -> Hashable:
        return "encode", self.encoder.serial, self.clip.layer

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[dict[Tokens, Encoded]]:
        with memory_checked():
            every = [chunk for request in requests for chunk in request.chunks]
            encoded = requests[0]._encode(every)
            return [{chunk: encoded[chunk] for chunk in each.chunks} for each in requests]

    def _encode(self, chunks: Sequence[Tokens]) -> dict[Tokens, Encoded]:
        """Each chunk encoded, taken from what is kept where it was before."""
        kept, layer = self.clip.encodings, self.clip.layer
        found: dict[Tokens, Encoded] = {}
        missing: list[Tokens] = []
        for chunk in dict.fromkeys(chunks):
            encoded = kept.get((self.encoder.serial, layer, chunk))
            if encoded is None:
                missing.append(chunk)
            else:
                found[chunk] = encoded
        answers = self.encoder(missing, layer) if missing else ()
        for chunk, encoded in zip(missing, answers, strict=True):
            kept.put((self.encoder.serial, layer, chunk), encoded)
            found[chunk] = encoded
        return found


def from_empty(chunk: Tensor, weights: Tensor, empty: Tensor) -> Tensor:
    """A weight scales what sets a token off an empty prompt."""
    return torch.where(weights == 1.0, chunk, empty + weights * (chunk - empty))


def encode(clip: Clip, chunks: Sequence[Chunk], weigh: Weigh = from_empty) -> Work[Conditioning]:
    """The conditioning of a text in chunks, the same for every text encoder."""
    return (yield from encode_each(clip, [chunks] * len(clip.encoders), weigh))


def encode_each(
    clip: Clip, texts: Sequence[Sequence[Chunk]], weigh: Weigh = from_empty
) -> Work[Conditioning]:
    """The conditioning of a text for each text encoder: side by side on the width."""
    found: list[Tensor] = []
    pooled: Tensor | None = None
    for encoder, chunks in zip(clip.encoders, texts, strict=True):
        encoded: dict[Tokens, Encoded] = {}
        for some in _in_parts(chunks):
            encoded |= yield Encode(clip, encoder, some)
        found.append(_weighted(chunks, encoded, weigh))
        pooled = encoded[_tokens(chunks[0])].pooled
    length = min(len(each) for each in found)
    tokens = torch.cat([each[:length] for each in found], dim=-1)
    return (Condition(tokens[None], pooled=None if pooled is None else pooled[None]),)


def as_long(chunks: Sequence[Chunk], length: int) -> Sequence[Chunk]:
    """Filled up with empty chunks."""
    return [*chunks, *[padded(())] * (length - len(chunks))]


def _in_parts(chunks: Sequence[Chunk]) -> list[Sequence[Tokens]]:
    """What has to be encoded for a prompt, in parts that leave room for other jobs in between."""
    needed = list(dict.fromkeys([_EMPTY, *(_tokens(chunk) for chunk in chunks)]))
    size = _CHUNKS_PER_REQUEST
    return [needed[start : start + size] for start in range(0, len(needed), size)]


def _weighted(chunks: Sequence[Chunk], encoded: dict[Tokens, Encoded], weigh: Weigh) -> Tensor:
    """Chunks joined on the token axis, with their weights."""
    empty = encoded[_EMPTY].states
    pieces = []
    for chunk in chunks:
        piece = encoded[_tokens(chunk)].states
        if any(weight != 1.0 for _, weight in chunk):
            weights = torch.tensor([weight for _, weight in chunk], device=piece.device)[:, None]
            piece = weigh(piece, weights, empty)
        pieces.append(piece)
    return torch.cat(pieces)


def _tokens(chunk: Chunk) -> Tokens:
    return tuple(token for token, _ in chunk)
