"""Loads checkpoints, and also networks, text encoders and VAEs from separate files.

A checkpoint is one file or a diffusers folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from tokenizers import Tokenizer

from engine.diffusion.adapters import use_row_updates
from engine.diffusion.families.family_lookup import model_family, transformer_family, unet_family
from engine.diffusion.families.transformer import Shapes, TransformerFamily
from engine.diffusion.images.vae import Vae
from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoint_info import (
    CLIP_H_LAYERS,
    CheckpointInfo,
    Component,
    inspect,
    inspect_vae,
)
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
from engine.diffusion.samplers.noise_levels import (
    NoiseLevels,
    continuous_levels,
    stable_diffusion,
)
from engine.diffusion.text.encoding import CHUNK, VOCABULARY, Clip, FamilyTexts
from engine.diffusion.text.language_models import T5, LanguageModel, Qwen3
from engine.diffusion.text.text_encoders import (
    CLIP_H,
    CLIP_L,
    TextEncoder,
    TextEncoderSpec,
)
from engine.diffusion.text.textual_inversion import Embeddings
from engine.diffusion.text.tokenizers import qwen_tokenizer, read_tokenizer, require_vocabulary
from engine.errors import CheckpointUnavailable
from engine.families.family import UNET, EncoderKind, Family
from engine.families.recognition import (
    checkpoint_family,
    diffusion_model_family,
    encoder_kind,
    family_of_encoders,
    missing_parts,
)
from engine.families.tokenizer_files import SPIECE_MODEL, tokenizer_file
from engine.graph.models_folder import (
    CHECKPOINTS,
    DIFFUSION_MODELS,
    TEXT_ENCODERS,
    VAES,
)
from engine.graph.safetensors_header import Header, read_header

P = TypeVar("P")


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


MakeModel: TypeAlias = Callable[[Shapes], LanguageModel]
_LANGUAGE_MODELS: dict[str, MakeModel] = {each.kind: each for each in (Qwen3, T5)}
_IN_CHECKPOINT = "text_encoders."
_CLIP_HEAD_WIDTH = 64
_OPEN_CLIP_EMBEDDING = "token_embedding.weight"


@dataclass(frozen=True, slots=True, eq=False)
class EncoderFile:
    part: PrefixedWeights
    path: Path
    """The file, or the folder of a diffusers component."""
    identity: Identity

    @property
    def kind(self) -> EncoderKind:
        """The kind of the text encoder. Raises CheckpointUnavailable if the kind is not known."""
        return encoder_kind(self.path.name, self.part.shapes)


def load_texts(store: ModelStore, names: Iterable[str]) -> Clip | FamilyTexts:
    """Return the text encoders of those names, for the family that has encoders of their kinds.

    Raises CheckpointUnavailable.
    """
    files: list[EncoderFile] = []
    for name in names:
        path = store.models.path(TEXT_ENCODERS, name)
        identity = store.identity(path)
        found = store.inspect_once(_read_alone, path, identity)
        files += [EncoderFile(part, file, identity) for part, file in found]
    family = family_of_encoders([each.kind for each in files])
    if isinstance(model_family(family), TransformerFamily):
        return texts_of(store, family, files)
    by_key = {str(each.kind): each for each in files}
    encoders = (
        _clip_encoder(store, by_key[spec.embedding_key], spec)
        for _, spec in unet_family(family).encoders
    )
    return Clip(tuple(encoders), store.encoding_cache, Embeddings(store))


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
    loaded = {str(kind): _loaded(store, file) for kind, file in by_kind.items()}
    return taken.texts(loaded, store.encoding_cache)


def computing_dtype(store: ModelStore) -> torch.dtype:
    """Return the data type for transformers and language models, which overflow in float16."""
    dtype = unet_dtype(store.unets, store.device)
    return torch.bfloat16 if dtype is torch.float16 else dtype


def _loaded(store: ModelStore, file: EncoderFile) -> Clip | tuple[LanguageModel, Tokenizer]:
    if make := _LANGUAGE_MODELS.get(file.kind):
        return _language_model(store, make, file)
    encoder = _clip_encoder(store, file, CLIP_L)
    return Clip((encoder,), store.encoding_cache, Embeddings(store))


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

    def read() -> Tokenizer | None:
        place = tokenizer_file(store.models, file.path, file.kind, file.part.shapes)
        if place is not None:
            return read_tokenizer(place)
        if file.kind is EncoderKind.T5:
            return read_tokenizer(file.path, file.part.prefix + SPIECE_MODEL)
        return None

    found = store.models.reads.read(("tokenizer", file.path, file.part.prefix), read, ttl_s=0)
    return qwen_tokenizer() if found is None else found


def _read_model(store: ModelStore, make: MakeModel, part: PrefixedWeights) -> LanguageModel:
    with configuration_checked(part.weights.name), torch.device("meta"):
        empty = make(part.shapes)
    name, target = part.weights.name, LoadTarget(store.device, computing_dtype(store))
    target = target_within_memory(store, empty, name, target)
    component = part.component({}, empty.key_map)
    encoder = load_module(store, empty, component, target)
    *_, last = component.map_keys(encoder.state_dict()).values()
    if (stored := part.weights.dtype_of(last.key)).itemsize == torch.float16.itemsize:
        encoder.rounded_to = stored
    encoder.finish()
    return mark_streamable(use_one_dnn(encoder), target)


def _clip_encoder(store: ModelStore, file: EncoderFile, spec: TextEncoderSpec) -> TextEncoder:
    def create() -> TextEncoder:
        shapes = file.part.shapes
        is_open_clip = _OPEN_CLIP_EMBEDDING in shapes
        with configuration_checked(file.part.weights.name):
            config = _open_clip_config(shapes) if is_open_clip else _clip_config(shapes)
        if config["vocab_size"] != VOCABULARY or config["max_position_embeddings"] != CHUNK + 2:
            raise CheckpointUnavailable(
                f"{file.path.name} is not CLIP: it has a vocabulary of {config['vocab_size']} "
                f"tokens and {config['max_position_embeddings']} positions, but CLIP has "
                f"{VOCABULARY} tokens and {CHUNK + 2} positions"
            )
        config["hidden_act"] = "quick_gelu" if file.kind is EncoderKind.CLIP_L else "gelu"
        layers = config["num_hidden_layers"]
        used = spec.without_last_layer() if spec is CLIP_H and layers == CLIP_H_LAYERS - 1 else spec
        component = file.part.component(config, _open_clip_map if is_open_clip else layout.clip)
        return read_clip_encoder(store, component, used)

    return store.get_or_create(("clip", spec, file.identity, file.part.prefix), create)


def _open_clip_map(names: Sequence[str], _shapes: Shapes) -> KeyMap:
    return layout.open_clip(names, "")


def _clip_config(shapes: Shapes) -> dict[str, Any]:
    """Return the configuration of a CLIP in transformers' layout from its shapes."""
    own = {key.removeprefix("text_model."): shape for key, shape in shapes.items()}
    vocabulary, width = own["embeddings.token_embedding.weight"]
    layers = {key.split(".")[2] for key in own if key.startswith("encoder.layers.")}
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": own["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": len(layers),
        "max_position_embeddings": own["embeddings.position_embedding.weight"][0],
        "projection_dim": own.get("text_projection.weight", (width,))[0],
        **_clip_constants(width),
    }


