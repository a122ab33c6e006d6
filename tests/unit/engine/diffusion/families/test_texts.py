"""The tokens of texts for the families of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.diffusion.families.z_image import CHAT
from engine.diffusion.loading.checkpoints import load_texts
from tests.support.engine.latents import farthest
from tests.support.engine.stores import store_of
from tests.support.engine.transformer_graphs import flux_graph
from tests.support.engine.workflows import Submit


@pytest.mark.parametrize(
    ("text", "chat"),
    [
        ("a (red:1.2) square", [CHAT.format(text="a (red:1.2) square")]),
        (r"a \(red\) \[square\]", [CHAT.format(text=r"a (red) \[square\]")]),
        (
            "a embedding:none, red\nsquare",
            [
                "<|im_start|>user\na",
                ", red square<|im_end|> <|im_start|>assistant",
            ],
        ),
        ("embedding:none", ["<|im_start|>user", "<|im_start|>assistant"]),
    ],
)
def test_a_text_for_z_image_has_the_tokens_of_comfyui(
    text: str, chat: list[str], transformers_root: Path, z_image: dict[str, Any]
) -> None:
    store = store_of(transformers_root)
    request = next(load_texts(store, ["tiny-qwen3.safetensors"]).encode(text))
    expected = [z_image["tokenizer"].encode(each, add_special_tokens=False).ids for each in chat]
    assert request.texts == [tuple(token for ids in expected for token in ids)]  # type: ignore[attr-defined]


def test_the_name_of_an_embedding_is_left_out_of_t5s_text(start: Submit) -> None:
    texts = ("a (red:1.2) square", "a (red embedding:none:1.2) embedding:no square", "no square")
    first, same, other = (start(flux_graph(text, steps=1)).images()[0].pixels for text in texts)
    assert farthest(first, same) <= 1
    assert farthest(first, other) > 1
