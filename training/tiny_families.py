"""Writes tiny random checkpoints in the layouts of Stable Diffusion 2 and XL, for tests.

Each checkpoint is written as a single file and as a diffusers folder with the same weights. A
checkpoint has a few MB, nearly all for the embeddings of CLIP's vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from engine.families.family import Family
from training.make_tiny import SEED, TEXT_ENCODER, VAE, stronger_prompt, with_large_weights
from training.single_file import SCHEDULER, Component, configs_of, write_json, write_single_file

_TIME_WIDTH = 8
_SHORT = {
    **TEXT_ENCODER,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "projection_dim": 16,
}
_OPEN = {**_SHORT, "hidden_act": "gelu"}
_BIG = {**_OPEN, "hidden_size": 24, "projection_dim": 32}
_UNET: dict[str, Any] = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [16, 32],
    "norm_num_groups": 8,
    "layers_per_block": 1,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 16,
    "attention_head_dim": [2, 4],
    "use_linear_projection": True,
}
_SMALL_VAE = {**VAE, "block_out_channels": [8, 8, 8, 8], "norm_num_groups": 4}
_XL = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2],
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": _TIME_WIDTH,
}


@dataclass(frozen=True)
class Tiny:
    unet: Mapping[str, Any]
    text_encoders: Mapping[str, Mapping[str, Any]]
    prediction: str = "epsilon"
    latent_scale: float = 0.18215


FAMILIES: dict[Family, Tiny] = {
    Family.SD2: Tiny(_UNET, {"text_encoder": _OPEN}, prediction="v_prediction"),
    Family.SDXL: Tiny(
        {
            **_UNET,
            **_XL,
            "cross_attention_dim": 16 + 24,
            "projection_class_embeddings_input_dim": 32 + 6 * _TIME_WIDTH,
        },
        {"text_encoder": _SHORT, "text_encoder_2": _BIG},
        latent_scale=0.13025,
    ),
    Family.SDXL_REFINER: Tiny(
        {
            **_UNET,
            **_XL,
            "cross_attention_dim": 24,
            "projection_class_embeddings_input_dim": 32 + 5 * _TIME_WIDTH,
        },
        {"text_encoder_2": _BIG},
        latent_scale=0.13025,
    ),
}


UNCLIP_WIDTH = 24
"""The width of CLIP's image embedding."""
UNCLIP = Tiny(
    {
        **_UNET,
        "class_embed_type": "projection",
        "projection_class_embeddings_input_dim": 2 * UNCLIP_WIDTH,
    },
    {"text_encoder": _OPEN},
    prediction="v_prediction",
)
"""A model of Stable Diffusion 2 with an image as an additional input."""


def write_family(family: Family, single: Path, folder: Path, tiny: Tiny | None = None) -> None:
    """Write the same weights as a file and as a folder. `tiny` defaults to `FAMILIES[family]`."""
    tiny = tiny or FAMILIES[family]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        unet = _rounded(stronger_prompt(UNet2DConditionModel(**tiny.unet)))
        vae_config = {**_SMALL_VAE, "scaling_factor": tiny.latent_scale}
        vae = _rounded(AutoencoderKL(**vae_config))
        encoders = [
            Component(
                config, _rounded(with_large_weights(_text_encoder(config, name), seed=SEED + at))
            )
            for at, (name, config) in enumerate(tiny.text_encoders.items())
        ]
    parts: dict[str, Any] = {
        "unet": Component(tiny.unet, unet),
        "vae": Component(vae_config, vae),
        "text_encoders": encoders,
        "scheduler": {**SCHEDULER, "prediction_type": tiny.prediction},
        "family": family,
    }
    write_single_file(single, **parts)
    _write_folder(folder, **parts)


def _text_encoder(config: Mapping[str, Any], name: str) -> nn.Module:
    cls = CLIPTextModelWithProjection if name == "text_encoder_2" else CLIPTextModel
    encoder: nn.Module = cls(CLIPTextConfig(**config))
    return encoder


def _rounded(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights, rounded to half precision, so that both layouts have equal values."""
    return {name: tensor.half().float() for name, tensor in module.state_dict().items()}


def _write_folder(folder: Path, **parts: Any) -> None:
    encoders: list[Component] = parts["text_encoders"]
    if parts["family"] is Family.SD2:
        encoders = [_without_last_layer(each) for each in encoders]
    configs = configs_of(**{**parts, "text_encoders": encoders})
    for name, config in configs.items():
        write_json(folder / name, config)
    write_json(folder / "model_index.json", {"_class_name": "DiffusionPipeline"})
    names = FAMILIES[parts["family"]].text_encoders
    states = {"unet/diffusion_pytorch_model": parts["unet"].state}
    states |= {"vae/diffusion_pytorch_model": parts["vae"].state}
    states |= {f"{n}/model": component.state for n, component in zip(names, encoders, strict=True)}
    for name, state in states.items():
        save_file(dict(state), folder / f"{name}.safetensors", metadata={"format": "pt"})


def _without_last_layer(component: Component) -> Component:
    """Return the text encoder without its last layer, as in diffusers' folders of this family."""
    last = component.config["num_hidden_layers"] - 1
    state = {k: v for k, v in component.state.items() if f"encoder.layers.{last}." not in k}
    return Component({**component.config, "num_hidden_layers": last}, state)
