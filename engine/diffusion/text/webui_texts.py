"""Encodes prompts as in the WebUI: chunks, weights, and texts that change during sampling."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import CLIPTokenizer

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.text import encoding as text
from engine.diffusion.text.encoding import (
    CHUNK,
    ApplyWeights,
    Chunk,
    Clip,
    FamilyTexts,
    Weighted,
    load_tokenizer,
    padded,
    padded_to_length,
)
from engine.diffusion.text.text_encoders import Embedding, EmbeddingToken
from engine.diffusion.text.textual_inversion import Embeddings
from engine.webui.parameters import Emphasis
from engine.webui.plain_text import plain_text
from engine.webui.prompt import Part, Section, Segment, Stretch

Clips: TypeAlias = Clip | FamilyTexts
Parts: TypeAlias = Sequence[Part]
_Spelled: TypeAlias = tuple[tuple[int, ...], str]
"""The tokens of an embedding's name, and the name."""
_NamesByToken: TypeAlias = dict[int, list[_Spelled]]
"""The names of embeddings and their tokens, by the first token."""

_COMMA = 267
_COMMA_BACKTRACK = 20
"""When a chunk is full, the tokens after its last comma move to the next chunk, so that a phrase is
not split. If the comma is further than this number of tokens from the end, no token moves.
"""
_BETWEEN = 1e-3
"""The sigma at which the text changes, as a fraction of the distance from the lower to the upper
sigma of a step. This fraction is small, so that a call between the two sigmas gets the text of the
upper sigma.
"""


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Options of the WebUI's encoding. By default, all options are off."""

    pads_texts: bool = False
    """Whether all texts of a part are padded to the length of the longest text, and all parts to
    the length of the longest part.
    """
    zeroes_empty_negative: bool = False
    """Whether SDXL gets zeros for an empty negative prompt."""
    makes_plain: bool = False
    """Whether prompts are changed by `plain_text`. The name of an embedding that does not fit every
    text encoder is then an ordinary word.
    """
    emphasis: Emphasis = "Original"


_PLAIN = TextOptions()


def encode(
    clip: Clips,
    positive: Parts,
    negative: Parts,
    *,
    sigmas: Tensor,
    options: TextOptions = _PLAIN,
    on_left_out: Callable[[str], None] = lambda _name: None,
) -> Work[tuple[Conditioning, Conditioning]]:
    """Return the conditionings of both prompts for a sampler that steps along `sigmas`.

    `on_left_out` is called with the name of each known embedding that lacks vectors for a text
    encoder and, for language models, of each `embedding:name`.
    """
    if isinstance(clip, FamilyTexts):
        own = yield from _encode_whole(clip, positive, sigmas, on_left_out)
        other = yield from _encode_whole(clip, negative, sigmas, on_left_out)
        return _composed(positive, own, other), other
    conditional = yield from _encode_parts(
        clip, positive, sigmas, options=options, on_left_out=on_left_out
    )
    unconditional = yield from _encode_parts(
        clip, negative, sigmas, options=options, on_left_out=on_left_out
    )
    if options.zeroes_empty_negative and clip.has_pooled and _is_empty(negative):
        unconditional = tuple(each.zeroed_out() for each in unconditional)
    return _composed(positive, conditional, unconditional), unconditional


def _encode_whole(
    clip: FamilyTexts, parts: Parts, sigmas: Tensor, on_left_out: Callable[[str], None]
) -> Work[Conditioning]:
    """Encode texts for a family that has neither chunks nor the WebUI's weights."""
    found: list[Condition] = []
    for part in parts:
        for stretch, sigma_range in sigma_ranges_of(part.stretches, sigmas):
            words = " ".join("".join(each for each, _ in some) for some in stretch.sections)
            for name in clip.embeddings_left_out(words):
                on_left_out(name)
            conditioning = yield from clip.encode(words)
            found += (
                replace(each, strength=part.weight, sigma_range=sigma_range)
                for each in conditioning
            )
    return tuple(found)


def _is_empty(parts: Parts) -> bool:
    sections = [each.sections for part in parts for each in part.stretches]
    return all(len(each) == 1 and not each[0] for each in sections)


def _encode_parts(
    clip: Clip,
    parts: Parts,
    sigmas: Tensor,
    *,
    options: TextOptions,
    on_left_out: Callable[[str], None],
) -> Work[Conditioning]:
    found: list[Condition] = []
    weigh = _WEIGHINGS[options.emphasis]
    for part in parts:
        texts = dict.fromkeys(each.sections for each in part.stretches)
        chunks = {each: _chunks(clip, each, options, on_left_out) for each in texts}
        longest = max(map(len, chunks.values()))
        for stretch, sigma_range in sigma_ranges_of(part.stretches, sigmas):
            own = chunks[stretch.sections]
            padded_chunks = padded_to_length(own, longest) if options.pads_texts else own
            conditioning = yield from text.encode(clip, padded_chunks, weigh)
            found += (
                replace(each, strength=part.weight, sigma_range=sigma_range)
                for each in conditioning
            )
    return tuple(map(_padded_to(found), found) if options.pads_texts else found)


def _padded_to(conditions: Sequence[Condition]) -> Callable[[Condition], Condition]:
    """Return a function that repeats a text's last vector up to the longest of `conditions`."""
    longest = max(each.tokens.shape[1] for each in conditions)

    def pad(condition: Condition) -> Condition:
        tokens = condition.tokens
        missing = longest - tokens.shape[1]
        last = tokens[:, -1:].expand(-1, missing, -1)
        return replace(condition, tokens=torch.cat([tokens, last], dim=1)) if missing else condition

    return pad


