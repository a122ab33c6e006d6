"""Finds the family of a model file from the names and shapes in its header."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.graph.models_folder import CHECKPOINTS, LORAS, ModelsFolder
from engine.graph.safetensors_header import Header, read_header

UNET = "model.diffusion_model."
VAE = "first_stage_model."
_FIRST_CONVOLUTION = f"{UNET}input_blocks.0.0.weight"


class Family(StrEnum):
    """The architectures that are supported."""

    SD1 = "sd1"
    SD2 = "sd2"
    SDXL = "sdxl"
    SDXL_REFINER = "sdxl_refiner"


TEXT_ENCODERS: dict[Family, tuple[str, ...]] = {
    Family.SD1: ("cond_stage_model.transformer.",),
    Family.SD2: ("cond_stage_model.model.",),
    Family.SDXL: ("conditioner.embedders.0.transformer.", "conditioner.embedders.1.model."),
    Family.SDXL_REFINER: ("conditioner.embedders.0.model.",),
}
"""The prefixes that the weights of each family's text encoders have in a single file."""
_OTHER_KINDS = {
    "model.diffusion_model.double_blocks.": "Flux",
    "double_blocks.": "Flux",
    "model.diffusion_model.joint_blocks.": "Stable Diffusion 3",
    "joint_blocks.": "Stable Diffusion 3",
    "text_encoders.": "a model with other text encoders than CLIP",
    "control_model.": "a ControlNet: it belongs into controlnet/",
    "lora_": "a LoRA: it belongs into loras/",
    "emb_params": "an embedding: it belongs into embeddings/",
}
_UNSUPPORTED_CHANNELS = {
    5: "a depth model",
    7: "an upscaling model",
    8: "an instruction model",
}
_SUPPORTED_CHANNELS = {4, 9}
"""4 are those of a latent. A model for inpainting also takes a mask and a second latent."""
_LORA_INFIXES = (".lora_down.", ".lora_A.", ".lora.down.")
_CACHED_FAMILIES = 4096
_TEXT_WIDTHS = {
    768: Family.SD1,
    1024: Family.SD2,
    2048: Family.SDXL,
    1280: Family.SDXL_REFINER,
}


def checkpoint_family(header: Header) -> Family:
    """The family of a checkpoint. Raises CheckpointUnavailable with what the file is instead."""
    for prefix, kind in _OTHER_KINDS.items():
        if header.has(prefix):
            raise CheckpointUnavailable(f"{header.name} is {kind}, not a checkpoint that is known")
    if any(infix in key for key in header.shapes for infix in _LORA_INFIXES):
        raise CheckpointUnavailable(f"{header.name} is a LoRA: it belongs into loras/")
    for prefix in (UNET, VAE):
        if not header.has(prefix):
            raise CheckpointUnavailable(
                f"{header.name} is no Stable Diffusion checkpoint: it has no {prefix}*"
            )
    input_channels(header)
    for family, prefixes in TEXT_ENCODERS.items():
        if all(header.has(prefix) for prefix in prefixes):
            return family
    raise CheckpointUnavailable(f"{header.name} has no text encoder that is known")


def input_channels(header: Header) -> int | None:
    """The number of input channels of a checkpoint's UNet; None if the header does not say.

    Raises CheckpointUnavailable if UNets with so many channels are not supported.
    """
    shape = header.shapes.get(_FIRST_CONVOLUTION, ())
    if len(shape) != 4:
        return None
    channels = shape[1]
    if channels not in _SUPPORTED_CHANNELS:
        kind = _UNSUPPORTED_CHANNELS.get(channels, f"a model of {channels} input channels")
        raise CheckpointUnavailable(f"{header.name} is {kind}, which is not supported yet")
    return channels


def lora_family(header: Header) -> Family | None:
    """The family that a LoRA is for, by the width of the text it attends to; None if unknown."""
    for key, shape in header.shapes.items():
        if "attn2" in key and "to_k" in key and ("down" in key or "lora_A" in key):
            return _TEXT_WIDTHS.get(shape[1]) if len(shape) > 1 else None
    return None


def family_of(models: ModelsFolder, kind: str, name: str) -> Family | None:
    """The family of a listed model; None if its header does not say or cannot be read."""
    try:
        path = models.path(kind, name)
        return models.reads.read(("family", path), partial(family_at, kind, path))
    except (CheckpointUnavailable, ModelsUnavailable):
        return None


def family_at(kind: str, path: Path) -> Family | None:
    """The same of a file. It is remembered until the file changes."""
    try:
        state = path.stat()
    except OSError:
        return None
    return _family_of(kind, path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=_CACHED_FAMILIES)
def _family_of(kind: str, path: Path, _size_bytes: int, _changed_ns: int) -> Family | None:
    if kind not in {CHECKPOINTS, LORAS} or path.is_dir():
        return None
    try:
        header = read_header(path)
        return checkpoint_family(header) if kind == CHECKPOINTS else lora_family(header)
    except CheckpointUnavailable:
        return None
