"""Inspects checkpoints on disk without building a network.

A checkpoint is a single file or a diffusers folder. A single file lacks some values, such as the
number of attention heads. These values are read from the folder `name.config/` beside the file or,
if there is no such folder, from `engine/diffusion/configs/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from engine.diffusion.families.family_lookup import unet_families, unet_family
from engine.diffusion.families.stable_diffusion import UNetFamily
from engine.diffusion.loading import layout
from engine.diffusion.loading.layout import KeyMap
from engine.diffusion.loading.weights import Weights, component_files
from engine.diffusion.model import Prediction
from engine.diffusion.text.text_encoders import CLIP_H, TextEncoderSpec
from engine.errors import CheckpointUnavailable
from engine.families.family import UNET, VAE, Family
from engine.families.recognition import EDM, checkpoint_family, input_channels, missing_parts
from engine.graph.models_folder import CONFIG_SUFFIX, read_json
from engine.graph.safetensors_header import read_header

MapKeys: TypeAlias = Callable[[Iterable[str]], KeyMap]
"""Maps the names of a module's weights to the tensors of a file."""

CONFIGS = Path(__file__).parents[1] / "configs"
_PREDICTIONS: dict[str, Prediction] = {
    "epsilon": "epsilon",
    "v_prediction": "v_prediction",
    "sample": "sample",
}
_V_PREDICTION_KEY = "v_pred"
_ZERO_TERMINAL_SNR_KEY = "ztsnr"
_LEAST_EDM_SIGMA = 0.002
_DIFFUSERS_VAE_KEY = "decoder.mid_block.resnets.0.norm1.weight"
_SINGLE_FILE_VAE_KEY = "decoder.mid.block_1.norm1.weight"
CLIP_H_LAYERS = 24
_FLUX_CHANNELS = 16
_LATENT_SCALE = 0.18215
"""The scale of latents in diffusers, for configurations that do not name a scale."""
_VAE_PREFIXES = ("", VAE, "vae.")


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """One model of a checkpoint: its configuration, its weights and their names in the file."""

    config: dict[str, Any]
    weights: Weights
    map_keys: MapKeys


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointInfo:
    """Describes a checkpoint with a UNet. The weights are read later."""

    family: Family
    prediction: Prediction
    has_zero_terminal_snr: bool
    """Whether the training included a noise level at which nothing of the picture is left."""
    edm_sigmas: tuple[float, float] | None
    """The largest and the smallest sigma of a model with the noise levels of EDM, such as CosXL."""
    unet: Component
    latent_scale: float
    vae: Component | None
    """None if the file has no VAE."""
    text_encoders: tuple[tuple[Component, TextEncoderSpec], ...] | None
    """None if the file has no text encoders that are known."""


def inspect(path: Path) -> CheckpointInfo:
    """Inspect a checkpoint. Raises CheckpointUnavailable."""
    return _folder(path) if path.is_dir() else _single_file(path)


def inspect_vae(path: Path) -> Component:
    """Inspect the VAE in a file or a diffusers folder. Raises CheckpointUnavailable.

    The configuration is the first of these files that exists: `name.config/config.json`,
    `config.json` in the folder of the weights, a built-in file. The built-in file is that of Flux
    for a VAE with 16 channels, and that of Stable Diffusion 1.5 for any other VAE.
    """
    files = component_files(path / "vae") if path.is_dir() else (path,)
    path, weights = files[0], Weights(*files)
    known = "flux" if _FLUX_CHANNELS in _input_shape(weights)[1:2] else "sd15"
    folders = (path.with_suffix(CONFIG_SUFFIX), path.parent, CONFIGS / known / "vae")
    config = read_json(next(p for p in (each / "config.json" for each in folders) if p.is_file()))
    keys = weights.shapes.keys()
    if _DIFFUSERS_VAE_KEY in keys:
        return Component(config, weights, lambda names: layout.diffusers_vae(names, keys))
    prefix = next((p for p in _VAE_PREFIXES if f"{p}{_SINGLE_FILE_VAE_KEY}" in keys), "")
    if f"{prefix}{_SINGLE_FILE_VAE_KEY}" in keys:
        return Component(config, weights, lambda names: layout.vae(names, config, prefix))
    raise CheckpointUnavailable(
        f"{path.name} is not a VAE of Stable Diffusion 1, 2 or XL, or of Flux"
    )


def _input_shape(weights: Weights) -> tuple[int, ...]:
    """Return the shape of the first weight in a VAE's decoder, or () if there is no such weight."""
    names = (f"{prefix}decoder.conv_in.weight" for prefix in _VAE_PREFIXES)
    return next((weights.shapes[name] for name in names if name in weights.shapes), ())


