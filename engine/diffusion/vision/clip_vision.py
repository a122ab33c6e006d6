"""The vision models of CLIP (Radford et al. 2021, arXiv:2103.00020) and SigLIP (arXiv:2303.15343).

A vision model converts a picture to an embedding, and to hidden states of the picture's patches. A
model is stored in a file in the layout of transformers or of open_clip, or inside a checkpoint.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from engine.batcher import Request, Work
from engine.diffusion.device_error import memory_checked
from engine.diffusion.images.latents import COLOURS, Images
from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoint_info import Component, MapKeys
from engine.diffusion.loading.layers import use_one_dnn
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.networks import configuration_checked, load_module
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import LoadTarget, Weights, component_files
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import CONFIG_SUFFIX, read_json

ClipVision: TypeAlias = CLIPVisionModelWithProjection | SiglipVisionModel
Colour: TypeAlias = tuple[float, float, float]
_CLIP_MEAN_AND_STD: tuple[Colour, Colour] = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)
"""The mean and the standard deviation of the colours on which CLIP was trained."""
_SIGLIP_NORMAL: tuple[Colour, Colour] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_MOST_RATIO = 8
"""The largest ratio of the sides of an image before it is resized. Without this limit, a narrow
image would become very large.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ClipVisionOutput:
    """The output of a vision model for images, in float32 on the CPU."""

    image_embeds: Tensor
    """(images, projected width). The width is 0 for SigLIP, which has no projection."""
    penultimate_hidden_states: Tensor
    """(images, 1 + patches, width): the states before the last layer. SigLIP has no class token, so
    it has only the states of the patches.
    """
    last_hidden_states: Tensor
    """The states after the last layer. Those of SigLIP are normalized."""

    @classmethod
    def joined(cls, parts: Sequence[ClipVisionOutput]) -> ClipVisionOutput:
        return cls(
            torch.cat([each.image_embeds for each in parts]),
            torch.cat([each.penultimate_hidden_states for each in parts]),
            torch.cat([each.last_hidden_states for each in parts]),
        )


@dataclass(slots=True, eq=False)
class EncodeVision(Request):
    """Encodes one image (1, height, width, 3) of any size."""

    network: ClipVision
    image: Images
    crop: bool
    is_urgent: bool = False

    @property
    def key(self) -> Hashable:
        return "clip vision", id(self.network)

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.image)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[ClipVisionOutput]:
        network = requests[0].network
        side = network.config.image_size
        assert isinstance(side, int)  # The images are squares, so their size is one number.
        with memory_checked():
            is_siglip = isinstance(network, SiglipVisionModel)
            normal = _SIGLIP_NORMAL if is_siglip else _CLIP_MEAN_AND_STD
            pixels = [
                preprocessed(each.image, side, crop=each.crop, normal=normal) for each in requests
            ]
            found = network(torch.cat(pixels).to(network.device), output_hidden_states=True)
            states, last = found.hidden_states[-2].cpu(), found.last_hidden_state.cpu()
            embeds = states.new_zeros(len(states), 0) if is_siglip else found.image_embeds.cpu()
        parts = zip(embeds.split(1), states.split(1), last.split(1), strict=True)
        return [ClipVisionOutput(*each) for each in parts]


def encoded(network: ClipVision, images: Images, *, crop: bool) -> Work[ClipVisionOutput]:
    """Encode images one after the other."""
    parts: list[ClipVisionOutput] = []
    for image in images.split(1):
        parts.append((yield EncodeVision(network, image, crop, is_urgent=not parts)))
    return ClipVisionOutput.joined(parts)


def preprocessed(
    images: Images, side: int, *, crop: bool, normal: tuple[Colour, Colour] = _CLIP_MEAN_AND_STD
) -> Tensor:
    """Return images as the model's input, (images, 3, side, side) on the CPU.

    `normal` is the mean and the standard deviation of the colours that the model needs. With
    `crop`, the input is the middle of an image. Without `crop`, the input is the whole image,
    stretched to a square.
    """
    planes = images[..., :COLOURS].movedim(-1, 1)
    height, width = planes.shape[2:]
    if (height, width) != (side, side):
        sides = side, side
        if crop:
            planes = _bounded(planes)
            scale = side / min(planes.shape[2:])
            sides = round(scale * planes.shape[2]), round(scale * planes.shape[3])
        planes = functional.interpolate(planes, size=sides, mode="bicubic", antialias=True)
        planes = _middle(planes, side, side)
    # As in ComfyUI, values are rounded to 8 bits. OpenAI's code reads 8-bit values from files.
    levels = (planes * 255.0).clamp(0, 255).round() / 255.0
    mean, deviation = (torch.tensor(each)[:, None, None] for each in normal)
    return (levels - mean) / deviation


def _bounded(planes: Tensor) -> Tensor:
    most = _MOST_RATIO * min(planes.shape[2:])
    return _middle(planes, min(most, planes.shape[2]), min(most, planes.shape[3]))


def _middle(planes: Tensor, height: int, width: int) -> Tensor:
    top, left = (planes.shape[2] - height) // 2, (planes.shape[3] - width) // 2
    return planes[:, :, top : top + height, left : left + width]


def _empty(config: dict[str, Any]) -> ClipVision:
    if config.get("model_type") == _SIGLIP:
        return SiglipVisionModel(SiglipVisionConfig(**config))
    return CLIPVisionModelWithProjection(CLIPVisionConfig(**config))


