"""Tokenizers without files: their tokens are those of Qwen's files and of SentencePiece."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from safetensors.numpy import save_file

from engine.diffusion.text.tokenizers import qwen_tokenizer, read_tokenizer
from engine.errors import CheckpointUnavailable
from tests.support.engine.spiece_model import WORDS, spiece_model

GOLDEN = Path(__file__).parents[4] / "golden"
QWEN = json.loads((GOLDEN / "qwen_tokens.json").read_text())
"""Tokens of the tokenizer that ComfyUI 0.3.75 has for Qwen3, in transformers 5.24."""


def stored(folder: Path, content: bytes) -> Path:
    path = folder / "t5.safetensors"
    save_file({"spiece_model": np.frombuffer(content, np.uint8)}, path)
    return path


@pytest.mark.parametrize("text", QWEN, ids=range(len(QWEN)))
def test_qwens_tokens_are_those_of_its_files(text: str) -> None:
    assert qwen_tokenizer().encode(text, add_special_tokens=False).ids == QWEN[text]


def test_a_tokenizer_in_a_file_has_the_tokens_of_sentencepiece(tmp_path: Path) -> None:
    content = spiece_model()
    known = sentencepiece.SentencePieceProcessor(model_proto=content)
    tokenizer = read_tokenizer(stored(tmp_path, content), "spiece_model")
    many = " ".join(random.Random(2).choices(WORDS, k=300))
    for text in (*(each for each in QWEN if "</s>" not in each), "\u2581red \u2581", many):
        assert tokenizer.encode(text, add_special_tokens=False).ids == known.encode(text), text
    ids = tokenizer.encode("red</s> square<pad>", add_special_tokens=False).ids
    assert ids == [*known.encode("red"), 1, *known.encode("square"), 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no model", "spiece_model of t5.safetensors is not a tokenizer"),
        (b"", "is not a tokenizer"),
        (spiece_model(model_type="bpe"), "only a unigram model"),
        (spiece_model(byte_fallback=True, vocab_size=400), "only a unigram model"),
    ],
    ids=["damaged", "empty", "bpe", "bytes"],
)
def test_other_models_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnavailable, match=message):
        read_tokenizer(stored(tmp_path, content), "spiece_model")