def _open_clip_config(shapes: Shapes) -> dict[str, Any]:
    """Return the configuration of a CLIP in open_clip's layout from its shapes."""
    vocabulary, width = shapes[_OPEN_CLIP_EMBEDDING]
    layers = {key.split(".")[2] for key in shapes if key.startswith("transformer.resblocks.")}
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": shapes["transformer.resblocks.0.mlp.c_fc.weight"][0],
        "num_hidden_layers": len(layers),
        "max_position_embeddings": shapes["positional_embedding"][0],
        "projection_dim": shapes.get("text_projection", (width, width))[1],
        **_clip_constants(width),
    }


def _clip_constants(width: int) -> dict[str, Any]:
    return {
        "num_attention_heads": max(1, width // _CLIP_HEAD_WIDTH),
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


@dataclass(frozen=True, slots=True, eq=False)
class UnusablePart:
    """Stands for a part of a checkpoint that is missing or damaged. Any use raises the reason."""

    reason: str

    def __getattr__(self, _name: str) -> NoReturn:
        raise CheckpointUnavailable(self.reason)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    name: str
    model: Model
    clip: Clip | FamilyTexts
    vae: Vae


def _part(load: Callable[[], P]) -> P:
    """Return a part of a checkpoint, or an `UnusablePart`, because the graph may not use it."""
    try:
        return load()
    except CheckpointUnavailable as error:
        unusable: Any = UnusablePart(str(error))
        return cast("P", unusable)


def load_checkpoint(store: ModelStore, name: str) -> Checkpoint:
    """Return the models of a checkpoint from memory or disk. Raises CheckpointUnavailable."""
    path = store.models.path(CHECKPOINTS, name)
    identity = store.identity(path)
    if family := store.inspect_once(transformer_checkpoint_family, path, identity):
        return _transformer_checkpoint(store, path, family, name=name)
    info = store.inspect_once(inspect, path, identity)
    unet = store.get_or_create(("unet", identity), lambda: _read_unet(store, info), label=name)
    missing = store.inspect_once(_missing_parts, path, identity)

    def texts() -> Clip:
        if info.text_encoders is None:
            raise CheckpointUnavailable(missing["CLIP"])
        encoders = tuple(
            store.get_or_create(
                ("text", at, identity), partial(read_clip_encoder, store, component, spec)
            )
            for at, (component, spec) in enumerate(info.text_encoders)
        )
        return Clip(encoders, store.encoding_cache, Embeddings(store))

    def vae() -> Vae:
        if info.vae is None:
            raise CheckpointUnavailable(missing["VAE"])
        return _vae(store, info.vae, identity)

    return Checkpoint(
        name,
        Model(
            unet,
            unet_family(info.family),
            latent_scale=info.latent_scale,
            levels=_levels_of(info),
            prediction=info.prediction,
        ),
        _part(texts),
        _part(vae),
    )


def _levels_of(info: CheckpointInfo) -> NoiseLevels:
    if info.edm_sigmas is not None:
        return continuous_levels(*info.edm_sigmas, "log")
    return stable_diffusion(zero_terminal=info.has_zero_terminal_snr)


def _transformer_checkpoint(
    store: ModelStore, path: Path, family: Family, *, name: str
) -> Checkpoint:
    identity, plug = store.identity(path), transformer_family(family)
    network = store.get_or_create(
        ("network", identity, None),
        lambda: _read_network(store, plug, network_part(path), None),
        label=name,
    )
    missing = store.inspect_once(_missing_parts, path, identity)

    def texts() -> FamilyTexts:
        if "CLIP" in missing:
            raise CheckpointUnavailable(missing["CLIP"])
        return texts_of(store, family, encoders_in(store, path, identity))

    def vae() -> Vae:
        if "VAE" in missing:
            raise CheckpointUnavailable(missing["VAE"])
        component = store.inspect_once(inspect_vae, path, identity)
        return with_preview(store, _vae(store, component, identity))

    return Checkpoint(name, model_of(plug, network), _part(texts), _part(vae))


def _missing_parts(path: Path) -> dict[str, str]:
    """Return the parts that a checkpoint file lacks; none for a diffusers folder."""
    if path.is_dir():
        return {}
    header = read_header(path)
    return missing_parts(header, checkpoint_family(header))


def _vae(store: ModelStore, component: Component, identity: Identity) -> Vae:
    target = LoadTarget(store.device, torch.float32)
    return Vae(
        store.get_or_create(
            ("vae", identity), lambda: read_module(store, AutoencoderKL, component, target)
        )
    )


def _read_unet(store: ModelStore, info: CheckpointInfo) -> Any:
    # Only the UNet gains from half precision. The other models are small, or their values overflow
    # in half precision.
    target = LoadTarget(store.device, unet_dtype(store.unets, store.device))
    unet = prepared(read_module(store, UNet2DConditionModel, info.unet, target), store.unets)
    unet.scales_pictures = info.edm_sigmas is not None
    return unet


def load_vae(store: ModelStore, name: str) -> Vae:
    """Return the VAE of that name from memory or disk. Raises CheckpointUnavailable."""
    path = store.models.path(VAES, name)
    identity = store.identity(path)
    component = store.inspect_once(inspect_vae, path, identity)
    return with_preview(store, _vae(store, component, identity))
