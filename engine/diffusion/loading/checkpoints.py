"""Loads checkpoints, and also networks, text encoders and VAEs from separate files.

A checkpoint is one file or a diffusers folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from tokenizers import Tokenizer

from engine.diffusion.adapters import use_row_updates
from engine.diffusion.families.family_lookup import model_family, transformer_family, unet_family
from engine.diffusion.families.flux import CLIP_L
from engine.diffusion.families.transformer import Shapes, TransformerFamily
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoint_info import Component, inspect, inspect_vae
from engine.diffusion.loading.layers import use_one_dnn
from engine.diffusion.loading.layout import KeyMap
from engine.diffusion.loading.networks import (
    configuration_checked,
    empty_module,
    load_module,
    mark_streamable,
    prepared,
    read_clip_encoder,
    read_module,
    target_within_memory,
    unet_dtype,
)
from engine.diffusion.loading.store import Identity, ModelStore
from engine.diffusion.loading.weights import LoadTarget, Weights, component_files
from engine.diffusion.model import Model
from engine.diffusion.previews import with_preview
from engine.diffusion.samplers.noise_levels import stable_diffusion
from engine.diffusion.text.encoding import CHUNK, VOCABULARY, Clip, FamilyTexts
from engine.diffusion.text.language_models import T5, LanguageModel, Qwen3
from engine.diffusion.text.text_encoders import FLUX_CLIP_L, TextEncoder
from engine.diffusion.text.textual_inversion import Embeddings
from engine.errors import CheckpointUnavailable
from engine.families.family import UNET, Family
from engine.families.recognition import checkpoint_family, diffusion_model_family
from engine.graph.models_folder import (
    CHECKPOINTS,
    CONFIG_SUFFIX,
    DIFFUSION_MODELS,
    TEXT_ENCODERS,
    VAES,
)
from engine.graph.safetensors_header import Header, read_header

TOKENIZER = "tokenizer.json"


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


def tokenizer_file(file: Path, kind: str, shared: Path) -> Path:
    """Return the file of the tokenizer for an encoder of that kind.

    `file` is the file or the folder of the encoder. For a folder `text_encoder_2`, the tokenizer
    is in the folder `tokenizer_2` beside it. For a file `name`, the tokenizer is in `name.config/`
    beside the file or in `kind.config/` of the folder `shared`. Raises CheckpointUnavailable.
    """
    if file.is_dir():
        number = file.name.removeprefix("text_encoder")
        places = [file.parent / f"tokenizer{number}" / TOKENIZER]
    else:
        folders = [file.with_suffix(CONFIG_SUFFIX), shared / f"{kind}{CONFIG_SUFFIX}"]
        places = [folder / TOKENIZER for folder in folders]
    for each in places:
        if each.is_file():
            return each
    wanted = " or ".join("/".join(each.parts[-3:]) for each in places)
    raise CheckpointUnavailable(
        f"{file.name} needs the tokenizer of {kind}, which is missing: put its {TOKENIZER} at "
        f"{wanted}"
    )


def read_tokenizer(path: Path) -> Tokenizer:
    """Return a tokenizer, from memory if its file is unchanged. Raises CheckpointUnavailable."""
    try:
        state = path.stat()
        return _read(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise CheckpointUnavailable(f"{path.name} cannot be read: {error.strerror}") from error


@lru_cache(maxsize=8)
def _read(path: Path, _size_bytes: int, _changed_ns: int) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises a plain Exception.
        raise CheckpointUnavailable(
            f"{'/'.join(path.parts[-2:])} is not a tokenizer: {error}"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class PrefixedWeights:
    """The tensors of `weights` whose names begin with `prefix`."""

    weights: Weights
    prefix: str = ""

    @property
    def shapes(self) -> Shapes:
        """The shapes of the tensors, by their names without the prefix."""
        start = len(self.prefix)
        return {
            key[start:]: shape
            for key, shape in self.weights.shapes.items()
            if key.startswith(self.prefix)
        }

    def component(
        self, config: dict[str, Any], key_map: Callable[[Sequence[str], Shapes], KeyMap]
    ) -> Component:
        """Return the tensors as a component. `key_map` returns keys without the prefix."""
        shapes = self.shapes

        def prefixed(names: Any) -> KeyMap:
            found = key_map(list(names), shapes)
            return {name: replace(at, key=self.prefix + at.key) for name, at in found.items()}

        return Component(config, self.weights, prefixed)


def network_part(path: Path) -> PrefixedWeights:
    """Return the network in a file or in a diffusers folder. Raises CheckpointUnavailable."""
    weights = Weights(*component_files(path / "transformer") if path.is_dir() else (path,))
    prefix = UNET if any(key.startswith(UNET) for key in weights.shapes) else ""
    return PrefixedWeights(weights, prefix)


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
_CLIP_HEAD_WIDTH = 64


@dataclass(frozen=True, slots=True, eq=False)
class EncoderFile:
    part: PrefixedWeights
    path: Path
    """The file, or the folder of a diffusers component."""
    identity: Identity

    @property
    def kind(self) -> str:
        """The kind of the text encoder. Raises CheckpointUnavailable if the kind is not known."""
        shapes = self.part.shapes
        for sign, kind in _SIGNS.items():
            if sign in shapes:
                return kind
        raise CheckpointUnavailable(
            f"{self.path.name} is not a known text encoder; known are Qwen3, T5 and CLIP-L"
        )


def load_texts(store: ModelStore, family: Family, names: Iterable[str]) -> FamilyTexts:
    """Return the text encoders of those names for a family. Raises CheckpointUnavailable."""
    files: list[EncoderFile] = []
    for name in names:
        path = store.models.path(TEXT_ENCODERS, name)
        identity = store.identity(path)
        found = store.inspect_once(_read_alone, path, identity)
        files += [EncoderFile(part, file, identity) for part, file in found]
    return texts_of(store, family, files)


def encoders_in(store: ModelStore, path: Path, identity: Identity) -> list[EncoderFile]:
    """Return the text encoders of a whole checkpoint, which is a file or a diffusers folder."""
    found = store.inspect_once(_read_whole, path, identity)
    return [EncoderFile(part, file, identity) for part, file in found]


def _read_alone(path: Path) -> list[tuple[PrefixedWeights, Path]]:
    return _read_whole(path) if path.is_dir() else [(PrefixedWeights(Weights(path)), path)]


def _read_whole(path: Path) -> list[tuple[PrefixedWeights, Path]]:
    if path.is_dir():
        folders = [each for each in sorted(path.glob("text_encoder*")) if each.is_dir()]
        return [(PrefixedWeights(Weights(*component_files(each))), each) for each in folders]
    weights = Weights(path)
    names = {key.split(".")[1] for key in weights.shapes if key.startswith(_IN_CHECKPOINT)}
    prefixes = [f"{_IN_CHECKPOINT}{name}.transformer." for name in sorted(names)]
    return [(PrefixedWeights(weights, prefix), path) for prefix in prefixes]


def texts_of(store: ModelStore, family: Family, files: Iterable[EncoderFile]) -> FamilyTexts:
    """Return the text encoders of a family.

    Raises CheckpointUnavailable if the kinds of `files` are not exactly those of the family.
    """
    by_kind = {each.kind: each for each in files}
    taken = transformer_family(family)
    if set(by_kind) != set(taken.encoders):
        raise CheckpointUnavailable(
            f"{family} needs the text encoders {' and '.join(taken.encoders)}, but these are "
            f"{' and '.join(sorted(by_kind)) or 'none'}"
        )
    loaded = {kind: _loaded(store, file) for kind, file in by_kind.items()}
    return taken.texts(loaded, store.encoding_cache)


def computing_dtype(store: ModelStore) -> torch.dtype:
    """Return the data type for transformers and language models, which overflow in float16."""
    dtype = unet_dtype(store.unets, store.device)
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
    require_vocabulary(tokenizer, encoder.vocabulary, file.path.name)
    return encoder, tokenizer


def _tokenizer(store: ModelStore, file: EncoderFile) -> Tokenizer:
    """Read an encoder's tokenizer, with a time-out because reading blocks the device thread."""
    path, kind, shared = file.path, file.kind, store.models.top_level_path(TEXT_ENCODERS)
    return store.models.reads.read(
        ("tokenizer", path, kind),
        lambda: read_tokenizer(tokenizer_file(path, kind, shared)),
        ttl_s=0,
    )


