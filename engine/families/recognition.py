"""Finds the family of a model file from the names and shapes in its header."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.families.family import UNET, VAE, Family, Traits
from engine.families.table import FAMILIES, TRAITS
from engine.graph.models_folder import (
    CHECKPOINTS,
    DIFFUSION_MODELS,
    FOLDER_MARK,
    LORAS,
    ModelsFolder,
)
from engine.graph.safetensors_header import Header, read_header

_FIRST_CONVOLUTION = f"{UNET}input_blocks.0.0.weight"
_OTHER_KINDS = {
    "model.diffusion_model.double_blocks.": "Flux of another kind than Flux.1",
    "double_blocks.": "Flux of another kind than Flux.1",
    "model.diffusion_model.joint_blocks.": "Stable Diffusion 3",
    "joint_blocks.": "Stable Diffusion 3",
    "text_encoders.": "a model with other text encoders than CLIP",
    "control_model.": "a ControlNet, which belongs into controlnet/",
    "lora_": "a LoRA, which belongs into loras/",
    "emb_params": "an embedding, which belongs into embeddings/",
}
_OTHER_NETWORKS = {
    "double_stream_modulation_img.": "Flux.2",
    "distilled_guidance_layer.": "Chroma",
    "txt_in.individual_token_refiner.": "HunyuanVideo",
    "joint_blocks.": "Stable Diffusion 3",
    "cap_embedder.": "Lumina 2",
    "txt_norm.": "Qwen-Image",
    "head.modulation": "Wan",
    "input_blocks.": "a UNet without text encoders, which can only be loaded as a whole checkpoint",
    "lora_": "a LoRA, which belongs into loras/",
    "text_model.": "a text encoder, which belongs into text_encoders/",
    "model.embed_tokens.": "a text encoder, which belongs into text_encoders/",
    "encoder.block.": "a text encoder, which belongs into text_encoders/",
    "decoder.conv_in.": "a VAE, which belongs into vae/",
}
"""Descriptions of unsupported files in `diffusion_models/`, by a prefix of the tensors' names."""
_UNSUPPORTED_CHANNELS = {
    5: "a depth model",
    7: "an upscaling model",
    8: "an instruction model",
}
_SUPPORTED_CHANNELS = {4, 9}
"""A latent has 4 channels. A model for inpainting also has a mask and a second latent as inputs."""
_LORA_INFIXES = (".lora_down.", ".lora_A.", ".lora.down.")
_CACHED_FAMILIES = 4096


def checkpoint_family(header: Header) -> Family:
    """Return the family of a checkpoint. Raises CheckpointUnavailable if it is not supported."""
    if whole := _whole_transformer(header):
        return whole
    for prefix, kind in _OTHER_KINDS.items():
        if header.has(prefix):
            raise CheckpointUnavailable(f"{header.name} is not a known checkpoint: it is {kind}")
    if any(infix in key for key in header.shapes for infix in _LORA_INFIXES):
        raise CheckpointUnavailable(f"{header.name} is a LoRA, which belongs into loras/")
    for prefix in (UNET, VAE):
        if not header.has(prefix):
            raise CheckpointUnavailable(
                f"{header.name} is not a Stable Diffusion checkpoint: it has no {prefix}*"
            )
    input_channels(header)
    for each in FAMILIES:
        if each.is_network is None and all(map(header.has, each.text_encoders)):
            return each.family
    raise CheckpointUnavailable(f"{header.name} has no known text encoder")


def _whole_transformer(header: Header) -> Family | None:
    """Return the family of a checkpoint with a transformer, or None for another checkpoint.

    Raises CheckpointUnavailable if the file has a transformer without its text encoders.
    """
    found = _network_family(header, UNET)
    if found and all(map(header.has, found.text_encoders)):
        return found.family
    if found := found or _network_family(header):
        raise CheckpointUnavailable(
            f"{header.name} contains only the network of a {found.family} model: put it into "
            "diffusion_models/"
        )
    return None


