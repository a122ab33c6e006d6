"""The text encoders of CLIP (Radford et al. 2021, arXiv:2103.00020).

The input is 77 tokens with one start and one end. The output is a hidden state for each token, and
one pooled vector for all tokens. Stable Diffusion 2 and XL have encoders of open_clip. For these
encoders, texts are padded with zeros, and the states before the last layer are used.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

START, END = 49406, 49407


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Embedding:
    """A textual inversion embedding: its vectors (n, width) for each text encoder."""

    vectors: dict[str, Tensor]

    def vectors_for(self, key: str, width: int) -> Tensor | None:
        """Return the vectors for a text encoder, or None if no vectors fit the encoder.

        If the embedding has only one tensor, the tensor fits every encoder of the same width.
        """
        found = self.vectors.get(key)
        if found is None and len(self.vectors) == 1:
            found = next(iter(self.vectors.values()))
        return found if found is not None and found.shape[-1] == width else None

    @property
    def tokens(self) -> list[EmbeddingToken]:
        """The tokens for a prompt: as many as the largest number of vectors for one encoder."""
        rows = max(len(each) for each in self.vectors.values())
        return [EmbeddingToken(self, row) for row in range(rows)]


@dataclass(frozen=True, slots=True)
class EmbeddingToken:
    """One vector of an embedding, used as a token."""

    embedding: Embedding
    index: int


Token: TypeAlias = int | EmbeddingToken
Tokens: TypeAlias = tuple[Token, ...]
"""77 tokens. They are padded with END, also for text encoders that have another padding."""


class Encoded(NamedTuple):
    """The result of a text encoder for 77 tokens."""

    states: Tensor
    """(77, width): hidden states."""
    pooled: Tensor | None
    """(projected width,). None: the encoder has no pooled output."""


@dataclass(frozen=True, slots=True)
class TextEncoderSpec:
    """The padding of a kind of text encoder, and the outputs that are used."""

    embedding_key: str
    """The name of the encoder's vectors in the file of an embedding."""
    pad_token: int
    layer: int
    """The layer whose hidden states are used. -1 is the last layer."""
    has_final_norm: bool
    """Whether the final layer norm is also applied to the states of earlier layers."""
    has_projection: bool = False
    is_pooled: bool = False
    """Whether the pooled vector is the state of the end token, without a projection."""
    missing_layers: int = 0
    """The number of last layers that are not in the file."""

    def without_last_layer(self) -> TextEncoderSpec:
        return replace(self, missing_layers=1)


CLIP_L = TextEncoderSpec("clip_l", pad_token=END, layer=-1, has_final_norm=True, is_pooled=True)
CLIP_H = TextEncoderSpec("clip_h", pad_token=0, layer=-2, has_final_norm=True)
SDXL_CLIP_L = TextEncoderSpec("clip_l", pad_token=END, layer=-2, has_final_norm=False)
CLIP_G = TextEncoderSpec("clip_g", pad_token=0, layer=-2, has_final_norm=False, has_projection=True)

_serials = count()


def next_serial() -> int:
    """Return a number for a text encoder. Unlike an `id`, no number is returned twice."""
    return next(_serials)


