"""Encodes texts. CLIP encodes weighted chunks of 75 tokens; other families have other encoders."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeAlias

import torch
from torch import Tensor, nn
from transformers import CLIPTokenizer

from engine.batcher import Request, Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.device_error import memory_checked
from engine.diffusion.text.text_encoders import (
    END,
    START,
    Embedding,
    Encoded,
    EncodingCache,
    TextEncoder,
    Token,
    Tokens,
)
from engine.diffusion.text.textual_inversion import Embeddings
from engine.diffusion.text.weighting import weighted_segments
from engine.errors import EngineError, MachineFailed
from engine.stages import Stage

VOCABULARY = 49408
CHUNK = 75
_WHOLE_UNIT = 8
"""A unit with fewer tokens than this number is never split over two chunks."""
_CHUNKS_PER_REQUEST = 16
_TOKENIZER_FOLDER = Path(__file__).parents[1] / "configs" / "tokenizer"
_EMBEDDING = "embedding:"
_BEFORE_EMBEDDING = re.compile(rf"[ \n](?={_EMBEDDING})")

Weighted: TypeAlias = tuple[Token, float]
Chunk: TypeAlias = tuple[Weighted, ...]
"""77 tokens with their weights."""
ApplyWeights: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function that applies weights to an encoded chunk, and returns (77, width).

Its parameters are the chunk (77, width), the weights (77, 1) and an encoded empty chunk
(77, width).
"""


@cache
def load_tokenizer() -> CLIPTokenizer:
    """Return the tokenizer, which is the same for all CLIP text encoders."""
    tokenizer: CLIPTokenizer = CLIPTokenizer.from_pretrained(
        _TOKENIZER_FOLDER, local_files_only=True
    )
    # If files of the tokenizer are missing, its vocabulary is empty.
    if len(tokenizer) != VOCABULARY:
        raise MachineFailed(f"the tokenizer in {_TOKENIZER_FOLDER} knows {len(tokenizer)} tokens")
    return tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """The text encoders of a model. SDXL has two."""

    encoders: tuple[TextEncoder, ...]
    encoding_cache: EncodingCache
    embeddings: Embeddings
    layer: int | None = None
    """The layer whose hidden states are used. -1 is the last. None: the default of each encoder."""

    @property
    def tokenizer(self) -> CLIPTokenizer:
        return load_tokenizer()

    @property
    def networks(self) -> tuple[TextEncoder, ...]:
        """The networks that a LoRA changes, in the order of their numbers in LoRA files."""
        return self.encoders

    def with_networks(self, networks: Sequence[Any]) -> Clip:
        return replace(self, encoders=tuple(networks))

    @property
    def has_pooled(self) -> bool:
        """Whether encoded texts have a pooled vector, as with SDXL."""
        return any(each.spec.has_projection for each in self.encoders)

    def fits(self, embedding: Embedding) -> bool:
        """Return whether an embedding has vectors for every text encoder."""
        return all(
            embedding.vectors_for(each.spec.embedding_key, each.width) is not None
            for each in self.encoders
        )

    def embeddings_left_out(self, text: str) -> list[str]:
        """Return the embeddings in a text that do not exist or lack vectors for an encoder."""
        known = self.embeddings.listed()
        embeddings = {name: known.find(name) for name in embedding_names(text)}
        return [name for name, found in embeddings.items() if not (found and self.fits(found))]

    def encode(self, text: str) -> Work[Conditioning]:
        return encode(self, chunks_of(text, self.tokenizer, self.embeddings))

    def stopping_at(self, layer: int) -> Clip:
        return replace(self, layer=layer)


