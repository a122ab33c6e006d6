"""CLIP's text encoders: from 77 tokens to a state for each, and to one vector for all.

CLIP: Radford et al. 2021 (arXiv:2103.00020); 77 tokens with one start and one end. Stable Diffusion
2 and XL take open_clip's, which fill up with zeros and are read before their last layer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

START, END = 49406, 49407


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Embedding:
    """A learned word (textual inversion): (vectors, width) for each text encoder that it is for."""

    vectors: dict[str, Tensor]

    def of(self, key: str, width: int) -> Tensor | None:
        """Those for a text encoder; a file of one tensor is for whichever has its width."""
        found = self.vectors.get(key)
        if found is None and len(self.vectors) == 1:
            found = next(iter(self.vectors.values()))
        return found if found is not None and found.shape[-1] == width else None

    @property
    def tokens(self) -> list[LearnedToken]:
        """Its places in a prompt: as many as the text encoder with the most vectors needs."""
        rows = max(len(each) for each in self.vectors.values())
        return [LearnedToken(self, row) for row in range(rows)]


@dataclass(frozen=True, slots=True)
class LearnedToken:
    """One vector of an embedding, in a token's place."""

    embedding: Embedding
    row: int


Token: TypeAlias = int | LearnedToken
Tokens: TypeAlias = tuple[Token, ...]
"""77 tokens, filled up with END, however the text encoder wants it."""


class Encoded(NamedTuple):
    """(77, width), and (projected width,) where the text encoder has a projection."""

    states: Tensor
    pooled: Tensor | None


@dataclass(frozen=True, slots=True)
class Style:
    """How a kind of text encoder is fed and read."""

    key: str
    """What embeddings call it."""
    padding: int
    layer: int
    """Which is read, counted from the last, -1."""
    normed: bool
    """The last layer's norm is put on whichever is read."""
    projects: bool = False
    left_out: int = 0
    """How many of its last layers are not in the file."""

    def without_last(self) -> Style:
        return replace(self, left_out=1)


CLIP_L = Style("clip_l", padding=END, layer=-1, normed=True)
CLIP_H = Style("clip_h", padding=0, layer=-2, normed=True)
CLIP_L_OF_XL = Style("clip_l", padding=END, layer=-2, normed=False)
BIG_G = Style("clip_g", padding=0, layer=-2, normed=False, projects=True)

_serials = count()


class TextEncoder(nn.Module):
    """One of them; its weights have the names of transformers' CLIPTextModelWithProjection."""

    def __init__(self, config: CLIPTextConfig, style: Style) -> None:
        super().__init__()
        self.style = style
        self.renew()
        self.text_model = CLIPTextModel(config)
        if style.projects:
            width = config.projection_dim or config.hidden_size
            self.text_projection = nn.Linear(config.hidden_size, width, bias=False)

    def renew(self) -> None:
        """Be another one, with other weights, than the one that it is a copy of."""
        self.serial = next(_serials)
        """Unlike an id, never given twice."""

    @property
    def device(self) -> torch.device:
        return self.text_model.final_layer_norm.weight.device

    @property
    def width(self) -> int:
        width: int = self.text_model.config.hidden_size
        return width

    def forward(self, chunks: Sequence[Tokens], layer: int | None) -> list[Encoded]:
        """Every chunk read at a layer, None being the one that the style says."""
        rows = [list(self._fitted(chunk)) for chunk in chunks]
        ids = [[each if isinstance(each, int) else 0 for each in row] for row in rows]
        with self._learned(rows):
            output = self.text_model(
                torch.tensor(ids, device=self.device), output_hidden_states=True
            )
        states = self._read(output, layer if layer is not None else self.style.layer)
        pooled: Sequence[Tensor | None] = [None] * len(rows)
        if self.style.projects:
            pooled = list(self.text_projection(output.pooler_output))
        return [Encoded(*each) for each in zip(states, pooled, strict=True)]

    def _read(self, output: Any, layer: int) -> Tensor:
        at = layer + self.style.left_out
        # A layer that the model does not have means its last.
        if at >= 0 or -at > self.text_model.config.num_hidden_layers:
            last: Tensor = output.last_hidden_state
            return last
        states: Tensor = output.hidden_states[at]
        normed: Tensor = self.text_model.final_layer_norm(states) if self.style.normed else states
        return normed

    def _fitted(self, tokens: Tokens) -> Iterator[Token | Tensor]:
        """Learned tokens as vectors, those for other text encoders dropped; filled up its way."""
        end = tokens.index(END)
        taken: list[Token | Tensor] = []
        for token in tokens[:end]:
            if isinstance(token, int):
                taken.append(token)
            elif (vectors := token.embedding.of(self.style.key, self.width)) is not None:
                taken += vectors[token.row : token.row + 1]
        yield from taken
        yield END
        yield from [self.style.padding] * (len(tokens) - len(taken) - 1)

    @contextmanager
    def _learned(self, rows: Sequence[Sequence[Token | Tensor]]) -> Iterator[None]:
        """Vectors put where the words' own would be."""
        places = [
            (row, column, token)
            for row, tokens in enumerate(rows)
            for column, token in enumerate(tokens)
            if isinstance(token, Tensor)
        ]

        def put(_module: nn.Module, _ids: Any, found: Tensor) -> Tensor:
            for row, column, vector in places:
                found[row, column] = vector.to(found)
            return found

        hook = self.text_model.embeddings.token_embedding.register_forward_hook(put)
        try:
            yield
        finally:
            hook.remove()


def made_on_meta(config: dict[str, Any], style: Style) -> TextEncoder:
    """A text encoder that waits for its weights."""
    options = CLIPTextConfig(**config)
    with torch.device("meta"):
        return TextEncoder(options, style)


@dataclass
class Encodings:
    """What was encoded, by text encoder, layer and tokens, within a limit, least recently used
    first.
    """

    limit_bytes: int
    _found: OrderedDict[Hashable, Encoded] = field(default_factory=OrderedDict)
    _size_bytes: int = 0

    def get(self, key: Hashable) -> Encoded | None:
        if key in self._found:
            self._found.move_to_end(key)
        return self._found.get(key)

    def put(self, key: Hashable, encoded: Encoded) -> None:
        """Keep a copy of its own, for it may be a row of a larger tensor."""
        pooled = None if encoded.pooled is None else encoded.pooled.clone()
        kept = Encoded(encoded.states.clone(), pooled)
        self._found[key] = kept
        self._size_bytes += _size_bytes(kept)
        while self._size_bytes > self.limit_bytes:
            _, dropped = self._found.popitem(last=False)
            self._size_bytes -= _size_bytes(dropped)


def _size_bytes(encoded: Encoded) -> int:
    return sum(each.nbytes for each in encoded if each is not None)