class TextEncoder(nn.Module):
    """A text encoder with the weight names of transformers' CLIPTextModelWithProjection."""

    rounded_to: ClassVar[torch.dtype] = torch.float16
    """The data type to which merged weights are rounded."""

    def __init__(self, config: CLIPTextConfig, spec: TextEncoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.renew_serial()
        self.text_model = CLIPTextModel(config)
        if spec.has_projection:
            width = config.projection_dim or config.hidden_size
            self.text_projection = nn.Linear(config.hidden_size, width, bias=False)

    def renew_serial(self) -> None:
        """Set a new serial number. A copy with other weights needs another number."""
        self.serial = next_serial()

    @property
    def device(self) -> torch.device:
        return self.text_model.final_layer_norm.weight.device

    @property
    def width(self) -> int:
        width: int = self.text_model.config.hidden_size
        return width

    def forward(self, chunks: Sequence[Tokens], layer: int | None) -> list[Encoded]:
        """Return the hidden states of `layer` for each chunk. None: the layer in the spec."""
        rows = [list(self._fitted(chunk)) for chunk in chunks]
        ids = [[each if isinstance(each, int) else 0 for each in row] for row in rows]
        with self._embeddings_inserted(rows):
            output = self.text_model(
                torch.tensor(ids, device=self.device), output_hidden_states=True
            )
        states = self._read(output, layer if layer is not None else self.spec.layer)
        pooled: Sequence[Tensor | None] = [None] * len(rows)
        if self.spec.has_projection:
            pooled = list(self.text_projection(output.pooler_output))
        elif self.spec.is_pooled:
            pooled = list(output.pooler_output)
        return [Encoded(*each) for each in zip(states, pooled, strict=True)]

    def _read(self, output: Any, layer: int) -> Tensor:
        at = layer + self.spec.missing_layers
        # A number outside of the model's layers means the last layer.
        if at >= 0 or -at > self.text_model.config.num_hidden_layers:
            last: Tensor = output.last_hidden_state
            return last
        states: Tensor = output.hidden_states[at]
        if self.spec.has_final_norm:
            states = self.text_model.final_layer_norm(states)
        return states

    def _fitted(self, tokens: Tokens) -> Iterator[Token | Tensor]:
        """Yield the tokens with this encoder's padding, and with the vectors of embeddings.

        An embedding without vectors for this encoder is left out.
        """
        end, key = tokens.index(END), self.spec.embedding_key
        fitted: list[Token | Tensor] = []
        for token in tokens[:end]:
            if isinstance(token, int):
                fitted.append(token)
            elif (vectors := token.embedding.vectors_for(key, self.width)) is not None:
                fitted += vectors[token.index : token.index + 1]
        yield from fitted
        yield END
        yield from [self.spec.pad_token] * (len(tokens) - len(fitted) - 1)

    @contextmanager
    def _embeddings_inserted(self, rows: Sequence[Sequence[Token | Tensor]]) -> Iterator[None]:
        """Replace outputs of the token embedding by vectors of embeddings within this context."""
        positions = [
            (row, column, token)
            for row, tokens in enumerate(rows)
            for column, token in enumerate(tokens)
            if isinstance(token, Tensor)
        ]

        def put(_module: nn.Module, _ids: Any, found: Tensor) -> Tensor:
            for row, column, vector in positions:
                found[row, column] = vector.to(found)
            return found

        hook = self.text_model.embeddings.token_embedding.register_forward_hook(put)
        try:
            yield
        finally:
            hook.remove()


def made_on_meta(config: dict[str, Any], spec: TextEncoderSpec) -> TextEncoder:
    options = CLIPTextConfig(**config)
    with torch.device("meta"):
        return TextEncoder(options, spec)


@dataclass
class EncodingCache:
    """Encoded texts. If the cache is full, the least recently used texts are dropped."""

    limit_bytes: int
    _entries: OrderedDict[Hashable, Encoded] = field(default_factory=OrderedDict)
    _size_bytes: int = 0

    def get(self, key: Hashable) -> Encoded | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Hashable, encoded: Encoded) -> None:
        """Keep a copy, because the tensors may be slices of larger tensors."""
        pooled = None if encoded.pooled is None else encoded.pooled.clone()
        kept = Encoded(encoded.states.clone(), pooled)
        self._entries[key] = kept
        self._size_bytes += _size_bytes(kept)
        while self._size_bytes > self.limit_bytes:
            _, dropped = self._entries.popitem(last=False)
            self._size_bytes -= _size_bytes(dropped)

    def clear(self) -> bool:
        """Drop all entries. Returns whether there were entries."""
        had_any = bool(self._entries)
        self._entries.clear()
        self._size_bytes = 0
        return had_any


def _size_bytes(encoded: Encoded) -> int:
    return sum(each.nbytes for each in encoded if each is not None)
