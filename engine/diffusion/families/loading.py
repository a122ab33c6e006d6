"""Loads networks and text encoders that lie in files of their own, or together in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch


from engine.diffusion.families.table import FAMILIES
from engine.diffusion.families.transformer import Shapes, TransformerFamily
from engine.diffusion.families.z_image_texts import ZImageTexts
from engine.diffusion.loading.checkpoint_info import Component
from engine.diffusion.loading.layout import KeyMap
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.modules import configuration_checked, loaded, read_module
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.unets import dtype_of
from engine.diffusion.loading.weights import LoadTarget, Weights, component_files
from engine.diffusion.model import Model
from engine.diffusion.text.language_models import LanguageModel, Qwen3
from engine.diffusion.text.tokenizers import read_tokenizer, tokenizer_file
from engine.errors import CheckpointUnavailable
from engine.graph.families import UNET, Family, diffusion_model_family
from engine.graph.models_folder import DIFFUSION_MODELS, TEXT_ENCODERS
from engine.graph.safetensors_header import Header

L = TypeVar("L", bound=LanguageModel)
_ROUNDED = {
    "default": None,
    "fp8_e4m3fn": torch.float8_e4m3fn,
    "fp8_e4m3fn_fast": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""What weights are rounded to before they get the type that the device computes with."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Those weights of one or more files whose names begin with a prefix."""

    weights: Weights
    prefix: str = ""

    @property
    def shapes(self) -> Shapes:
        """By their names without the prefix."""
        start = len(self.prefix)
        return {
            key[start:]: shape
            for key, shape in self.weights.shapes.items()
            if key.startswith(self.prefix)
        }

    def component(
        self, config: dict[str, Any], key_map: Callable[[Sequence[str], Shapes], KeyMap]
    ) -> Component:
        """The weights with what they are for."""
        shapes = self.shapes

        def prefixed(names: Any) -> KeyMap:
            found = key_map(list(names), shapes)
            return {name: replace(at, key=self.prefix + at.key) for name, at in found.items()}

        return Component(config, self.weights, prefixed)


def load_diffusion_model(store: ModelStore, name: str, weight_dtype: str) -> Model:
    """The network of that name, from memory or from disk; raises CheckpointUnavailable."""
    path = store.models.path(DIFFUSION_MODELS, name)
    part = store.inspect(_network_part, path)
    family = diffusion_model_family(Header(path.name, part.weights.shapes))
    network = store.get_or_create(
        ("network", store.identity(path), _ROUNDED[weight_dtype]),
        lambda: _read_network(store, FAMILIES[family], part, _ROUNDED[weight_dtype]),
        label=name,
    )
    return model_of(family, network)


def model_of(family: Family, network: Any) -> Model:
    """The model with a network of that family."""
    plug = FAMILIES[family]
    return Model(
        network,
        latent_scale=plug.latent.scale,
        latent_shift=plug.latent.shift,
        levels=plug.levels(network),
        prediction="flow",
        family=family,
        transformer=plug,
    )


def _network_part(path: Path) -> _Part:
    weights = Weights(*component_files(path / "transformer") if path.is_dir() else (path,))
    prefix = UNET if any(key.startswith(UNET) for key in weights.shapes) else ""
    return _Part(weights, prefix)


def _read_network(
    store: ModelStore, family: TransformerFamily, part: _Part, rounded_to: torch.dtype | None
) -> Any:
    with configuration_checked(part.weights.name):
        config = family.config(part.shapes)
    target = LoadTarget(store.device, computing_dtype(store), rounded_to)
    component = part.component(config, family.key_map)
    network: Any = use_one_dnn(read_module(store, family.network, component, target))
    network.transformer_of = family.title
    return network


def computing_dtype(store: ModelStore) -> torch.dtype:
    """That of transformers and of language models, which overflow in float16."""
    dtype = dtype_of(store.unets, store.device)
    return torch.bfloat16 if dtype is torch.float16 else dtype


def load_z_image_texts(store: ModelStore, name: str) -> ZImageTexts:
    """The text encoder of Z-Image of that name; raises CheckpointUnavailable."""
    path = store.models.path(TEXT_ENCODERS, name)
    place = path / "text_encoder" if path.is_dir() else path
    weights = Weights(*component_files(place) if path.is_dir() else (path,))
    tokenizer = read_tokenizer(tokenizer_file(place, Qwen3.kind))
    encoder = store.get_or_create(
        ("language model", store.identity(path)),
        lambda: read_language_model(store, Qwen3, _Part(weights)),
    )
    return ZImageTexts(encoder, tokenizer, store.encoding_cache)


def read_language_model(store: ModelStore, cls: Callable[[Shapes], L], part: _Part) -> L:
    """A language model by the weights of a file."""
    shapes = part.shapes
    try:
        with configuration_checked(part.weights.name), torch.device("meta"):
            empty = cls(shapes)
    except CheckpointUnavailable as error:
        if isinstance(error.__cause__, LookupError):
            kind = getattr(cls, "kind", "")
            raise CheckpointUnavailable(f"{part.weights.name} is no {kind} text encoder") from error
        raise
    target = LoadTarget(store.device, computing_dtype(store))
    encoder = loaded(store, empty, part.component({}, empty.key_map), target)
    encoder.finish()
    return use_one_dnn(encoder)
