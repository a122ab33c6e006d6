"""Files of CLIP's vision models: in transformers' layout, in open_clip's, or in a checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoint_info import Component, MapKeys
from engine.diffusion.loading.layout import StoredTensor
from engine.diffusion.loading.linear import use_one_dnn
from engine.diffusion.loading.modules import configuration_checked, loaded
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import LoadTarget, Weights, component_files, read_json
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import CONFIG_SUFFIX

FOLDER = "image_encoder"
"""Of the vision model in a diffusers folder."""
_LAYERS = "vision_model.encoder.layers."
_OPEN_LAYERS = "transformer.resblocks."
_OPEN_PREFIXES = ("visual.", "embedder.model.visual.")
"""In a file of CLIP, and in a checkpoint of unCLIP."""
_PATCHES = "vision_model.embeddings.patch_embedding.weight"
_POSITIONS = "vision_model.embeddings.position_embedding.weight"
_MIDDLE = f"{_LAYERS}0.mlp.fc1.weight"
_PROJECTION = "visual_projection.weight"
_HEADS = 16
_ACTIVATIONS = {24: "quick_gelu", 32: "gelu", 48: "gelu"}
"""By the number of layers: those of OpenAI's ViT-L/14, and of open_clip's ViT-H/14 and bigG/14."""


def load_clip_vision(store: ModelStore, kind: str, name: str) -> CLIPVisionModelWithProjection:
    """The vision model of a file, from memory or from disk; raises CheckpointUnavailable."""
    path = store.models.path(kind, name)
    component = store.inspect(inspect_clip_vision, path)
    return store.get_or_create(
        ("clip_vision", store.identity(path)), lambda: _read(store, component)
    )


def inspect_clip_vision(path: Path) -> Component:
    """Inspect a file, or the folder of a checkpoint; raises CheckpointUnavailable.

    Its configuration is `name.config/config.json`, or `name.config/image_encoder/config.json` for
    the file of a checkpoint, else what its sizes say.
    """
    if path.is_dir():
        folder = path / FOLDER
        if not folder.is_dir():
            raise CheckpointUnavailable(f"{path.name} has no {FOLDER}/: it is none of unCLIP")
        weights = Weights(*component_files(folder))
        return Component(read_json(folder / "config.json"), weights, layout.same)
    weights = Weights(path)
    layers, map_keys = _layout(weights)
    own = path.with_suffix(CONFIG_SUFFIX)
    for config in (own / "config.json", own / FOLDER / "config.json"):
        if config.is_file():
            return Component(read_json(config), weights, map_keys)
    return Component(_config(weights, layers, map_keys), weights, map_keys)


def _layout(weights: Weights) -> tuple[str, MapKeys]:
    """What the names of layers begin with, and the layout of the keys."""
    if any(key.startswith(_LAYERS) for key in weights.shapes):
        return _LAYERS, layout.same
    for prefix in _OPEN_PREFIXES:
        layers = f"{prefix}{_OPEN_LAYERS}"
        if any(key.startswith(layers) for key in weights.shapes):
            return layers, partial(layout.open_clip_vision, prefix=prefix)
    raise CheckpointUnavailable(f"{weights.name} has no CLIP vision model")


def _config(weights: Weights, layers: str, map_keys: MapKeys) -> dict[str, Any]:
    keys = map_keys([_PATCHES, _POSITIONS, _MIDDLE, _PROJECTION])
    sizes = {name: _size(weights, stored) for name, stored in keys.items()}
    numbers = {
        key.removeprefix(layers).partition(".")[0]
        for key in weights.shapes
        if key.startswith(layers)
    }
    if len(numbers) not in _ACTIVATIONS or len(sizes[_PATCHES]) != 4:
        raise CheckpointUnavailable(
            f"{weights.name} is no CLIP vision model that is known, which are ViT-L/14, ViT-H/14 "
            "and ViT-bigG/14"
        )
    width, _, patch, _ = sizes[_PATCHES]
    return {
        "hidden_size": width,
        "intermediate_size": sizes[_MIDDLE][0],
        "projection_dim": sizes[_PROJECTION][0],
        "num_hidden_layers": len(numbers),
        "num_attention_heads": _HEADS,
        "patch_size": patch,
        "image_size": patch * round((sizes[_POSITIONS][0] - 1) ** 0.5),
        "hidden_act": _ACTIVATIONS[len(numbers)],
    }


def _size(weights: Weights, stored: StoredTensor) -> tuple[int, ...]:
    shape = weights.shapes.get(stored.key)
    if shape is None:
        raise CheckpointUnavailable(f"{weights.name} has no {stored.key}: it is incomplete")
    return shape[::-1] if stored.transposed else shape


def _read(store: ModelStore, component: Component) -> CLIPVisionModelWithProjection:
    # ComfyUI keeps vision models in half precision, as it keeps text encoders.
    target = LoadTarget(store.device, torch.float32, rounded_to=torch.float16)
    with configuration_checked(component.weights.name), torch.device("meta"):
        empty = CLIPVisionModelWithProjection(CLIPVisionConfig(**component.config))
    network = use_one_dnn(loaded(store, empty, component, target))
    embeddings = network.vision_model.embeddings
    # No file holds this buffer.
    positions = torch.arange(embeddings.num_positions, device=store.device)
    embeddings.position_ids = torch.nn.Buffer(positions[None], persistent=False)
    return network
