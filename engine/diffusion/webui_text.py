"""The WebUI's way from a prompt to conditioning: its chunks, its weights, its steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor
from transformers import CLIPTokenizer

from engine.batcher import Work
from engine.diffusion import text
from engine.diffusion.conditioning import Condition, Conditioning
from engine.diffusion.text import CHUNK, Chunk, Clip, padded
from engine.webui_prompt import Part, Section, Stretch

Parts: TypeAlias = Sequence[Part]

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
            chunks = chunks_of(stretch.sections, clip.tokenizer)
            conditioning = yield from text.encode(clip, chunks, keeping_mean)
            found += (replace(each, strength=part.weight, sigmas=levels) for each in conditioning)
    return tuple(found)


def chunks_of(sections: Sequence[Section], tokenizer: CLIPTokenizer) -> list[Chunk]:
    """The tokens with their weights; each section begins a chunk, at least one there is."""
    chunks = [chunk for section in sections for chunk in _section_chunks(section, tokenizer)]
    if len(chunks) > 1 and not chunks[-1]:
        del chunks[-1]
    return [padded(chunk) for chunk in chunks]


def _section_chunks(section: Section, tokenizer: CLIPTokenizer) -> list[list[tuple[int, float]]]:
    encoded = tokenizer.backend_tokenizer.encode_batch(
        [words for words, _ in section], add_special_tokens=False
    )
    chunks: list[list[tuple[int, float]]] = [[]]
    comma = -1
    for (_, weight), encoding in zip(section, encoded, strict=True):
        for token in encoding.ids:
            if len(chunks[-1]) == CHUNK:
                is_near = comma >= 0 and token != _COMMA and CHUNK - comma <= _COMMA_BACKTRACK
                at = comma + 1 if is_near else CHUNK
                chunks.append(chunks[-1][at:])
                del chunks[-2][at:]
                comma = -1
            elif token == _COMMA:
                comma = len(chunks[-1])
            chunks[-1].append((token, weight))
    return chunks


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