def chunks_of(
    prompt: str, tokenizer: CLIPTokenizer, embeddings: Embeddings | None = None
) -> list[Chunk]:
    """Return the tokens of a prompt with their weights, in chunks.

    A unit is a run of text with one weight, or an embedding. As in ComfyUI, a unit that does not
    fit into the rest of a chunk is split, also within a word. If it has fewer than 8 tokens, it
    begins the next chunk instead. An empty prompt has one empty chunk. Without `embeddings`, the
    name of an embedding is an ordinary word.
    """
    chunks: list[list[Weighted]] = [[]]
    for unit in _units(prompt, tokenizer, embeddings):
        free = CHUNK - len(chunks[-1])
        if free < len(unit) < _WHOLE_UNIT:
            chunks.append([])
            free = CHUNK
        chunks[-1] += unit[:free]
        chunks += [unit[at : at + CHUNK] for at in range(free, len(unit), CHUNK)]
    return [padded(chunk) for chunk in chunks]


def padded(tokens: Sequence[Weighted]) -> Chunk:
    """Return a chunk of 77 tokens: the start token, up to 75 tokens, and end tokens as padding."""
    ends = [(END, 1.0)] * (CHUNK + 1 - len(tokens))
    return ((START, 1.0), *tokens, *ends)


_EMPTY: Tokens = (START, *(END,) * (CHUNK + 1))


def _units(
    prompt: str, tokenizer: CLIPTokenizer, embeddings: Embeddings | None
) -> Iterator[list[Weighted]]:
    known = None if embeddings is None else embeddings.listed()
    parts = [
        (name, text, weight)
        for segment, weight in weighted_segments(prompt)
        for name, text in ([(None, segment)] if known is None else split_at_embeddings(segment))
    ]
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [text for _, text, _ in parts], add_special_tokens=False
    )
    for (name, _, weight), encoding in zip(parts, encoded, strict=True):
        if known is not None and name and (embedding := known.find(name)):
            yield [(token, weight) for token in embedding.tokens]
        if encoding.ids:
            yield [(token, weight) for token in encoding.ids]


def split_at_embeddings(text: str) -> Iterator[tuple[str | None, str]]:
    """Split a text before each `embedding:`, and yield each name with the text that follows it.

    The name is None for the text before the first embedding. As in ComfyUI, a comma directly after
    a name is part of the text, and the words after a name are joined with single spaces.
    """
    for part in _BEFORE_EMBEDDING.split(text):
        if not part.startswith(_EMBEDDING):
            yield None, part
            continue
        word, *words = part.removeprefix(_EMBEDDING).split() or [""]
        name, rest = word.rstrip(","), " ".join(words)
        commas = word[len(name) :]
        yield name, f"{commas} {rest}" if commas else rest


def embedding_names(prompt: str) -> list[str]:
    """Return the names of the embeddings in a prompt, each once."""
    found = (
        name
        for segment, _ in weighted_segments(prompt)
        for name, _ in split_at_embeddings(segment)
        if name
    )
    return [*dict.fromkeys(found)] if _EMBEDDING in prompt else []


@dataclass(slots=True, eq=False)
class Encode(Request):
    """Encodes chunks with one text encoder. The result has the encoding of each chunk."""

    stage: ClassVar[Stage | None] = Stage.TEXT
    clip: Clip
    encoder: TextEncoder
    chunks: Sequence[Tokens]
    is_urgent: bool = True

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
        cache, layer = self.clip.encoding_cache, self.clip.layer
        found: dict[Tokens, Encoded] = {}
        missing: list[Tokens] = []
        for chunk in dict.fromkeys(chunks):
            encoded = cache.get((self.encoder.serial, layer, chunk))
            if encoded is None:
                missing.append(chunk)
            else:
                found[chunk] = encoded
        answers = self.encoder(missing, layer) if missing else ()
        for chunk, encoded in zip(missing, answers, strict=True):
            cache.put((self.encoder.serial, layer, chunk), encoded)
            found[chunk] = encoded
        return found


def weigh_from_empty(chunk: Tensor, weights: Tensor, empty: Tensor) -> Tensor:
    """Scale the differences between the tokens and the encoded empty prompt, as in ComfyUI."""
    return torch.where(weights == 1.0, chunk, empty + weights * (chunk - empty))


