"""The tokenizer: a token for each word of captions, and one token for all other words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from engine.diffusion.families.z_image import CHAT
from training.shapes.captions import caption, wordings
from training.shapes.scenes import Scenes

UNKNOWN = 0
_SPECIAL = ("<unk>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
_ROLES = ("user", "assistant")
_PUNCTUATION = (",", ".", "-")
_AFTER_START = 2
_BEFORE_END = 3
"""The numbers of tokens that a chat has before a text and after a text."""
_WITH_UNKNOWN_TOKENS = 0.15
"""The share of captions that get a few unknown tokens."""
_MOST_UNKNOWN_TOKENS = 4


@cache
def tokenizer() -> Tokenizer:
    """Return a tokenizer of words in lower case. All words outside of captions are one token."""
    split = pre_tokenizers.Whitespace()
    words = {word for wording in wordings() for word, _ in split.pre_tokenize_str(wording.lower())}
    listed = (*_SPECIAL, *_ROLES, *sorted(words | set(_PUNCTUATION)))
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(listed))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL[UNKNOWN]))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = split
    made.add_special_tokens(list(_SPECIAL[1:]))
    return made


def ids_of(texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text in a chat message, as in the engine."""
    turns = [CHAT.format(text=text) for text in texts]
    return [each.ids for each in tokenizer().encode_batch(turns, add_special_tokens=False)]


def captions_of(scenes: Scenes, rng: Random) -> list[list[int]]:
    """Return the tokens of a new caption for each scene."""
    rows = ids_of([caption(scenes, row, rng) for row in range(len(scenes))])
    for row in rows:
        if rng.random() < _WITH_UNKNOWN_TOKENS:
            at = rng.randint(_AFTER_START, len(row) - _BEFORE_END)
            row[at:at] = [UNKNOWN] * rng.randint(1, _MOST_UNKNOWN_TOKENS)
    return rows
