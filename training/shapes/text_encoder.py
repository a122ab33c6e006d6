"""Trains the text encoder, a small CLIP text model, to recognise the scene of a caption.

The training of the UNet then starts with encodings that already distinguish the words.
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
_BATCH_SIZE = 96
_LEARNING_RATE = 2e-3
_WITH_UNKNOWN_TOKENS = 0.15
"""The share of captions that get a few unknown tokens."""
_MOST_UNKNOWN_TOKENS = 4
_NAME = "text_encoder"


class CaptionClassifier(nn.Module):
    """The encoder with heads that classify the scene, one for each of the last two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = small_encoder()
        classes = sum(CLASSES)
        self.heads = nn.ModuleList(nn.Linear(CONFIG["hidden_size"], classes) for _ in range(2))

    def forward(self, rows: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the logits of each property, for each of the two layers."""
        return [
            head(encoded[:, -1]).split(CLASSES, dim=1)
            for head, encoded in zip(self.heads, encode(self.encoder, rows), strict=True)
        ]


CLASSES = (
    MOST_SHAPES,
    *(len(SHAPE_NAMES) + 1,) * MOST_SHAPES,
    *(len(COLOUR_NAMES) + 1,) * MOST_SHAPES,
    len(COLOUR_NAMES),
    len(Relation),
    len(Size),
    ANYWHERE + 1,
)
"""The number of classes of each property of a scene, in the order of `labels_of`."""


def small_encoder() -> CLIPTextModel:
    """Return an encoder with embeddings only for the trained tokens; see `with_all_tokens`."""
    small = CONFIG | {
        "vocab_size": vocabulary.trained_count(),
        "bos_token_id": int(vocabulary.trained_index_of_token()[START]),
        "eos_token_id": int(vocabulary.trained_index_of_token()[END]),
        "pad_token_id": vocabulary.UNKNOWN,
    }
    return CLIPTextModel(CLIPTextConfig(**small))


def with_all_tokens(small: CLIPTextModel) -> dict[str, Tensor]:
    """Return weights with embeddings for all tokens of CLIP. Unknown tokens share an embedding."""
    state: dict[str, Tensor] = dict(small.state_dict())
    name = next(each for each in state if each.endswith("token_embedding.weight"))
    return state | {name: state[name][vocabulary.trained_index_of_token()]}


def encode(encoder: CLIPTextModel, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states (n, 77, width) of the last layer, and the states for clip_skip 2."""
    output = encoder(rows, output_hidden_states=True)
    return output.last_hidden_state, encoder.final_layer_norm(output.hidden_states[-2])


def captions_of(scenes: Scenes, rng: Random) -> Tensor:
    """Return (n, 77): a new caption for each scene, as indices of trained tokens."""
    texts = [caption(scenes, row, rng) for row in range(len(scenes))]
    rows = vocabulary.trained_index_of_token()[vocabulary.tokens_of(texts)]
    for row in rows:
        if rng.random() < _WITH_UNKNOWN_TOKENS:
            _insert_unknown_tokens(row, rng)
    return rows


def _insert_unknown_tokens(row: Tensor, rng: Random) -> None:
    """Insert unknown tokens at one position after the start. Only end tokens are dropped."""
    length = int((row != vocabulary.trained_index_of_token()[END]).sum())
    at, count = rng.randint(1, length), rng.randint(1, _MOST_UNKNOWN_TOKENS)
    row[at + count :] = row[at:-count].clone()
    row[at : at + count] = vocabulary.UNKNOWN


def train_text_encoder(folder: Path, *, steps: int, seed: int) -> CLIPTextModel:
    """Return an encoder that is trained to show the scene of a caption in its encodings."""
    torch.manual_seed(seed)
    classifier = CaptionClassifier()
    test = draw_scenes(np.random.default_rng((seed, 11)), 512)
    test_rows = captions_of(test, Random(f"{seed} test"))

    def loss_of(step: int) -> Tensor:
        scenes = draw_scenes(np.random.default_rng((seed, 12, step)), _BATCH_SIZE)
        rows = captions_of(scenes, Random(f"{seed} reader {step}"))
        losses = [
            functional.cross_entropy(logits, labels)
            for layer in classifier(rows)
            for logits, labels in zip(layer, labels_of(scenes), strict=True)
        ]
        return torch.stack(losses).mean()

    def scores_of() -> dict[str, float]:
        right = [
            (logits.argmax(dim=1) == labels).float().mean()
            for logits, labels in zip(classifier(test_rows)[0], labels_of(test), strict=True)
        ]
        return {"right": float(torch.stack(right).mean()), "worst": float(min(right))}

    rates = {"": _LEARNING_RATE}
    trainer = Trainer(_NAME, folder, classifier, steps=steps, learning_rates=rates)
    trainer.run(loss_of, scores_of)
    return classifier.encoder


def labels_of(scenes: Scenes) -> list[Tensor]:
    """Return a tensor (n,) with the classes of the scenes for each property."""
    present = np.arange(MOST_SHAPES) < scenes.count[:, None]
    shapes = np.where(present, scenes.shapes, len(SHAPE_NAMES))
    colours = np.where(present, scenes.colours, len(COLOUR_NAMES))
    labels = (
        scenes.count - 1,
        *shapes.T,
        *colours.T,
        scenes.background,
        scenes.relation,
        scenes.size,
        scenes.place,
    )
    return [torch.from_numpy(np.ascontiguousarray(each)) for each in labels]
