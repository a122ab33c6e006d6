"""The trained tokens of CLIP: the tokens of captions, and one token for all other tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from transformers import CLIPTokenizer

from engine.diffusion.text.encoding import chunks_of, load_tokenizer
from engine.diffusion.text.text_encoders import END, START
from training.shapes.captions import wordings

SIZE = 49408
UNKNOWN = 0
"""The index that all tokens outside of captions share."""


@cache
def tokenizer() -> CLIPTokenizer:
    return load_tokenizer()


def tokens_of(texts: Sequence[str]) -> Tensor:
    """Return the tokens of captions, (n, 77), as in the engine. A caption fits into one chunk."""
    chunks = [chunks_of(text, tokenizer())[0] for text in texts]
    return torch.tensor([[token for token, _ in chunk] for chunk in chunks])


@cache
def _used() -> tuple[int, ...]:
    # A comma after a word may change the tokens of the word.
    texts = [text for wording in wordings() for text in (wording, f"{wording},")]
    found = set(tokens_of(texts).flatten().tolist())
    return tuple(sorted(found | {START, END}))


@cache
def trained_index_of_token() -> Tensor:
    """Return (49408,): for each token of CLIP, its index among the trained tokens."""
    table = np.full(SIZE, UNKNOWN)
    table[list(_used())] = np.arange(1, len(_used()) + 1)
    return torch.from_numpy(table)


def trained_count() -> int:
    return len(_used()) + 1