def encode(
    clip: Clip, chunks: Sequence[Chunk], weigh: ApplyWeights = weigh_from_empty
) -> Work[Conditioning]:
    """Return the conditioning of a text. All text encoders get the same text."""
    return (yield from encode_each(clip, [chunks] * len(clip.encoders), weigh))


def encode_each(
    clip: Clip, texts: Sequence[Sequence[Chunk]], weigh: ApplyWeights = weigh_from_empty
) -> Work[Conditioning]:
    """Return the conditioning of one text for each text encoder. The states are concatenated along
    the width.
    """
    found: list[Tensor] = []
    pooled: Tensor | None = None
    for encoder, chunks in zip(clip.encoders, texts, strict=True):
        encoded: dict[Tokens, Encoded] = {}
        for some in _in_batches(chunks):
            encoded |= yield Encode(clip, encoder, some)
        found.append(_weighted(chunks, encoded, weigh))
        pooled = encoded[_tokens(chunks[0])].pooled
    length = min(len(each) for each in found)
    tokens = torch.cat([each[:length] for each in found], dim=-1)
    return (Condition(tokens[None], pooled=None if pooled is None else pooled[None]),)


def encode_pair(
    clip: Clip, first: str, second: str, size_conditioning: Sequence[float]
) -> Work[Conditioning]:
    """Return the conditioning of one prompt for each text encoder of SDXL."""
    prompts = [second if each.spec.has_projection else first for each in clip.encoders]
    texts = [chunks_of(each, clip.tokenizer, clip.embeddings) for each in prompts]
    length = max(map(len, texts))
    found = yield from encode_each(clip, [padded_to_length(each, length) for each in texts])
    sizes = tuple(map(float, size_conditioning))
    return tuple(replace(each, size_conditioning=sizes) for each in found)


def padded_to_length(chunks: Sequence[Chunk], length: int) -> Sequence[Chunk]:
    """Return `length` chunks: the given chunks, followed by empty chunks."""
    return [*chunks, *[padded(())] * (length - len(chunks))]


def _in_batches(chunks: Sequence[Chunk]) -> list[Sequence[Tokens]]:
    """Return the chunks of a prompt in batches, so that other jobs can run between two batches."""
    needed = list(dict.fromkeys([_EMPTY, *(_tokens(chunk) for chunk in chunks)]))
    size = _CHUNKS_PER_REQUEST
    return [needed[start : start + size] for start in range(0, len(needed), size)]


def _weighted(
    chunks: Sequence[Chunk], encoded: dict[Tokens, Encoded], weigh: ApplyWeights
) -> Tensor:
    """Return the weighted chunks, joined to (tokens, width)."""
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


class FamilyTexts(ABC):
    """The text encoders of a family that does not use only CLIP.

    The class is used like `Clip`. Operations that exist only for CLIP raise EngineError.
    """

    title: ClassVar[str]

    @property
    @abstractmethod
    def networks(self) -> tuple[nn.Module, ...]:
        """The networks that a LoRA changes, in the order of their numbers in LoRA files."""

    @abstractmethod
    def with_networks(self, networks: Sequence[Any]) -> Self:
        """Return a copy with other networks."""

    def embeddings_left_out(self, text: str) -> list[str]:
        """Return all embeddings that a text names, because a language model uses none of them."""
        return embedding_names(text)

    @abstractmethod
    def encode(self, text: str) -> Work[Conditioning]:
        """Return the conditioning of a text."""

    def encode_pair(
        self,
        first: str,  # noqa: ARG002 - used by subclasses
        second: str,  # noqa: ARG002 - used by subclasses
    ) -> Work[Conditioning]:
        """Return the conditioning of a text for CLIP and a text for the language model."""
        raise self._refusal("encodes one text")

    @property
    def encoders(self) -> NoReturn:
        raise self._refusal("has no encoders of Stable Diffusion")

    def stopping_at(self, layer: int) -> NoReturn:  # noqa: ARG002 - `Clip` has the parameter
        raise self._refusal("can be read at one layer only")

    def _refusal(self, why: str) -> EngineError:
        return EngineError(
            f"the text encoder of {self.title} {why}, so this node does not support it"
        )