def _read_model(store: ModelStore, make: MakeModel, part: PrefixedWeights) -> LanguageModel:
    with configuration_checked(part.weights.name), torch.device("meta"):
        empty = make(part.shapes)
    name, target = part.weights.name, LoadTarget(store.device, computing_dtype(store))
    target = target_within_memory(store, empty, name, target)
    encoder = load_module(store, empty, part.component({}, empty.key_map), target)
    encoder.finish()
    return mark_streamable(use_one_dnn(encoder), target)


def _clip(store: ModelStore, file: EncoderFile) -> Clip:
    def create() -> TextEncoder:
        with configuration_checked(file.part.weights.name):
            config = _clip_config(file.part.shapes)
        if config["vocab_size"] != VOCABULARY or config["max_position_embeddings"] != CHUNK + 2:
            raise CheckpointUnavailable(
                f"{file.path.name} is not CLIP-L: it has a vocabulary of {config['vocab_size']} "
                f"tokens and {config['max_position_embeddings']} positions, but CLIP-L has "
                f"{VOCABULARY} tokens and {CHUNK + 2} positions"
            )
        component = file.part.component(config, layout.clip)
        return read_clip_encoder(store, component, FLUX_CLIP_L)

    encoder = store.get_or_create(("clip", file.identity), create)
    return Clip((encoder,), store.encoding_cache, Embeddings(store))


