"""Tells by the header of a ControlNet file what it contains and how a graph may use it.

A union of ControlNets is one network for several types of pictures, which are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.graph.graph import Graph, Node, run_order
from engine.graph.models_folder import CONTROL_NETS, MODEL_PATCHES, ModelsFolder
from engine.graph.safetensors_header import read_header

LDM_PREFIX = "control_model."
T2I_PREFIX = "adapter."
UNION_TYPES = {
    "openpose": 0,
    "depth": 1,
    "hed/pidi/scribble/ted": 2,
    "canny/lineart/anime_lineart/mlsd": 3,
    "normal": 4,
    "segment": 5,
    "tile": 6,
    "repaint": 7,
}
"""The types of pictures by their names in ComfyUI, which are those of the union for SDXL. Unions
for Flux.1 number other types."""
_UNET_KEYS = ("zero_convs.0.0.weight", "controlnet_cond_embedding.conv_in.weight")
_UNET_TYPES = "task_embedding"
_UNSUPPORTED = {
    "lora_controlnet": "a ControlLoRA",
    "lllite_": "a ControlNet-LLLite",
    "controlnet_blocks.0.linear.": "a MistoLine for Flux.1",
    "after_proj_list.": "a ControlNet for HunyuanDiT",
    "pos_embed_input.proj.": "a ControlNet for Stable Diffusion 3",
    "pos_embed.proj.": "a ControlNet for Stable Diffusion 3",
    "transformer_blocks.0.img_mlp.": "a ControlNet for Qwen-Image",
}
"""Descriptions of unsupported files, by a prefix of the names of their tensors."""
_FLUX_HINT = "controlnet_x_embedder.weight"
_FLUX_MODES = "controlnet_mode_embedder.weight"
_FLUX_SIGNS = (_FLUX_HINT, "context_embedder.weight", "controlnet_blocks.0.weight")
_XLABS_SIGNS = ("pos_embed_input.weight", "input_hint_block.0.weight", "controlnet_blocks.0.weight")
_FLUX_HINT_WIDTH = 64
"""The number of values in a patch of a latent: 2 x 2 cells with 16 channels."""

_Z_IMAGE_HINT = "control_all_x_embedder.2-1.weight"
_Z_IMAGE_SIGNS = (
    _Z_IMAGE_HINT,
    "control_layers.0.after_proj.weight",
    "control_noise_refiner.0.attention_norm1.weight",
)
_Z_IMAGE_CHANNELS = 16, 33
"""The numbers of input channels of a network, without and with those of a picture to inpaint."""
_OTHER_PATCHES = {
    "controlnet_blocks.0.y_rms.": "a ControlNet for Qwen-Image",
    "feature_embedder.": "a style projector of USO for Flux.1",
    "audio_proj.": "a patch of MultiTalk for Wan",
}
"""Descriptions of unsupported model patches, by a prefix of the names of their tensors."""


class ControlKind(StrEnum):
    UNET = "unet"
    """A ControlNet of Stable Diffusion 1, 2 or XL."""
    T2I_ADAPTER = "t2i_adapter"
    FLUX = "flux"
    """A ControlNet of Flux.1 in the layout of diffusers. The picture is encoded by the VAE."""
    XLABS = "xlabs"
    """A ControlNet of Flux.1 in the layout of XLabs, which gets pixels."""
    Z_IMAGE = "z_image"
    """A ControlNet of Z-Image, which ComfyUI calls a model patch."""


@dataclass(frozen=True, slots=True)
class ControlTraits:
    kind: ControlKind
    union_types: int = 0
    """The number of types of pictures that a union knows, or 0 if the network is no union."""
    paints: bool = False
    """Whether the network may get a picture to inpaint in place of its usual picture."""

    @property
    def needs_vae(self) -> bool:
        return self.kind is ControlKind.FLUX


def type_problem(number: int, types: int) -> str | None:
    """Return why a network with that many types cannot get a picture of type `number`, or None."""
    if number < types:
        return None
    if not types:
        return (
            "the ControlNet is not a union, so it takes no type: remove SetUnionControlNetType or "
            "choose auto"
        )
    return f"the union of ControlNets has the types 0 to {types - 1}, but this is type {number}"


NEEDS_VAE = (
    "this ControlNet needs a VAE: apply it with ControlNetApplyAdvanced or ControlNetApplySD3, and "
    "link the VAE of the model to `vae`"
)
NEEDS_IMAGE = "the ControlNet needs an image: link one to the node"


def control_traits(name: str, shapes: Mapping[str, tuple[int, ...]]) -> ControlTraits:
    """Return what a file contains. Raises CheckpointUnavailable if it is not supported."""
    own = {key.removeprefix(LDM_PREFIX): shape for key, shape in shapes.items()}
    if any(key.removeprefix(T2I_PREFIX).startswith("body.0.") for key in own):
        return ControlTraits(ControlKind.T2I_ADAPTER)
    for prefix, kind in _UNSUPPORTED.items():
        if any(key.startswith(prefix) for key in own):
            raise CheckpointUnavailable(f"{name} is {kind}, which is not supported yet")
    if all(key in own for key in _FLUX_SIGNS):
        if own[_FLUX_HINT][-1:] != (_FLUX_HINT_WIDTH,):
            raise CheckpointUnavailable(
                f"{name} is a ControlNet of Flux.1 that gets a mask, which is not supported yet"
            )
        return ControlTraits(ControlKind.FLUX, _first(own.get(_FLUX_MODES)))
    if all(key in own for key in _XLABS_SIGNS):
        return ControlTraits(ControlKind.XLABS)
    if _UNET_TYPES in own and _UNET_KEYS[1] not in own:
        raise CheckpointUnavailable(f"{name} is not a whole union of ControlNets")
    if not any(key in own for key in _UNET_KEYS):
        raise CheckpointUnavailable(
            f"{name} is not a ControlNet of Stable Diffusion 1, 2 or XL, or of Flux.1"
        )
    return ControlTraits(ControlKind.UNET, _first(own.get(_UNET_TYPES)))


def _first(shape: tuple[int, ...] | None) -> int:
    return shape[0] if shape else 0


def patch_traits(name: str, shapes: Mapping[str, tuple[int, ...]]) -> ControlTraits:
    """Return what a model patch contains. Raises CheckpointUnavailable if it is no ControlNet of
    Z-Image.
    """
    for prefix, kind in _OTHER_PATCHES.items():
        if any(key.startswith(prefix) for key in shapes):
            raise CheckpointUnavailable(f"{name} is {kind}, which is not supported yet")
    if not all(key in shapes for key in _Z_IMAGE_SIGNS):
        raise CheckpointUnavailable(f"{name} is not a ControlNet of Z-Image")
    channels = shapes[_Z_IMAGE_HINT][-1] // 4
    if channels not in _Z_IMAGE_CHANNELS:
        raise CheckpointUnavailable(
            f"{name} is a ControlNet of Z-Image with {channels} input channels, but only 16 and "
            "33 are supported"
        )
    return ControlTraits(ControlKind.Z_IMAGE, paints=channels == _Z_IMAGE_CHANNELS[1])


def control_problems(graph: Graph, models: ModelsFolder) -> dict[str, tuple[str, str]]:
    """Return why nodes cannot use their ControlNets as linked: an input and a message, by node.

    A file that cannot be read now has no known problem.
    """
    found: dict[str, tuple[str, str]] = {}
    known: dict[str, ControlTraits] = {}
    for node in run_order(graph):
        source = node.links.get("control_net") or node.links.get("model_patch")
        traits = known.get(source.node_id) if source else None
        if node.class_type in _LOADERS:
            folder, name = _LOADERS[node.class_type]
            traits = _listed_traits(models, folder, node.literals[name])
        elif traits is not None and (problem := _problem(node, traits)):
            found[node.id] = problem
        if traits is not None:
            known[node.id] = traits
    return found


_LOADERS = {
    "ControlNetLoader": (CONTROL_NETS, "control_net_name"),
    "ModelPatchLoader": (MODEL_PATCHES, "name"),
}
"""The folder and the input that names the file, by the node type."""


def _problem(node: Node, traits: ControlTraits) -> tuple[str, str] | None:
    """Return why a node cannot use the linked ControlNet, as an input and a message, or None."""
    if node.class_type == "SetUnionControlNetType":
        number = UNION_TYPES.get(node.literals.get("type", ""))
        problem = None if number is None else type_problem(number, traits.union_types)
        return ("type", problem) if problem else None
    if traits.kind is ControlKind.Z_IMAGE:
        pictures = {"image", "inpaint_image"} if traits.paints else {"image"}
        return ("image", NEEDS_IMAGE) if pictures.isdisjoint(node.links) else None
    if traits.needs_vae and "vae" not in node.links and node.literals.get("strength") != 0:
        return "control_net", NEEDS_VAE
    return None


def _listed_traits(models: ModelsFolder, folder: str, name: str) -> ControlTraits | None:
    read = patch_traits if folder == MODEL_PATCHES else control_traits
    try:
        path = models.path(folder, name)
        return models.reads.read(("control", path), partial(_traits_at, path, read))
    except (CheckpointUnavailable, ModelsUnavailable):
        return None


_ReadTraits: TypeAlias = Callable[[str, Mapping[str, tuple[int, ...]]], ControlTraits]


def _traits_at(path: Path, read: _ReadTraits) -> ControlTraits | None:
    try:
        state = path.stat()
        return _traits_in(path, read, state.st_size, state.st_mtime_ns)
    except (OSError, CheckpointUnavailable):
        return None


@lru_cache(maxsize=256)
def _traits_in(path: Path, read: _ReadTraits, _size_bytes: int, _changed_ns: int) -> ControlTraits:
    return read(path.name, read_header(path).shapes)
