"""Language models that encode texts: Qwen3 and the encoder of T5.

The result is the hidden states of a model. The sizes of a model are derived from the shapes of its
weights.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model, T5Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.t5.modeling_t5 import T5Stack

from engine.batcher import Request, Work
from engine.diffusion.device_error import memory_checked
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.streaming import device_of
from engine.diffusion.text.text_encoders import Encoded, EncodingCache, next_serial
from engine.stages import Stage

Ids: TypeAlias = tuple[int, ...]
_QWEN_THETA = 1_000_000.0
_QWEN_EPS = 1e-6


class LanguageModel(nn.Module):
    """A model of the library transformers, reduced to the parts that encode texts."""

    kind: ClassVar[str]
    checkpoint_name: ClassVar[str]
    """The name of the model in a checkpoint with several models."""
    model: Any
    rounded_to: torch.dtype = torch.float32
    """The data type to which merged weights are rounded: that of the file if it has 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.renew_serial()

    def renew_serial(self) -> None:
        """Set a new serial number. A copy with other weights needs another number."""
        self.serial = next_serial()

    @property
    def device(self) -> torch.device:
        return device_of(self)

    @property
    def vocabulary(self) -> int:
        """The number of tokens in the model's vocabulary."""
        known: int = self.model.config.vocab_size
        return known

    @abstractmethod
    def key_map(self, names: Iterable[str], keys: Mapping[str, Any]) -> KeyMap:
        """Return, for each weight, its tensor in a file without a prefix."""

    @abstractmethod
    def layer_key(self, name: str) -> str:
        """Return the name that a layer or weight has in a file without a prefix."""

    @abstractmethod
    def encoded(self, texts: Sequence[Ids]) -> list[Tensor]:
        """Return the states (tokens, width) of each text in float32."""

    def finish(self) -> None:
        """Create the parts that files do not contain, after the weights are loaded."""


class Qwen3(LanguageModel):
    """Qwen3 (Yang et al. 2025, arXiv:2505.09388). The states before the last layer are used."""

    kind = "qwen3"
    checkpoint_name = "qwen3_4b"

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        own = {key.removeprefix("model."): shape for key, shape in shapes.items()}
        vocabulary, width = own["embed_tokens.weight"]
        (head,) = own["layers.0.self_attn.q_norm.weight"]
        layers = {key.split(".")[1] for key in own if key.startswith("layers.")}
        config = Qwen3Config(
            vocab_size=vocabulary,
            hidden_size=width,
            head_dim=head,
            # The states before the last layer are used, so the last layer is left out.
            num_hidden_layers=len(layers) - 1,
            num_attention_heads=own["layers.0.self_attn.q_proj.weight"][0] // head,
            num_key_value_heads=own["layers.0.self_attn.k_proj.weight"][0] // head,
            intermediate_size=own["layers.0.mlp.gate_proj.weight"][0],
            rms_norm_eps=_QWEN_EPS,
            rope_parameters={"rope_theta": _QWEN_THETA, "rope_type": "default"},
        )
        self.config = config
        self.model = Qwen3Model(config)
        self.model.norm = nn.Identity()

    def key_map(self, names: Iterable[str], keys: Mapping[str, Any]) -> KeyMap:
        return {
            name: StoredTensor(name if name in keys else name.removeprefix("model."))
            for name in names
        }

    def layer_key(self, name: str) -> str:
        return name

    def finish(self) -> None:
        self.model.rotary_emb = Qwen3RotaryEmbedding(self.config).to(self.device)

    def encoded(self, texts: Sequence[Ids]) -> list[Tensor]:
        longest = max(map(len, texts))
        # A token does not attend to later tokens, so the padding does not change the states.
        ids = [[*text, *[0] * (longest - len(text))] for text in texts]
        found = self.model(torch.tensor(ids, device=self.device), use_cache=False)
        states = found.last_hidden_state.float()
        return [row[: len(text)] for row, text in zip(states, texts, strict=True)]


class T5(LanguageModel):
    """The encoder of T5 version 1.1 (Raffel et al. 2019, arXiv:1910.10683)."""

    kind = checkpoint_name = "t5xxl"

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        block = "encoder.block.0.layer"
        buckets, heads = shapes[f"{block}.0.SelfAttention.relative_attention_bias.weight"]
        names = ("shared.weight", "encoder.embed_tokens.weight")
        vocabulary, width = next(shapes[name] for name in names if name in shapes)
        layers = {key.split(".")[2] for key in shapes if key.startswith("encoder.block.")}
        config = T5Config(
            vocab_size=vocabulary,
            d_model=width,
            d_kv=shapes[f"{block}.0.SelfAttention.q.weight"][0] // heads,
            d_ff=shapes[f"{block}.1.DenseReluDense.wi_0.weight"][0],
            num_layers=len(layers),
            num_heads=heads,
            relative_attention_num_buckets=buckets,
            feed_forward_proj="gated-gelu",
            is_decoder=False,
            use_cache=False,
        )
        self.model = T5Stack(config)

    def key_map(self, names: Iterable[str], keys: Mapping[str, Any]) -> KeyMap:
        found = {}
        for name in names:
            key = self.layer_key(name)
            is_shared = key == "encoder.embed_tokens.weight" and key not in keys
            found[name] = StoredTensor("shared.weight" if is_shared else key)
        return found

    def layer_key(self, name: str) -> str:
        return f"encoder.{name.removeprefix('model.')}"

    def encoded(self, texts: Sequence[Ids]) -> list[Tensor]:
        found: dict[Ids, Tensor] = {}
        for length in {len(text) for text in texts}:
            same = [text for text in texts if len(text) == length]
            states = self.model(torch.tensor(same, device=self.device)).last_hidden_state
            found |= dict(zip(same, states.float(), strict=True))
        return [found[text] for text in texts]


@dataclass(slots=True, eq=False)
class EncodeTexts(Request):
    """Encodes texts with one language model. The result has the states of each text."""

    stage: ClassVar[Stage | None] = Stage.TEXT
    encoder: LanguageModel
    cache: EncodingCache
    texts: Sequence[Ids]
    is_urgent: bool = True

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.texts)

    @property
    def key(self) -> Hashable:
        return "encode", self.encoder.serial

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[list[Tensor]]:
        encoder, cache = requests[0].encoder, requests[0].cache
        with memory_checked():
            every = dict.fromkeys(text for request in requests for text in request.texts)
            found = {text: cache.get((encoder.serial, text)) for text in every}
            missing = [text for text, known in found.items() if known is None]
            for text, states in zip(
                missing, encoder.encoded(missing) if missing else (), strict=True
            ):
                found[text] = Encoded(states, None)
                cache.put((encoder.serial, text), Encoded(states, None))
            known = {text: each.states for text, each in found.items() if each is not None}
            return [[known[text] for text in request.texts] for request in requests]


def encode_texts(
    encoder: LanguageModel, cache: EncodingCache, texts: Sequence[Ids]
) -> Work[list[Tensor]]:
    """Return the states (tokens, width) of each text."""
    found: list[Tensor] = yield EncodeTexts(encoder, cache, texts)
    return found
