"""A small SentencePiece model of its own library."""

from __future__ import annotations

import io
import random
from typing import Any

import sentencepiece

_TEXT = "a red square on the old table, café naïve crème; 12 × ½ cats' night-light"
WORDS = _TEXT.split()


def spiece_model(**options: Any) -> bytes:
    """A small SentencePiece model that normalizes and numbers its special tokens as T5's does."""
    numbers = random.Random(1)
    lines = [" ".join(numbers.choices(WORDS, k=8)) for _ in range(400)]
    content = io.BytesIO()
    given = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "vocab_size": 90, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=content,
        hard_vocab_limit=False,
        minloglevel=2,
        **given,
    )
    return content.getvalue()
