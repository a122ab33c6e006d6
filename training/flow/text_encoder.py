"""Trains the text encoder, a small Qwen3, to recognise the scene that a caption describes.

The training of the transformer then starts with encodings that already distinguish the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3Config, Qwen3Model

from training.flow.tokens import captions_of, tokenizer
from training.shapes.scenes import draw_scenes
from training.shapes.text_encoder import CLASSES, labels_of
from training.shapes.trainer import Trainer

LAYERS = 2
"""The number of trained layers. The family uses the states before the last layer of a file, so a
file has one more layer.
"""
CONFIG: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
    "use_cache": False,
}
_BATCH_SIZE = 96
_LEARNING_RATE = 2e-3
_NAME = "text_encoder"


def small_encoder() -> Qwen3Model:
    """Return an untrained encoder without the norm after its last layer."""
    encoder = Qwen3Model(Qwen3Config(vocab_size=tokenizer().get_vocab_size(), **CONFIG))
    encoder.norm = nn.Identity()
    return encoder


def encode(encoder: Qwen3Model, rows: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the states (tokens, width) of each text."""
    longest = max(map(len, rows))
    # A token does not attend to later tokens, so the padding does not change the states.
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    states = encoder(ids).last_hidden_state
    return [states[at, : len(row)] for at, row in enumerate(rows)]


class CaptionClassifier(nn.Module):
    """The encoder with a head that classifies the scene by the last token's state."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = small_encoder()
        self.head = nn.Sequential(
            nn.RMSNorm(CONFIG["hidden_size"]), nn.Linear(CONFIG["hidden_size"], sum(CLASSES))
        )

    def forward(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
        last = torch.stack([states[-1] for states in encode(self.encoder, rows)])
        logits: Tensor = self.head(last)
        return logits.split(CLASSES, dim=1)


def train_text_encoder(folder: Path, *, steps: int, seed: int, cpu_budget_s: float) -> Qwen3Model:
    """Return an encoder that is trained to show the scene of a caption in its encodings."""
    torch.manual_seed(seed)
    classifier = CaptionClassifier()
    test = draw_scenes(np.random.default_rng((seed, 11)), 512)
    test_rows = captions_of(test, Random(f"{seed} test"))

    def loss_of(step: int) -> Tensor:
        scenes = draw_scenes(np.random.default_rng((seed, 12, step)), _BATCH_SIZE)
        rows = captions_of(scenes, Random(f"{seed} reader {step}"))
        return torch.stack([
            functional.cross_entropy(logits, labels)
            for logits, labels in zip(classifier(rows), labels_of(scenes), strict=True)
        ]).mean()  # fmt: skip

    def scores_of() -> dict[str, float]:
        right = [
            (logits.argmax(dim=1) == labels).float().mean()
            for logits, labels in zip(classifier(test_rows), labels_of(test), strict=True)
        ]
        return {"right": float(torch.stack(right).mean()), "worst": float(min(right))}

    rates = {"": _LEARNING_RATE}
    trainer = Trainer(
        _NAME, folder, classifier, steps=steps, learning_rates=rates, cpu_budget_s=cpu_budget_s
    )
    trainer.run(loss_of, scores_of)
    return classifier.encoder
