"""Checkpoints as they lie on disk: single files and diffusers folders, without network.

What a single file does not say (numbers of heads, activation) comes from `name.config/` beside it,
else from `configs/` in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from engine.diffusion.loading import layout
from engine.diffusion.loading.layout import Source
from engine.diffusion.loading.weights import Weights, part_files, read_json
from engine.diffusion.model import Prediction
from engine.diffusion.text.text_encoders import BIG_G, CLIP_H, CLIP_L, CLIP_L_OF_XL, Style
from engine.errors import CheckpointUnavailable
from engine.graph.families import (
    TEXT_ENCODERS,
    UNET,
    VAE,
    Family,
    checkpoint_family,
    input_channels,
)
from engine.graph.models_folder import CONFIG_SUFFIX
from engine.graph.safetensors_header import read_header

Locate: TypeAlias = Callable[[Iterable[str]], dict[str, Source]]
"""From a module's names to the file's."""

CONFIGS = Path(__file__).parents[1] / "configs"
STYLES: dict[Family, tuple[tuple[str, Style], ...]] = {
    Family.SD1: (("text_encoder", CLIP_L),),
    Family.SD2: (("text_encoder", CLIP_H),),
    Family.SDXL: (("text_encoder", CLIP_L_OF_XL), ("text_encoder_2", BIG_G)),
    Family.SDXL_REFINER: (("text_encoder_2", BIG_G),),
}
"""Each family's text encoders, by the folder that has their configuration."""
_PREDICTIONS: dict[str, Prediction] = {
    "epsilon": "epsilon",
    "v_prediction": "v_prediction",
    "sample": "sample",
}
_V_MARK = "v_pred"
_ZERO_TERMINAL_MARK = "ztsnr"
_LAST_NORM = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
_LEAST_V_SPREAD = 0.09
_OF_DIFFUSERS = "decoder.mid_block.resnets.0.norm1.weight"
_OF_SINGLE_FILE = "decoder.mid.block_1.norm1.weight"
_WHOLE_CLIP_H = 24


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One model of a checkpoint: its sizes, its weights, and how they are named."""

    config: dict[str, Any]
    weights: Weights
    locate: Locate


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """A checkpoint that has been looked at, not read."""

    family: Family
    prediction: Prediction
    zero_terminal: bool
    """Trained up to a level with nothing of the picture left (zero terminal SNR)."""
    unet: Part
    vae: Part
    text_encoders: tuple[tuple[Part, Style], ...]


def look_at(path: Path) -> OnDisk:
    """What a file or folder is; raises CheckpointUnavailable, saying what is wrong with it."""
    return _folder(path) if path.is_dir() else _single_file(path)


def look_at_vae(path: Path) -> Part:
    """A VAE that lies by itself: a single file's part of a checkpoint, or diffusers' file.

    Its sizes come from `name.config/config.json`, from the `config.json` beside diffusers' file, or
    are the usual ones. Raises CheckpointUnavailable.
    """
    weights = Weights(path)
    places = (path.with_suffix(CONFIG_SUFFIX), path.parent, CONFIGS / "sd15" / "vae")
    config = read_json(next(p for p in (each / "config.json" for each in places) if p.is_file()))
    keys = weights.shapes.keys()
    if _OF_DIFFUSERS in keys:
        return Part(config, weights, lambda names: layout.diffusers_vae(names, keys))
    prefix = VAE if f"{VAE}{_OF_SINGLE_FILE}" in keys else ""
    if f"{prefix}{_OF_SINGLE_FILE}" in keys:
        return Part(config, weights, lambda names: layout.vae(names, config, prefix))
    raise CheckpointUnavailable(f"{path.name} is no VAE of Stable Diffusion 1, 2 or XL")


def _single_file(path: Path) -> OnDisk:
    header = read_header(path)
    family = checkpoint_family(header)
    weights = Weights(path)
    own = path.with_suffix(CONFIG_SUFFIX)
    configs = own if own.is_dir() else CONFIGS / _config_name(family, weights)
    unet = read_json(configs / "unet" / "config.json")
    if channels := input_channels(header):
        unet["in_channels"] = channels
    vae = read_json(configs / "vae" / "config.json")
    encoders = [
        _encoder_in_file(weights, prefix, read_json(configs / folder / "config.json"), style)
        for prefix, (folder, style) in zip(TEXT_ENCODERS[family], STYLES[family], strict=True)
    ]
    return OnDisk(
        family,
        _prediction(configs) if own.is_dir() or _V_MARK not in weights.shapes else "v_prediction",
        _ZERO_TERMINAL_MARK in weights.shapes or _has_zero_terminal(configs),
        unet=Part(unet, weights, lambda names: layout.unet(names, unet, UNET)),
        vae=Part(vae, weights, lambda names: layout.vae(names, vae, VAE)),
        text_encoders=tuple(encoders),
    )


def _config_name(family: Family, weights: Weights) -> str:
    match family:
        case Family.SD1:
            return "sd15"
        case Family.SD2:
            return "sd21" if _predicts_velocity(weights) else "sd20"
        case Family.SDXL:
            return "sdxl_base"
        case Family.SDXL_REFINER:
            return "sdxl_refiner"


def _predicts_velocity(weights: Weights) -> bool:
    """Of a Stable Diffusion 2, whose layout does not say it.

    The biases of the last attention's first norm spread far wider in the 768 px models, which were
    trained on v; ComfyUI goes by the same sign.
    """
    if _LAST_NORM not in weights.shapes:
        return False
    with weights.opened() as read:
        spread = read(_LAST_NORM).to(torch.float32).std(correction=0)
    return bool(spread > _LEAST_V_SPREAD)


def _encoder_in_file(
    weights: Weights, prefix: str, config: dict[str, Any], style: Style
) -> tuple[Part, Style]:
    """As many layers as the file has: some files of Stable Diffusion 2 lack the unused last."""
    is_open_clip = prefix.endswith("model.")
    mark = "resblocks." if is_open_clip else "encoder.layers."
    own = (key for key in weights.shapes if key.startswith(prefix) and mark in key)
    layers = {key.partition(mark)[2].partition(".")[0] for key in own}
    config = {**config, "num_hidden_layers": len(layers)}
    if style is CLIP_H and len(layers) == _WHOLE_CLIP_H - 1:
        style = style.without_last()
    keys = weights.shapes.keys()
    if is_open_clip:
        return Part(config, weights, lambda names: layout.open_clip(names, prefix)), style
    return Part(config, weights, lambda names: layout.clip(names, keys, prefix)), style


def _folder(path: Path) -> OnDisk:
    unet = read_json(path / "unet" / "config.json")
    encoders = {
        folder: read_json(path / folder / "config.json")
        for folder in ("text_encoder", "text_encoder_2")
        if (path / folder).is_dir()
    }
    family = _folder_family(path, unet, encoders)
    vae_weights = Weights(*part_files(path / "vae"))
    return OnDisk(
        family,
        _prediction(path),
        _has_zero_terminal(path),
        unet=Part(unet, Weights(*part_files(path / "unet")), layout.same),
        vae=Part(
            read_json(path / "vae" / "config.json"),
            vae_weights,
            lambda names: layout.diffusers_vae(names, vae_weights.shapes.keys()),
        ),
        text_encoders=tuple(
            _encoder_in_folder(path / folder, encoders[folder], style)
            for folder, style in STYLES[family]
        ),
    )


def _folder_family(path: Path, unet: dict[str, Any], encoders: dict[str, dict[str, Any]]) -> Family:
    if unet.get("in_channels") != 4:
        raise CheckpointUnavailable(
            f"{path.name} is a model of {unet.get('in_channels')} input channels, "
            "which is not supported yet"
        )
    if unet.get("addition_embed_type") == "text_time":
        family = Family.SDXL if "text_encoder" in encoders else Family.SDXL_REFINER
    elif encoders.get("text_encoder", {}).get("hidden_act") == "gelu":
        family = Family.SD2
    else:
        family = Family.SD1
    for folder, _ in STYLES[family]:
        if folder not in encoders:
            raise CheckpointUnavailable(f"{path.name} has no {folder}/")
    return family


def _encoder_in_folder(path: Path, config: dict[str, Any], style: Style) -> tuple[Part, Style]:
    weights = Weights(*part_files(path))
    keys = weights.shapes.keys()
    # diffusers' folders of Stable Diffusion 2 leave the unused last layer out.
    style = style.without_last() if style is CLIP_H else style
    return Part(config, weights, lambda names: layout.clip(names, keys)), style


def _prediction(configs: Path) -> Prediction:
    given = _scheduler(configs).get("prediction_type", "epsilon")
    if given not in _PREDICTIONS:
        raise CheckpointUnavailable(
            f"{configs.name}: a prediction_type of {given!r} is not supported"
        )
    return _PREDICTIONS[given]


def _has_zero_terminal(configs: Path) -> bool:
    return bool(_scheduler(configs).get("rescale_betas_zero_snr", False))


def _scheduler(configs: Path) -> dict[str, Any]:
    path = configs / "scheduler" / "scheduler_config.json"
    return read_json(path) if path.is_file() else {}