def diffusion_model_family(header: Header) -> Family:
    """Return the family of a network in a file without text encoders.

    The keys may begin with `UNET`. Raises CheckpointUnavailable for an unsupported network.
    """
    prefix = UNET if header.has(UNET) else ""
    if found := _network_family(header, prefix):
        return found.family
    kinds = (kind for key, kind in _OTHER_NETWORKS.items() if header.has(f"{prefix}{key}"))
    kind = next(kinds, "not a known diffusion model")
    known = " and ".join(each.title for each in FAMILIES if each.is_network)
    raise CheckpointUnavailable(f"{header.name} is {kind}; {known} are supported here")


def _network_family(header: Header, prefix: str = "") -> Traits | None:
    """Return the traits of the transformer whose keys begin with `prefix`, or else None.

    Raises CheckpointUnavailable for a variant of a family that is not supported.
    """
    for each in FAMILIES:
        if each.is_network is not None and each.is_network(header, prefix):
            return each
    return None


def input_channels(header: Header) -> int | None:
    """Return the number of input channels of a checkpoint's UNet, or None if none is found.

    Raises CheckpointUnavailable if UNets with this number of channels are not supported.
    """
    shape = header.shapes.get(_FIRST_CONVOLUTION, ())
    if len(shape) != 4:
        return None
    channels = shape[1]
    if channels not in _SUPPORTED_CHANNELS:
        kind = _UNSUPPORTED_CHANNELS.get(channels, f"a model with {channels} input channels")
        raise CheckpointUnavailable(f"{header.name} is {kind}, which is not supported yet")
    return channels


def lora_family(header: Header) -> Family | None:
    """Return the family of a LoRA from the width of its text embeddings, or None."""
    for key, shape in header.shapes.items():
        if "attn2" in key and "to_k" in key and ("down" in key or "lora_A" in key):
            widths = {one.lora_text_width: one.family for one in FAMILIES if one.lora_text_width}
            return widths.get(shape[1]) if len(shape) > 1 else None
    return None


def family_of(models: ModelsFolder, kind: str, name: str) -> Family | None:
    """Return the family of a listed model, or None for an unknown family or an unreadable file."""
    try:
        path = models.path(kind, name)
        return models.reads.read(("family", path), partial(family_at, kind, path))
    except (CheckpointUnavailable, ModelsUnavailable):
        return None


def traits_of(models: ModelsFolder, kind: str, name: str) -> Traits | None:
    family = family_of(models, kind, name)
    return TRAITS[family] if family else None


def family_at(kind: str, path: Path) -> Family | None:
    """Return the family of a file or folder. The result is cached until the file changes."""
    try:
        file = path / FOLDER_MARK if path.is_dir() else path
        state = file.stat()
    except OSError:
        return None
    return _family_of(kind, file, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=_CACHED_FAMILIES)
def _family_of(kind: str, path: Path, _size_bytes: int, _changed_ns: int) -> Family | None:
    if path.name == FOLDER_MARK:
        return _folder_family(path)
    recognize = _FAMILY_BY_KIND.get(kind)
    try:
        return recognize(read_header(path)) if recognize else None
    except CheckpointUnavailable:
        return None


def _folder_family(mark: Path) -> Family | None:
    """Return the family of a diffusers folder by the classes of its transformer and its pipeline.

    Stable Diffusion 1 and 2 have the same pipeline class, so the class does not identify them.
    """
    names = map(_class_name, (mark.parent / "transformer" / "config.json", mark))
    signs = [(each.pipeline, each.family) for each in FAMILIES if each.pipeline]
    return next((family for name in names for sign, family in signs if sign in name), None)


def _class_name(config: Path) -> str:
    """Return the name of the class in a diffusers configuration, or "" if it cannot be read."""
    try:
        return str(json.loads(config.read_text()).get("_class_name"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


_FAMILY_BY_KIND: dict[str, Callable[[Header], Family | None]] = {
    CHECKPOINTS: checkpoint_family,
    LORAS: lora_family,
    DIFFUSION_MODELS: diffusion_model_family,
}
