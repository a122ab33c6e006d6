"""The texts of Z-Image: a user's turn of a chat with Qwen3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from tokenizers import Tokenizer
from torch import nn

from engine.batcher import Work
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.text.family_texts import FamilyTexts
from engine.diffusion.text.language_models import Qwen3, encode_texts
from engine.diffusion.text.text_encoders import EncodingCache
from engine.errors import EngineError
from engine.families.z_image import Z_IMAGE

CHAT = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class ZImageTexts(FamilyTexts):
    """Parentheses do not weigh: the encoder reads them as text."""

    title = Z_IMAGE.title
    encoder: Qwen3
    tokenizer: Tokenizer
    cache: EncodingCache

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        return (self.encoder,)

    def with_networks(self, networks: Sequence[Any]) -> Self:
        (encoder,) = networks
        return replace(self, encoder=encoder)

    def encode(self, text: str) -> Work[Conditioning]:
        ids = tuple(self.tokenizer.encode(CHAT.format(text=text), add_special_tokens=False).ids)
        if len(ids) > _MOST_TOKENS:
            raise EngineError(f"the text has {len(ids)} tokens, at most {_MOST_TOKENS} are taken")
        (states,) = yield from encode_texts(self.encoder, self.cache, [ids])
        return (Condition(states[None]),)
