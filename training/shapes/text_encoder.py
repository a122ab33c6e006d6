"""The text encoder: a small CLIP text model, first trained to tell what a caption asks for.

That gives the painter's trainer a start in which words already mean something.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel

from engine.diffusion.text.text_encoders import END, START
from training.shapes import vocabulary
from training.shapes.captions import caption
from training.shapes.scenes import (
    ANYWHERE,
    COLOUR_NAMES,
    MOST_SHAPES,
    SHAPE_NAMES,
    Relation,
    Scenes,
    Size,
    draw_scenes,
)
from training.shapes.trainer import Trainer

CONFIG: dict[str, Any] = {
    "vocab_size": vocabulary.SIZE,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "projection_dim": 64,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": 1,
}
_BATCH = 96
_RATE = 2e-3
_STRANGE_WORDS = 0.15
"""Captions with a few words that no caption has."""
_MOST_STRANGE = 4
_NAME = "text_encoder"


class Reader(nn.Module):
    """The encoder with a head per question, for its last layer and for the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = small_encoder()
        answers = sum(_CHOICES)
        self.heads = nn.ModuleList(nn.Linear(CONFIG["hidden_size"], answers) for _ in range(2))

    def forward(self, rows: Tensor) -> list[tuple[Tensor, ...]]:
        """Logits per question, once for each of the two layers."""
        return [
            head(encoded[:, -1]).split(_CHOICES, dim=1)
            for head, encoded in zip(self.heads, encode(self.encoder, rows), strict=True)
        ]


_CHOICES = (
    MOST_SHAPES,
    *(len(SHAPE_NAMES) + 1,) * MOST_SHAPES,
    *(len(COLOUR_NAMES) + 1,) * MOST_SHAPES,
    len(COLOUR_NAMES),
    len(Relation),
    len(Size),
    ANYWHERE + 1,
)


def small_encoder() -> CLIPTextModel:
    """With a row for each trained token only; `with_all_tokens` gives it the rest."""
    small = CONFIG | {
        "vocab_size": vocabulary.trained_rows(),
        "bos_token_id": int(vocabulary.rows()[START]),
        "eos_token_id": int(vocabulary.rows()[END]),
        "pad_token_id": vocabulary.UNKNOWN,
    }
    return CLIPTextModel(CLIPTextConfig(**small))


def with_all_tokens(small: CLIPTextModel) -> dict[str, Tensor]:
    """The state of an encoder with CLIP's whole vocabulary; unknown tokens share a row."""
    state: dict[str, Tensor] = dict(small.state_dict())
    name = next(each for each in state if each.endswith("token_embedding.weight"))
    return state | {name: state[name][vocabulary.rows()]}


def encode(encoder: CLIPTextModel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 77, width) twice: the last layer, and the one before as clip_skip 2 takes it."""
    output = encoder(rows, output_hidden_states=True)
    return output.last_hidden_state, encoder.final_layer_norm(output.hidden_states[-2])


def captions_of(scenes: Scenes, rng: Random) -> Tensor:
    """(n, 77) trained rows of a fresh caption for each scene."""
    texts = [caption(scenes, row, rng) for row in range(len(scenes))]
    rows = vocabulary.rows()[vocabulary.tokens_of(texts)]
    for row in rows:
        if rng.random() < _STRANGE_WORDS:
            _insert_strange(row, rng)
    return rows


def _insert_strange(row: Tensor, rng: Random) -> None:
    """At one place after the start; what moves over the end are only end tokens."""
    length = int((row != vocabulary.rows()[END]).sum())
    at, count = rng.randint(1, length), rng.randint(1, _MOST_STRANGE)
    row[at + count :] = row[at:-count].clone()
    row[at : at + count] = vocabulary.UNKNOWN


def train_text_encoder(folder: Path, *, steps: int, seed: int) -> CLIPTextModel:
    """An encoder with trained rows only, whose encoding of a caption tells the scene."""
    torch.manual_seed(seed)
    reader = Reader()
    test = draw_scenes(np.random.default_rng((seed, 11)), 512)
    test_rows = captions_of(test, Random(f"{seed} test"))

    def loss_of(step: int) -> Tensor:
        scenes = draw_scenes(np.random.default_rng((seed, 12, step)), _BATCH)
        rows = captions_of(scenes, Random(f"{seed} reader {step}"))
        losses = [
            functional.cross_entropy(logits, answer)
            for layer in reader(rows)
            for logits, answer in zip(layer, _answers(scenes), strict=True)
        ]
        return torch.stack(losses).mean()

    def scores_of() -> dict[str, float]:
        right = [
            (logits.argmax(dim=1) == answer).float().mean()
            for logits, answer in zip(reader(test_rows)[0], _answers(test), strict=True)
        ]
        return {"right": float(torch.stack(right).mean()), "worst": float(min(right))}

    Trainer(_NAME, folder, reader, steps, {"": _RATE}).run(loss_of, scores_of)
    return reader.encoder


def _answers(scenes: Scenes) -> list[Tensor]:
    present = np.arange(MOST_SHAPES) < scenes.count[:, None]
    shapes = np.where(present, scenes.shapes, len(SHAPE_NAMES))
    colours = np.where(present, scenes.colours, len(COLOUR_NAMES))
    answers = (
        scenes.count - 1,
        *shapes.T,
        *colours.T,
        scenes.background,
        scenes.relation,
        scenes.size,
        scenes.place,
    )
    return [torch.from_numpy(np.ascontiguousarray(answer)) for answer in answers]
