"""Loads the text encoders of a family, from files of their own or from a whole checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from tokenizers import Tokenizer

from engine.diffusion.families.flux import CLIP_L
from engine.diffusion.families.lookup import transformer_family
from engine.diffusion.families.parts import Part
from engine.diffusion.families.transformer import Shapes
from engine.diffusion.loading import layout
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.modules import (
    configuration_checked,
    loaded,
    read_clip_encoder,
    streamable,
    target_within_room,
)
from engine.diffusion.loading.store import Identity, ModelStore
from engine.diffusion.loading.unets import dtype_of
from engine.diffusion.loading.weights import LoadTarget, Weights, component_files
from engine.diffusion.text.encoding import CHUNK, VOCABULARY, Clip
from engine.diffusion.text.family_texts import FamilyTexts
from engine.diffusion.text.language_models import T5, LanguageModel, Qwen3
from engine.diffusion.text.text_encoders import FLUX_CLIP_L, TextEncoder
from engine.diffusion.text.textual_inversion import Embeddings
from engine.diffusion.text.tokenizers import (
    read_tokenizer,
    require_vocabulary,
    tokenizer_file,
)
from engine.errors import CheckpointUnavailable
from engine.families.family import Family
from engine.graph.models_folder import TEXT_ENCODERS

_SIGNS = {
    "model.layers.0.self_attn.q_norm.weight": Qwen3.kind,
    "layers.0.self_attn.q_norm.weight": Qwen3.kind,
    "encoder.block.0.layer.0.SelfAttention.q.weight": T5.kind,
    "text_model.encoder.layers.0.layer_norm1.weight": CLIP_L,
    "encoder.layers.0.layer_norm1.weight": CLIP_L,
}
MakeModel: TypeAlias = Callable[[Shapes], LanguageModel]
_LANGUAGE_MODELS: dict[str, MakeModel] = {each.kind: each for each in (Qwen3, T5)}
_IN_CHECKPOINT = "text_encoders."
_CLIP_HEAD = 64


@dataclass(frozen=True, slots=True, eq=False)
class EncoderFile:
    """A text encoder on disk."""

    part: Part
    place: Path
    """The file, or the folder of a diffusers component."""
    identity: Identity

    @property
    def kind(self) -> str:
        """Raises CheckpointUnavailable for one that is not known."""
        shapes = self.part.shapes
        for sign, kind in _SIGNS.items():
            if sign in shapes:
                return kind
        raise CheckpointUnavailable(
            f"{self.place.name} is no text encoder that is known: Qwen3, T5 and CLIP-L are"
        )


def load_texts(store: ModelStore, family: Family, names: Iterable[str]) -> FamilyTexts:
    """The text encoders of those names, for that family; raises CheckpointUnavailable."""
    files: list[EncoderFile] = []
    for name in names:
        path = store.models.path(TEXT_ENCODERS, name)
        identity = store.identity(path)
        found = store.inspect_once(_read_alone, path, identity)
        files += [EncoderFile(part, place, identity) for part, place in found]
    return texts_of(store, family, files)


def encoders_in(store: ModelStore, path: Path, identity: Identity) -> list[EncoderFile]:
    """Those of a whole checkpoint, a file or a diffusers folder."""
    found = store.inspect_once(_read_whole, path, identity)
    return [EncoderFile(part, place, identity) for part, place in found]


def _read_alone(path: Path) -> list[tuple[Part, Path]]:
    return _read_whole(path) if path.is_dir() else [(Part(Weights(path)), path)]


def _read_whole(path: Path) -> list[tuple[Part, Path]]:
    if path.is_dir():
        folders = [each for each in sorted(path.glob("text_encoder*")) if each.is_dir()]
        return [(Part(Weights(*component_files(each))), each) for each in folders]
    weights = Weights(path)
    names = {key.split(".")[1] for key in weights.shapes if key.startswith(_IN_CHECKPOINT)}
    prefixes = [f"{_IN_CHECKPOINT}{name}.transformer." for name in sorted(names)]
    return [(Part(weights, prefix), path) for prefix in prefixes]


def texts_of(store: ModelStore, family: Family, files: Iterable[EncoderFile]) -> FamilyTexts:
    """The text encoders of a family; raises CheckpointUnavailable where one is missing."""
    by_kind = {each.kind: each for each in files}
    taken = transformer_family(family)
    if set(by_kind) != set(taken.encoders):
        raise CheckpointUnavailable(
            f"{family} takes the text encoders {' and '.join(taken.encoders)}, and these are "
            f"{' and '.join(sorted(by_kind)) or 'none'}"
        )
    loaded = {kind: _loaded(store, file) for kind, file in by_kind.items()}
    return taken.texts(loaded, store.encoding_cache)


def computing_dtype(store: ModelStore) -> torch.dtype:
    """That of transformers and of language models, which overflow in float16."""
    dtype = dtype_of(store.unets, store.device)
    return torch.bfloat16 if dtype is torch.float16 else dtype


def _loaded(store: ModelStore, file: EncoderFile) -> Clip | tuple[LanguageModel, Tokenizer]:
    make = _LANGUAGE_MODELS.get(file.kind)
    return _clip(store, file) if make is None else _language_model(store, make, file)


def _language_model(
    store: ModelStore, make: MakeModel, file: EncoderFile
) -> tuple[LanguageModel, Tokenizer]:
    tokenizer = _tokenizer(store, file)
    encoder = store.get_or_create(
        ("language model", file.kind, file.identity), lambda: _read_model(store, make, file.part)
    )
    require_vocabulary(tokenizer, encoder.vocabulary, file.place.name)
    return encoder, tokenizer


def _tokenizer(store: ModelStore, file: EncoderFile) -> Tokenizer:
    """From where a silent folder holds up nobody: the device thread asks for it at each load."""
    place, kind, shared = file.place, file.kind, store.models.at_top(TEXT_ENCODERS)
    return store.models.reads.read(
        ("tokenizer", place, kind),
        lambda: read_tokenizer(tokenizer_file(place, kind, shared)),
        ttl_s=0,
    )


def _read_model(store: ModelStore, make: MakeModel, part: Part) -> LanguageModel:
    with configuration_checked(part.weights.name), torch.device("meta"):
        empty = make(part.shapes)
    name, target = part.weights.name, LoadTarget(store.device, computing_dtype(store))
    target = target_within_room(store, empty, name, target)
    encoder = loaded(store, empty, part.component({}, empty.key_map), target)
    encoder.finish()
    return streamable(use_one_dnn(encoder), target)


def _clip(store: ModelStore, file: EncoderFile) -> Clip:
    def create() -> TextEncoder:
        with configuration_checked(file.part.weights.name):
            config = _clip_config(file.part.shapes)
        if config["vocab_size"] != VOCABULARY or config["max_position_embeddings"] != CHUNK + 2:
            raise CheckpointUnavailable(
                f"{file.place.name} is no CLIP-L: it knows {config['vocab_size']} tokens, "
                f"{config['max_position_embeddings']} at once"
            )
        component = file.part.component(config, layout.clip)
        return read_clip_encoder(store, component, FLUX_CLIP_L)

    encoder = store.get_or_create(("clip", file.identity), create)
    return Clip((encoder,), store.encoding_cache, Embeddings(store))


def _clip_config(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
    """The sizes of CLIP-L, by its weights."""
    own = {key.removeprefix("text_model."): shape for key, shape in shapes.items()}
    vocabulary, width = own["embeddings.token_embedding.weight"]
    layers = {key.split(".")[2] for key in own if key.startswith("encoder.layers.")}
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": own["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": len(layers),
        "num_attention_heads": max(1, width // _CLIP_HEAD),
        "max_position_embeddings": own["embeddings.position_embedding.weight"][0],
        "hidden_act": "quick_gelu",
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "pad_token_id": 1,
    }