def _clip_config(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
    """Return the configuration of CLIP-L from the shapes of its weights."""
    own = {key.removeprefix("text_model."): shape for key, shape in shapes.items()}
    vocabulary, width = own["embeddings.token_embedding.weight"]
    layers = {key.split(".")[2] for key in own if key.startswith("encoder.layers.")}
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": own["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": len(layers),
        "num_attention_heads": max(1, width // _CLIP_HEAD_WIDTH),
        "max_position_embeddings": own["embeddings.position_embedding.weight"][0],
        "hidden_act": "quick_gelu",
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "pad_token_id": 1,
    }


_ROUNDED = {
    "default": None,
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fn_fast": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""The type to which weights are rounded before their conversion, by a node's `weight_dtype`."""


def load_diffusion_model(store: ModelStore, name: str, weight_dtype: str) -> Model:
    """Return the network of that name from memory or disk. Raises CheckpointUnavailable."""
    path = store.models.path(DIFFUSION_MODELS, name)
    identity = store.identity(path)
    part = store.inspect_once(network_part, path, identity)
    family = transformer_family(diffusion_model_family(Header(path.name, part.weights.shapes)))
    network = store.get_or_create(
        ("network", identity, _ROUNDED[weight_dtype]),
        lambda: _read_network(store, family, part, _ROUNDED[weight_dtype]),
        label=name,
    )
    return model_of(family, network)


def model_of(family: TransformerFamily, network: Any) -> Model:
    return Model(
        network,
        family,
        latent_scale=family.latent.scale,
        latent_shift=family.latent.shift,
        levels=family.levels(network),
        prediction="flow",
    )


def _read_network(
    store: ModelStore,
    family: TransformerFamily,
    part: PrefixedWeights,
    rounded_to: torch.dtype | None,
) -> Any:
    with configuration_checked(part.weights.name):
        config = family.config(part.shapes)
    target = LoadTarget(store.device, computing_dtype(store), rounded_to)
    component = part.component(config, family.key_map)
    empty = empty_module(family.network, component)
    target = target_within_memory(store, empty, part.weights.name, target)
    network: Any = use_one_dnn(load_module(store, empty, component, target))
    use_row_updates(network)
    network.transformer_of = family.traits.title
    return mark_streamable(network, target)


def transformer_checkpoint_family(path: Path) -> Family | None:
    """Return the family of a checkpoint, or None if it has a UNet. Raises CheckpointUnavailable."""
    if not path.is_dir():
        family = checkpoint_family(read_header(path))
    elif (path / "transformer").is_dir():
        family = diffusion_model_family(Header(path.name, network_part(path).weights.shapes))
    else:
        return None
    return family if isinstance(model_family(family), TransformerFamily) else None


def load_transformer_checkpoint(
    store: ModelStore, path: Path, family: Family, *, label: str
) -> tuple[Model, FamilyTexts, Vae]:
    """Return the models of a checkpoint with a transformer. Raises CheckpointUnavailable."""
    identity, plug = store.identity(path), transformer_family(family)
    network = store.get_or_create(
        ("network", identity, None),
        lambda: _read_network(store, plug, network_part(path), None),
        label=label,
    )
    texts = texts_of(store, family, encoders_in(store, path, identity))
    component = store.inspect_once(inspect_vae, path, identity)
    target = LoadTarget(store.device, torch.float32)
    autoencoder = store.get_or_create(
        ("vae", identity), lambda: read_module(store, AutoencoderKL, component, target)
    )
    return model_of(plug, network), texts, with_preview(store, Vae(autoencoder))


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    name: str
    model: Model
    clip: Clip | FamilyTexts
    vae: Vae


def load_checkpoint(store: ModelStore, name: str) -> Checkpoint:
    """Return the models of a checkpoint from memory or disk. Raises CheckpointUnavailable."""
    path = store.models.path(CHECKPOINTS, name)
    identity = store.identity(path)
    if family := store.inspect_once(transformer_checkpoint_family, path, identity):
        return Checkpoint(name, *load_transformer_checkpoint(store, path, family, label=name))
    info = store.inspect_once(inspect, path, identity)
    unet = store.get_or_create(("unet", identity), lambda: _read_unet(store, info.unet), label=name)
    encoders = tuple(
        store.get_or_create(
            ("text", at, identity), partial(read_clip_encoder, store, component, spec)
        )
        for at, (component, spec) in enumerate(info.text_encoders)
    )
    autoencoder: Any = store.get_or_create(
        ("vae", identity),
        lambda: read_module(
            store, AutoencoderKL, info.vae, LoadTarget(store.device, torch.float32)
        ),
    )
    return Checkpoint(
        name,
        Model(
            unet,
            unet_family(info.family),
            latent_scale=autoencoder.config.scaling_factor,
            levels=stable_diffusion(zero_terminal=info.has_zero_terminal_snr),
            prediction=info.prediction,
        ),
        Clip(encoders, store.encoding_cache, Embeddings(store)),
        Vae(autoencoder),
    )


def _read_unet(store: ModelStore, component: Component) -> Any:
    # Only the UNet gains from half precision. The other models are small, or their values overflow
    # in half precision.
    target = LoadTarget(store.device, unet_dtype(store.unets, store.device))
    return prepared(read_module(store, UNet2DConditionModel, component, target), store.unets)


def load_vae(store: ModelStore, name: str) -> Vae:
    """Return the VAE of that name from memory or disk. Raises CheckpointUnavailable."""
    path = store.models.path(VAES, name)
    identity = store.identity(path)
    component = store.inspect_once(inspect_vae, path, identity)
    target = LoadTarget(store.device, torch.float32)
    autoencoder = store.get_or_create(
        ("vae", identity), lambda: read_module(store, AutoencoderKL, component, target)
    )
    return with_preview(store, Vae(autoencoder))
