"""The WebUI's way from a prompt to conditioning: its chunks, its weights, its steps."""

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
from engine.diffusion.text.text_encoders import LearnedToken
from engine.diffusion.text.textual_inversion import Embeddings
from engine.webui.prompt import Part, Section, Stretch

Parts: TypeAlias = Sequence[Part]
_Spelled: TypeAlias = dict[int, list[tuple[tuple[int, ...], str]]]

_COMMA = 267
_COMMA_BACKTRACK = 20
"""As many tokens behind a comma move to the next chunk rather than be cut in two."""
_BETWEEN = 1e-3
"""Where a text gives way to the next one, as a share of the way up to the level before: what a
sampler asks between two levels belongs to the upper one's step."""


def encode(
    clip: Clip, positive: Parts, negative: Parts, *, sigmas: Tensor
) -> Work[tuple[Conditioning, Conditioning]]:
    """What both prompts guide to, along the levels that a sampler goes."""
    wanted = yield from _encode_parts(clip, positive, sigmas)
    unwanted = yield from _encode_parts(clip, negative, sigmas)
    return _composed(positive, wanted, unwanted), unwanted


def _encode_parts(clip: Clip, parts: Parts, sigmas: Tensor) -> Work[Conditioning]:
    found: list[Condition] = []
    for part in parts:
        for stretch, levels in ranges_of(part.stretches, sigmas):
            chunks = chunks_of(stretch.sections, clip.tokenizer, clip.embeddings)
            conditioning = yield from text.encode(clip, chunks, keeping_mean)
            found += (
                replace(each, strength=part.weight, sigma_range=levels) for each in conditioning
            )
    return tuple(found)


def chunks_of(
    sections: Sequence[Section], tokenizer: CLIPTokenizer, embeddings: Embeddings | None = None
) -> list[Chunk]:
    """The tokens with their weights; each section begins a chunk, at least one there is.

    Words that are the name of an embedding stand for it; without `embeddings` there are none.
    """
    spelled = _spelled(embeddings.names) if embeddings is not None else {}
    chunks: list[list[Weighted]] = []
    for section in sections:
        filling = _Filling()
        for word, weight in _words(section, tokenizer, spelled):
            if isinstance(word, int):
                filling.add(word, weight)
            elif embeddings is not None and (found := embeddings.find(word)) is not None:
                filling.add_learned(found.tokens, weight)
        chunks += filling.chunks
    if len(chunks) > 1 and not chunks[-1]:
        del chunks[-1]
    return [padded(chunk) for chunk in chunks]


def _words(
    section: Section, tokenizer: CLIPTokenizer, spelled: _Spelled
) -> Iterator[tuple[int | str, float]]:
    """Tokens and names of embeddings, with their weights."""
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [words for words, _ in section], add_special_tokens=False
    )
    for (_, weight), encoding in zip(section, encoded, strict=True):
        for word in _with_names(encoding.ids, spelled):
            yield word, weight


def _with_names(tokens: Sequence[int], spelled: _Spelled) -> Iterator[int | str]:
    """The tokens, those that spell a name replaced by it; the longest name counts."""
    at = 0
    while at < len(tokens):
        for spelling, name in spelled.get(tokens[at], ()):
            if tuple(tokens[at : at + len(spelling)]) == spelling:
                yield name
                at += len(spelling)
                break
        else:
            yield tokens[at]
            at += 1


@lru_cache(maxsize=8)
def _spelled(names: tuple[str, ...]) -> _Spelled:
    """The names of embeddings, without folder and suffix, by the first of the tokens that spell
    them; the longest comes first.
    """
    tokenizer = load_tokenizer()
    found: _Spelled = defaultdict(list)
    for name in names:
        tokens = tokenizer(PurePosixPath(name).stem, add_special_tokens=False).input_ids
        if tokens:
            found[tokens[0]].append((tuple(tokens), name))
    for those in found.values():
        those.sort(key=lambda each: len(each[0]), reverse=True)
    return dict(found)


class _Filling:
    """The chunks of a section, while they are filled."""

    def __init__(self) -> None:
        self.chunks: list[list[Weighted]] = [[]]
        self._comma = -1
        """Where the newest chunk has its last one."""

    def add(self, token: int, weight: float) -> None:
        if len(self.chunks[-1]) == CHUNK:
            is_near = self._comma >= 0 and CHUNK - self._comma <= _COMMA_BACKTRACK
            self._begin(self._comma + 1 if is_near and token != _COMMA else CHUNK)
        elif token == _COMMA:
            self._comma = len(self.chunks[-1])
        self.chunks[-1].append((token, weight))

    def add_learned(self, tokens: Sequence[LearnedToken], weight: float) -> None:
        """Never cut in two, unless there are more than a chunk takes."""
        for start in range(0, len(tokens), CHUNK):
            part = [(token, weight) for token in tokens[start : start + CHUNK]]
            if len(self.chunks[-1]) + len(part) > CHUNK:
                self._begin(len(self.chunks[-1]))
            self.chunks[-1] += part

    def _begin(self, at: int) -> None:
        """Another chunk, with what the last one has from there on."""
        self.chunks.append(self.chunks[-1][at:])
        del self.chunks[-2][at:]
        self._comma = -1


def keeping_mean(chunk: Tensor, weights: Tensor, _empty: Tensor) -> Tensor:
    """A weight scales a token; the chunk is then scaled to the mean that it had."""
    weighted = chunk * weights
    return weighted * (chunk.mean() / weighted.mean())


def ranges_of(
    stretches: Sequence[Stretch], sigmas: Tensor
) -> Iterator[tuple[Stretch, tuple[float, float]]]:
    """Each stretch that is reached, with the levels from which down to which it counts.

    Together they hold every number once: no level falls between two, and none counts twice.
    """
    levels = sigmas[:-1].tolist()
    most = math.inf
    for stretch in stretches:
        ends_at = stretch.last_step + 1
        if stretch is stretches[-1] or ends_at >= len(levels):
            yield stretch, (most, 0.0)
            return
        above, below = levels[stretch.last_step], levels[ends_at]
        least = below + (above - below) * _BETWEEN
        yield stretch, (most, least)
        most = math.nextafter(least, 0.0)


def _composed(parts: Parts, positive: Conditioning, negative: Conditioning) -> Conditioning:
    """What guidance is to take for the positive half, so that each part pulls with its own weight.

    Liu et al. 2022 (arXiv:2206.01714), equation 11: x0 = u + sum of cfg w_i (c_i - u). That is
    u + cfg (p - u) with p = sum of w_i c_i + (1 - sum of w_i) u, a mean whose weights sum up to 1.
    """
    rest = 1.0 - sum(part.weight for part in parts)
    if rest == 0.0:
        return positive
    return positive + tuple(replace(each, strength=each.strength * rest) for each in negative)