def _chunks(
    clip: Clip,
    sections: Sequence[Section],
    options: TextOptions,
    on_left_out: Callable[[str], None],
) -> list[Chunk]:
    def is_used(name: str, embedding: Embedding) -> bool:
        if clip.fits(embedding):
            return True
        on_left_out(PurePosixPath(name).stem)
        return not options.makes_plain

    texts: Sequence[Sequence[Segment]] = sections
    if options.makes_plain:
        texts = [[(plain_text(words), weight) for words, weight in each] for each in sections]
    return chunks_of(texts, clip.tokenizer, clip.embeddings, is_used)


def chunks_of(
    sections: Sequence[Sequence[Segment]],
    tokenizer: CLIPTokenizer,
    embeddings: Embeddings | None = None,
    is_used: Callable[[str, Embedding], bool] = lambda _name, _embedding: True,
) -> list[Chunk]:
    """Return the tokens with their weights in chunks. There is at least one chunk.

    Each section begins a new chunk. The name of an embedding is replaced by the embedding's tokens.
    If there are no `embeddings`, or if `is_used` is false for an embedding, the name stays a word.
    """
    known = None if embeddings is None else embeddings.listed()
    names = {} if known is None else _names_by_token(known.names)
    chunks: list[list[Weighted]] = []
    for section in sections:
        builder = _ChunkBuilder()
        for word, weight in _words(section, tokenizer, names):
            if isinstance(word, int):
                builder.add(word, weight)
                continue
            spelling, name = word
            found = None if known is None else known.find(name)
            if found is not None and is_used(name, found):
                builder.add_embedding(found.tokens, weight)
            elif found is not None:
                for token in spelling:
                    builder.add(token, weight)
        chunks += builder.chunks
    if len(chunks) > 1 and not chunks[-1]:
        del chunks[-1]
    return [padded(chunk) for chunk in chunks]


def _words(
    section: Sequence[Segment], tokenizer: CLIPTokenizer, names: _NamesByToken
) -> Iterator[tuple[int | _Spelled, float]]:
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [words for words, _ in section], add_special_tokens=False
    )
    for (_, weight), encoding in zip(section, encoded, strict=True):
        for word in _with_names(encoding.ids, names):
            yield word, weight


def _with_names(tokens: Sequence[int], names: _NamesByToken) -> Iterator[int | _Spelled]:
    """Yield the tokens, with the longest names of embeddings in place of the names' tokens."""
    at = 0
    while at < len(tokens):
        for spelling, name in names.get(tokens[at], ()):
            if tuple(tokens[at : at + len(spelling)]) == spelling:
                yield spelling, name
                at += len(spelling)
                break
        else:
            yield tokens[at]
            at += 1


@lru_cache(maxsize=8)
def _names_by_token(names: tuple[str, ...]) -> _NamesByToken:
    """Return names of embeddings by the first token of the name without its file extension.

    The names with the most tokens come first.
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
        """The index of the last comma in the newest chunk. -1: there is no comma."""

    def add(self, token: int, weight: float) -> None:
        if len(self.chunks[-1]) == CHUNK:
            is_near = self._comma >= 0 and CHUNK - self._comma <= _COMMA_BACKTRACK
            self._begin(self._comma + 1 if is_near and token != _COMMA else CHUNK)
        elif token == _COMMA:
            self._comma = len(self.chunks[-1])
        self.chunks[-1].append((token, weight))

    def add_embedding(self, tokens: Sequence[EmbeddingToken], weight: float) -> None:
        """Add an embedding. Only an embedding that is longer than a chunk is split."""
        for start in range(0, len(tokens), CHUNK):
            part = [(token, weight) for token in tokens[start : start + CHUNK]]
            if len(self.chunks[-1]) + len(part) > CHUNK:
                self._begin(len(self.chunks[-1]))
            self.chunks[-1] += part

    def _begin(self, at: int) -> None:
        """Begin a new chunk with the tokens of the last chunk from the index `at` on."""
        self.chunks.append(self.chunks[-1][at:])
        del self.chunks[-2][at:]
        self._comma = -1


def weigh_keeping_mean(chunk: Tensor, weights: Tensor, _empty: Tensor) -> Tensor:
    """Scale each token by its weight, and then scale the chunk so that its mean is unchanged."""
    weighted = chunk * weights
    return weighted * (chunk.mean() / weighted.mean())


_WEIGHINGS: dict[Emphasis, ApplyWeights] = {
    "Original": weigh_keeping_mean,
    "No norm": lambda chunk, weights, _empty: chunk * weights,
    "Ignore": lambda chunk, _weights, _empty: chunk,
}


def sigma_ranges_of(
    stretches: Sequence[Stretch], sigmas: Tensor
) -> Iterator[tuple[Stretch, tuple[float, float]]]:
    """Yield each stretch that the schedule reaches, with its highest and lowest sigma.

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
    """Return the positive conditioning in which each part has its own weight.

    Equation 11 of Liu et al. 2022 (arXiv:2206.01714) is x0 = u + sum of cfg w_i (c_i - u). This
    equals u + cfg (p - u), where p = sum of w_i c_i + (1 - sum of w_i) u. The weights in p sum up
    to 1, so p is a mean.
    """
    rest = 1.0 - sum(part.weight for part in parts)
    if rest == 0.0:
        return positive
    return positive + tuple(replace(each, strength=each.strength * rest) for each in negative)
