"""Encodes prompts as the WebUI does: its chunks, its weights and its texts that change by step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeAlias

from torch import Tensor
from transformers import CLIPTokenizer

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.text import encoding as text
from engine.diffusion.text.encoding import CHUNK, Chunk, Clip, Weighted, load_tokenizer, padded
from engine.diffusion.text.text_encoders import EmbeddingToken
from engine.diffusion.text.textual_inversion import Embeddings
from engine.webui.prompt import Part, Stretch
from engine.webui.prompt_weights import Section

Parts: TypeAlias = Sequence[Part]
_NamesByToken: TypeAlias = dict[int, list[tuple[tuple[int, ...], str]]]
"""The names of embeddings with the tokens that spell them, by the first of these tokens."""

_COMMA = 267
_COMMA_BACKTRACK = 20
"""Up to this many tokens after a comma move to the next chunk instead of being split."""
_BETWEEN = 1e-3
"""Where one text ends and the next begins, as a share of the way from the lower sigma to the upper.
So a sampler that calls the model between two sigmas gets the text of the upper one's step.
"""


def encode(
    clip: Clip, positive: Parts, negative: Parts, *, sigmas: Tensor
) -> Work[tuple[Conditioning, Conditioning]]:
    """The conditioning of both prompts for a sampler that goes along `sigmas`."""
    conditional = yield from _encode_parts(clip, positive, sigmas)
    unconditional = yield from _encode_parts(clip, negative, sigmas)
    return _composed(positive, conditional, unconditional), unconditional


def _encode_parts(clip: Clip, parts: Parts, sigmas: Tensor) -> Work[Conditioning]:
    found: list[Condition] = []
    for part in parts:
        for stretch, sigma_range in sigma_ranges_of(part.stretches, sigmas):
            chunks = chunks_of(stretch.sections, clip.tokenizer, clip.embeddings)
            conditioning = yield from text.encode(clip, chunks, weigh_keeping_mean)
            found += (
                replace(each, strength=part.weight, sigma_range=sigma_range)
                for each in conditioning
            )
    return tuple(found)


def chunks_of(
    sections: Sequence[Section], tokenizer: CLIPTokenizer, embeddings: Embeddings | None = None
) -> list[Chunk]:
    """The tokens with their weights in chunks, at least one; each section begins a new chunk.

    A word that is the name of an embedding stands for it. Without `embeddings` no word does.
    """
    known = None if embeddings is None else embeddings.listed()
    names = {} if known is None else _names_by_token(known.names)
    chunks: list[list[Weighted]] = []
    for section in sections:
        builder = _ChunkBuilder()
        for word, weight in _words(section, tokenizer, names):
            if isinstance(word, int):
                builder.add(word, weight)
            elif known is not None and (found := known.find(word)) is not None:
                builder.add_embedding(found.tokens, weight)
        chunks += builder.chunks
    if len(chunks) > 1 and not chunks[-1]:
        del chunks[-1]
    return [padded(chunk) for chunk in chunks]


def _words(
    section: Section, tokenizer: CLIPTokenizer, names: _NamesByToken
) -> Iterator[tuple[int | str, float]]:
    """Tokens and names of embeddings, with their weights."""
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [words for words, _ in section], add_special_tokens=False
    )
    for (_, weight), encoding in zip(section, encoded, strict=True):
        for word in _with_names(encoding.ids, names):
            yield word, weight


def _with_names(tokens: Sequence[int], names: _NamesByToken) -> Iterator[int | str]:
    """The tokens, in which the longest names of embeddings replace the tokens that spell them."""
    at = 0
    while at < len(tokens):
        for spelling, name in names.get(tokens[at], ()):
            if tuple(tokens[at : at + len(spelling)]) == spelling:
                yield name
                at += len(spelling)
                break
        else:
            yield tokens[at]
            at += 1


@lru_cache(maxsize=8)
def _names_by_token(names: tuple[str, ...]) -> _NamesByToken:
    """The names of embeddings by the first token of their spelling, the longest spelling first.

    A name is spelled without its folder and its suffix.
    """
    tokenizer = load_tokenizer()
    found: _NamesByToken = defaultdict(list)
    for name in names:
        tokens = tokenizer(PurePosixPath(name).stem, add_special_tokens=False).input_ids
        if tokens:
            found[tokens[0]].append((tuple(tokens), name))
    for those in found.values():
        those.sort(key=lambda each: len(each[0]), reverse=True)
    return dict(found)


class _ChunkBuilder:
    """Distributes the tokens of a section over chunks."""

    def __init__(self) -> None:
        self.chunks: list[list[Weighted]] = [[]]
        self._comma = -1
        """The index of the last comma in the newest chunk; -1: it has none."""

    def add(self, token: int, weight: float) -> None:
        if len(self.chunks[-1]) == CHUNK:
            is_near = self._comma >= 0 and CHUNK - self._comma <= _COMMA_BACKTRACK
            self._begin(self._comma + 1 if is_near and token != _COMMA else CHUNK)
        elif token == _COMMA:
            self._comma = len(self.chunks[-1])
        self.chunks[-1].append((token, weight))

    def add_embedding(self, tokens: Sequence[EmbeddingToken], weight: float) -> None:
        """Add an embedding, which is split only if it is longer than a chunk."""
        for start in range(0, len(tokens), CHUNK):
            part = [(token, weight) for token in tokens[start : start + CHUNK]]
            if len(self.chunks[-1]) + len(part) > CHUNK:
                self._begin(len(self.chunks[-1]))
            self.chunks[-1] += part

    def _begin(self, at: int) -> None:
        """Begin a chunk with the tokens that the last one has from the index `at` on."""
        self.chunks.append(self.chunks[-1][at:])
        del self.chunks[-2][at:]
        self._comma = -1


def weigh_keeping_mean(chunk: Tensor, weights: Tensor, _empty: Tensor) -> Tensor:
    """Scale each token by its weight, then the whole chunk to the mean that it had before."""
    weighted = chunk * weights
    return weighted * (chunk.mean() / weighted.mean())


def sigma_ranges_of(
    stretches: Sequence[Stretch], sigmas: Tensor
) -> Iterator[tuple[Stretch, tuple[float, float]]]:
    """Each stretch that the schedule reaches, with the highest and the lowest sigma it counts at.

    Every sigma is in exactly one range.
    """
    starts = sigmas[:-1].tolist()
    highest = math.inf
    for stretch in stretches:
        ends_at = stretch.last_step + 1
        if stretch is stretches[-1] or ends_at >= len(starts):
            yield stretch, (highest, 0.0)
            return
        upper, lower = starts[stretch.last_step], starts[ends_at]
        lowest = lower + (upper - lower) * _BETWEEN
        yield stretch, (highest, lowest)
        highest = math.nextafter(lowest, 0.0)


def _composed(parts: Parts, positive: Conditioning, negative: Conditioning) -> Conditioning:
    """The positive conditioning with which each part guides with its own weight.

    Liu et al. 2022 (arXiv:2206.01714), equation 11: x0 = u + sum of cfg w_i (c_i - u). That is
    u + cfg (p - u) with p = sum of w_i c_i + (1 - sum of w_i) u, a mean whose weights sum up to 1.
    """
    rest = 1.0 - sum(part.weight for part in parts)
    if rest == 0.0:
        return positive
    return positive + tuple(replace(each, strength=each.strength * rest) for each in negative)