def _single_file(path: Path) -> CheckpointInfo:
    header = read_header(path)
    family = unet_family(checkpoint_family(header))
    weights = Weights(path)
    own = path.with_suffix(CONFIG_SUFFIX)
    configs = own if own.is_dir() else CONFIGS / family.sizes_of(weights)
    unet = read_json(configs / "unet" / "config.json")
    if channels := input_channels(header):
        unet["in_channels"] = channels
    unet |= family.further_sizes(weights)
    vae = read_json(configs / "vae" / "config.json")
    missing = missing_parts(header, family.traits.family)
    pairs = zip(family.traits.text_encoders, family.encoders, strict=True)
    edm_sigmas = _edm_sigmas(weights)
    is_marked_v = not own.is_dir() and _V_PREDICTION_KEY in weights.shapes
    return CheckpointInfo(
        family.traits.family,
        "v_prediction" if is_marked_v or edm_sigmas else _prediction(configs),
        _ZERO_TERMINAL_SNR_KEY in weights.shapes or _has_zero_terminal_snr(configs),
        edm_sigmas,
        unet=Component(unet, weights, lambda names: layout.unet(names, unet, UNET)),
        latent_scale=vae.get("scaling_factor", _LATENT_SCALE),
        vae=None
        if "VAE" in missing
        else Component(vae, weights, lambda names: layout.vae(names, vae, VAE)),
        text_encoders=None
        if "CLIP" in missing
        else tuple(
            _encoder_in_file(weights, prefix, read_json(configs / folder / "config.json"), spec)
            for prefix, (folder, spec) in pairs
        ),
    )


def _edm_sigmas(weights: Weights) -> tuple[float, float] | None:
    if f"{EDM}sigma_max" not in weights.shapes:
        return None
    with weights.opened() as read:
        names = (f"{EDM}sigma_max", f"{EDM}sigma_min")
        found = [float(read(name)) if name in weights.shapes else None for name in names]
    most, least = found[0], _LEAST_EDM_SIGMA if found[1] is None else found[1]
    if most is None or not 0 < least < most:
        raise CheckpointUnavailable(f"{weights.name} has unusable noise levels: {found}")
    return most, least


def _encoder_in_file(
    weights: Weights, prefix: str, config: dict[str, Any], spec: TextEncoderSpec
) -> tuple[Component, TextEncoderSpec]:
    """Return a text encoder with as many layers as the file has.

    Some files of Stable Diffusion 2 do not have the last layer, which is not used.
    """
    is_open_clip = prefix.endswith("model.")
    layers_key = "resblocks." if is_open_clip else "encoder.layers."
    own = (key for key in weights.shapes if key.startswith(prefix) and layers_key in key)
    layers = {key.partition(layers_key)[2].partition(".")[0] for key in own}
    config = {**config, "num_hidden_layers": len(layers)}
    if spec is CLIP_H and len(layers) == CLIP_H_LAYERS - 1:
        spec = spec.without_last_layer()
    keys = weights.shapes.keys()
    if is_open_clip:
        return Component(config, weights, lambda names: layout.open_clip(names, prefix)), spec
    return Component(config, weights, lambda names: layout.clip(names, keys, prefix)), spec


def _folder(path: Path) -> CheckpointInfo:
    unet = read_json(path / "unet" / "config.json")
    encoders = {
        folder: read_json(path / folder / "config.json")
        for folder in ("text_encoder", "text_encoder_2")
        if (path / folder).is_dir()
    }
    family = _folder_family(path, unet, encoders)
    vae_weights = Weights(*component_files(path / "vae"))
    vae = read_json(path / "vae" / "config.json")
    return CheckpointInfo(
        family.traits.family,
        _prediction(path),
        _has_zero_terminal_snr(path),
        None,
        unet=Component(unet, Weights(*component_files(path / "unet")), layout.identity_map),
        latent_scale=vae.get("scaling_factor", _LATENT_SCALE),
        vae=Component(
            vae,
            vae_weights,
            lambda names: layout.diffusers_vae(names, vae_weights.shapes.keys()),
        ),
        text_encoders=tuple(
            _encoder_in_folder(path / folder, encoders[folder], spec)
            for folder, spec in family.encoders
        ),
    )


def _folder_family(
    path: Path, unet: dict[str, Any], encoders: dict[str, dict[str, Any]]
) -> UNetFamily:
    if unet.get("in_channels") != 4:
        raise CheckpointUnavailable(
            f"{path.name} is a model with {unet.get('in_channels')} input channels, which is not "
            "supported yet"
        )
    family = next(each for each in unet_families() if each.is_folder(unet, encoders))
    for folder, _ in family.encoders:
        if folder not in encoders:
            raise CheckpointUnavailable(f"{path.name} has no {folder}/")
    return family


def _encoder_in_folder(
    path: Path, config: dict[str, Any], spec: TextEncoderSpec
) -> tuple[Component, TextEncoderSpec]:
    weights = Weights(*component_files(path))
    keys = weights.shapes.keys()
    # Folders of diffusers for Stable Diffusion 2 do not have the last layer, which is not used.
    spec = spec.without_last_layer() if spec is CLIP_H else spec
    return Component(config, weights, lambda names: layout.clip(names, keys)), spec


def _prediction(configs: Path) -> Prediction:
    given = _scheduler(configs).get("prediction_type", "epsilon")
    if given not in _PREDICTIONS:
        raise CheckpointUnavailable(
            f"{configs.name}: a prediction_type of {given!r} is not supported"
        )
    return _PREDICTIONS[given]


def _has_zero_terminal_snr(configs: Path) -> bool:
    return bool(_scheduler(configs).get("rescale_betas_zero_snr", False))


def _scheduler(configs: Path) -> dict[str, Any]:
    path = configs / "scheduler" / "scheduler_config.json"
    return read_json(path) if path.is_file() else {}