FOLDER = "image_encoder"
"""The name of the vision model's folder in a diffusers folder."""
_MODEL = "vision_model."
_LAYERS = f"{_MODEL}encoder.layers."
_OPEN_LAYERS = "transformer.resblocks."
_OPEN_PREFIXES = ("visual.", "embedder.model.visual.")
"""The prefixes in a file of CLIP and in a checkpoint of unCLIP."""
_CLASS_TOKEN = "vision_model.embeddings.class_embedding"
"""Only CLIP has a class token."""
_SIGLIP = "siglip_vision_model"
_SIGLIP_WIDTH, _SIGLIP_LAYERS = 1152, 27
"""The width and the number of layers of SigLIP So400m."""
_SIGLIP_SIDES = {729: 384, 1024: 512}
"""The side of an image by the number of its patches. A patch does not always divide the side."""
_PATCHES = "vision_model.embeddings.patch_embedding.weight"
_POSITIONS = "vision_model.embeddings.position_embedding.weight"
_MIDDLE = f"{_LAYERS}0.mlp.fc1.weight"
_PROJECTION = "visual_projection.weight"
_HEADS = 16
_ACTIVATIONS = {24: "quick_gelu", 32: "gelu", 48: "gelu"}
"""The activations by the number of layers: OpenAI's ViT-L/14, open_clip's ViT-H/14 and bigG/14."""


def load_clip_vision(store: ModelStore, kind: str, name: str) -> ClipVision:
    """Return the vision model in a file, from memory or disk. Raises CheckpointUnavailable."""
    path = store.models.path(kind, name)
    component = store.inspect(inspect_clip_vision, path)
    return store.get_or_create(
        ("clip_vision", store.identity(path)), lambda: _read(store, component)
    )


def inspect_clip_vision(path: Path) -> Component:
    """Inspect a file, or the folder of a checkpoint. Raises CheckpointUnavailable.

    The configuration of a file is read from `name.config/config.json`, or, if the file is a
    checkpoint, from `name.config/image_encoder/config.json`. If neither exists, the configuration
    is derived from the shapes of the weights.
    """
    if path.is_dir():
        folder = path / FOLDER
        if not folder.is_dir():
            raise CheckpointUnavailable(
                f"{path.name} has no {FOLDER}/, so it is not a unCLIP checkpoint"
            )
        weights = Weights(*component_files(folder))
        return Component(read_json(folder / "config.json"), weights, layout.identity_map)
    weights = Weights(path)
    if _CLASS_TOKEN not in weights.shapes and _POSITIONS in weights.shapes:
        return Component(siglip_config(weights, path), weights, _siglip_map)
    layers, map_keys = _layout(weights)
    own = path.with_suffix(CONFIG_SUFFIX)
    for config in (own / "config.json", own / FOLDER / "config.json"):
        if config.is_file():
            return Component(read_json(config), weights, map_keys)
    return Component(_config(weights, layers, map_keys), weights, map_keys)


def _siglip_map(names: Iterable[str]) -> KeyMap:
    return {name: StoredTensor(f"{_MODEL}{name}") for name in names}


def siglip_config(weights: Weights, path: Path) -> dict[str, Any]:
    """Return the configuration of a SigLIP in the layout of transformers.

    Raises CheckpointUnavailable for other models without a class token.
    """
    layers = {key.split(".")[3] for key in weights.shapes if key.startswith(_LAYERS)}
    own = path.with_suffix(CONFIG_SUFFIX) / "config.json"
    if own.is_file():
        return {**read_json(own), "model_type": _SIGLIP, "vision_use_head": False}
    shape, states = weights.shapes.get(_PATCHES, ()), weights.shapes[_POSITIONS][0]
    is_known = (shape[:1], len(layers)) == ((_SIGLIP_WIDTH,), _SIGLIP_LAYERS)
    if not is_known or len(shape) != 4 or states not in _SIGLIP_SIDES:
        raise CheckpointUnavailable(
            f"{weights.name} is not a known vision model; the known SigLIP is So400m"
        )
    return {
        "hidden_size": _SIGLIP_WIDTH,
        "intermediate_size": 4304,
        "num_hidden_layers": _SIGLIP_LAYERS,
        "num_attention_heads": _HEADS,
        "patch_size": shape[2],
        "image_size": _SIGLIP_SIDES[states],
        "hidden_act": "gelu_pytorch_tanh",
        # As in ComfyUI. The published configuration has 1e-6.
        "layer_norm_eps": 1e-5,
        "model_type": _SIGLIP,
        "vision_use_head": False,
    }


def _layout(weights: Weights) -> tuple[str, MapKeys]:
    """Return the prefix of the names of layers, and the function that maps the keys."""
    if any(key.startswith(_LAYERS) for key in weights.shapes):
        return _LAYERS, layout.identity_map
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
            f"{weights.name} is not a known CLIP vision model; known are ViT-L/14, ViT-H/14 and "
            "ViT-bigG/14"
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
        raise CheckpointUnavailable(f"{weights.name} has no {stored.key}: the file is incomplete")
    return shape[::-1] if stored.transposed else shape


def _read(store: ModelStore, component: Component) -> ClipVision:
    # As in ComfyUI, vision models are rounded to half precision, like text encoders.
    target = LoadTarget(store.device, torch.float32, rounded_to=torch.float16)
    with configuration_checked(component.weights.name), torch.device("meta"):
        empty = _empty(component.config)
    network = use_one_dnn(load_module(store, empty, component, target))
    inner: Any = network if isinstance(network, SiglipVisionModel) else network.vision_model
    embeddings = inner.embeddings
    # Files do not contain this buffer.
    positions = torch.arange(embeddings.num_positions, device=store.device)
    embeddings.position_ids = torch.nn.Buffer(positions[None], persistent=False)
    return network
