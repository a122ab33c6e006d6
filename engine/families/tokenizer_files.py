"""Finds the tokenizers of language models. This module loads no torch."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from engine.errors import CheckpointUnavailable
from engine.families.family import EncoderKind
from engine.graph.models_folder import CONFIG_SUFFIX, TEXT_ENCODERS, ModelsFolder

SPIECE_MODEL = "spiece_model"
"""The tensor of a file of T5 that has the bytes of its SentencePiece model."""
T5_SIGN = "encoder.block.0.layer.0.SelfAttention.q.weight"
_TOKENIZER = "tokenizer.json"
_IN_COMFYUI = "comfy/text_encoders/t5_tokenizer"


def tokenizer_file(
    models: ModelsFolder, file: Path, kind: EncoderKind, tensors: Container[str]
) -> Path | None:
    """Return the file of the tokenizer of a language model, or None if no file is needed.

    `file` is the file or the folder of the model, and `tensors` are the names of its tensors. For a
    folder `text_encoder_2`, the tokenizer is in the folder `tokenizer_2` beside it. For a file
    `name`, the tokenizer is in `name.config/` beside the file or in `kind.config/` of the text
    encoders. If there is no such file, Qwen3 needs none, because Darkroom has its tokenizer, and T5
    needs none with a tensor SPIECE_MODEL. Otherwise the file of a ComfyUI install is used. Raises
    CheckpointUnavailable.
    """
    if file.is_dir():
        number = file.name.removeprefix("text_encoder")
        places = [file.parent / f"tokenizer{number}" / _TOKENIZER]
    else:
        shared = models.top_level_path(TEXT_ENCODERS) / f"{kind}{CONFIG_SUFFIX}"
        places = [each / _TOKENIZER for each in (file.with_suffix(CONFIG_SUFFIX), shared)]
    for each in places:
        if each.is_file():
            return each
    if kind is EncoderKind.QWEN3 or SPIECE_MODEL in tensors:
        return None
    if (found := models.comfyui_dir / _IN_COMFYUI / _TOKENIZER).is_file():
        return found
    wanted = " or ".join("/".join(each.parts[-3:]) for each in places)
    raise CheckpointUnavailable(
        f"{file.name} needs the tokenizer of {kind}, which is missing: put its {_TOKENIZER}, which "
        f"ComfyUI has in {_IN_COMFYUI}/, at {wanted}"
    )


def has_t5_without_tokenizer(shapes: Mapping[str, Any]) -> bool:
    """Whether a file with these tensors has a T5, but not its tokenizer."""
    parts = [key.removesuffix(T5_SIGN) for key in shapes if key.endswith(T5_SIGN)]
    return any(f"{part}{SPIECE_MODEL}" not in shapes for part in parts)
