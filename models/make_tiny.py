"""Writes a tiny checkpoint with random weights, in the key layout of Stable Diffusion 1.x.

    python models/make_tiny.py [OUT.safetensors]

About 12 MB, the same every time under one version of torch; its sizes go into `OUT.config/` beside
it. The weights are shaped so that pictures (64x64 by nature) are finite, not saturated, and depend
on seed, step and prompt: they are for tests, demos and benchmarks.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

SEED = 20261120
DEFAULT_OUT = Path(__file__).parent / "checkpoints" / "darkroom-tiny.safetensors"

UNET: dict[str, Any] = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": [32, 64],
    "layers_per_block": 2,
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "cross_attention_dim": 64,
    "attention_head_dim": 4,
}
VAE: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 4,
    "block_out_channels": [32, 32, 64, 64],
    "layers_per_block": 2,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "sample_size": 64,
    "scaling_factor": 0.18215,
}
TEXT_ENCODER: dict[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "projection_dim": 64,
    "bos_token_id": 49406,
    "eos_token_id": 49407,
    "pad_token_id": 1,
}
SCHEDULER: dict[str, Any] = {
    "_class_name": "EulerDiscreteScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
}

_LATENT_CHANNELS = 4
_CHANNELS_PER_LATENT = 2
"""A latent channel rides through the UNet as x and -x, for silu(x) - silu(-x) = x."""
_CARRIED = _LATENT_CHANNELS * _CHANNELS_PER_LATENT
_CARRIED_GAIN = 0.93


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny random checkpoint.")
    parser.add_argument("out", nargs="?", type=Path, default=DEFAULT_OUT)
    out: Path = parser.parse_args().out
    write_checkpoint(out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def write_checkpoint(out: Path) -> None:
    """Write the checkpoint to `out` and its sizes beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    _write_configs(out.with_suffix(".config"))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tensors = {
            **_unet_keys(_make_unet().state_dict()),
            **_vae_keys(_make_vae().state_dict()),
            **_text_keys(_make_text_encoder().state_dict()),
        }
    half = {name: tensor.to(torch.float16).contiguous() for name, tensor in tensors.items()}
    # Renamed into place, so that a watcher of the folder never sees half a file.
    unfinished = out.with_suffix(".unfinished")
    save_file(half, unfinished, metadata={"format": "pt"})
    unfinished.replace(out)


def _write_configs(folder: Path) -> None:
    configs = {
        "unet/config.json": {"_class_name": "UNet2DConditionModel", **UNET},
        "vae/config.json": {"_class_name": "AutoencoderKL", **VAE},
        "text_encoder/config.json": {"model_type": "clip_text_model", **TEXT_ENCODER},
        "scheduler/scheduler_config.json": SCHEDULER,
    }
    for name, config in configs.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config, indent=1) + "\n")


def _make_unet() -> nn.Module:
    torch.manual_seed(SEED)
    unet: Any = UNet2DConditionModel(**UNET)
    _carry_latent_through(unet)
    for name, module in unet.named_modules():
        if name.endswith("attn2"):  # the prompt
            for layer, gain in ((module.to_q, 3), (module.to_k, 3), (module.to_v, 2)):
                layer.weight.mul_(gain)
            module.to_out[0].weight.mul_(3)
        if name.endswith("time_emb_proj"):  # the step
            module.weight.mul_(6)
    made: nn.Module = unet
    return made


def _carry_latent_through(unet: Any) -> None:
    """Make the first channels hand the latent from input to output; the rest stays random."""
    first = UNET["block_out_channels"][0]
    last = unet.up_blocks[-1]
    resnet, attention = last.resnets[-1], last.attentions[-1]
    for channel in range(_CARRIED):
        sign = 1.0 if channel % 2 == 0 else -1.0
        unet.conv_in.weight[channel] = 0
        unet.conv_in.bias[channel] = 0
        unet.conv_in.weight[channel, channel // _CHANNELS_PER_LATENT, 1, 1] = sign
    for layer in (resnet.conv2, resnet.conv_shortcut, attention.proj_out):
        layer.weight[:_CARRIED] = 0
        layer.bias[:_CARRIED] = 0
    for channel in range(_CARRIED):
        resnet.conv_shortcut.weight[channel, first + channel, 0, 0] = 1
    unet.conv_norm_out.weight.fill_(1)
    unet.conv_norm_out.bias.zero_()
    unet.conv_out.weight.mul_(0.4)
    for latent in range(_LATENT_CHANNELS):
        unet.conv_out.weight[latent, :_CARRIED] = 0
        at = latent * _CHANNELS_PER_LATENT
        unet.conv_out.weight[latent, at, 1, 1] = _CARRIED_GAIN
        unet.conv_out.weight[latent, at + 1, 1, 1] = -_CARRIED_GAIN


def _make_vae() -> nn.Module:
    torch.manual_seed(SEED + 1)
    vae: Any = AutoencoderKL(**VAE)
    vae.decoder.conv_in.weight.mul_(3)
    vae.decoder.conv_out.weight.mul_(1.5)
    vae.quant_conv.weight[_LATENT_CHANNELS:].mul_(0.1)
    vae.quant_conv.bias[_LATENT_CHANNELS:] = -6
    module: nn.Module = vae
    return module


def _make_text_encoder() -> nn.Module:
    """Larger weights than a fresh model's, so that unlike words give unlike encodings."""
    encoder = CLIPTextModel(CLIPTextConfig(**TEXT_ENCODER))
    generator = torch.Generator().manual_seed(SEED + 3)
    for name, weight in encoder.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 2:
            weight.copy_(noise * (0.5 if "embedding" in name else 0.8 / weight.shape[1] ** 0.5))
        elif "norm" in name and name.endswith("weight"):
            weight.copy_(1 + 0.1 * noise)
        else:
            weight.copy_(0.02 * noise)
    return encoder


def _unet_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """diffusers' names to the single file's."""
    blocks = _unet_blocks()
    layers = {
        "norm1": "in_layers.0",
        "conv1": "in_layers.2",
        "norm2": "out_layers.0",
        "conv2": "out_layers.3",
        "time_emb_proj": "emb_layers.1",
        "conv_shortcut": "skip_connection",
    }
    renamed = {}
    for name, tensor in state.items():
        block = max((each for each in blocks if name.startswith(f"{each}.")), key=len)
        rest = name.removeprefix(f"{block}.")
        if ".resnets." in block:
            layer, _, end = rest.partition(".")
            rest = f"{layers[layer]}.{end}"
        renamed[f"model.diffusion_model.{blocks[block]}.{rest}"] = tensor
    return renamed


def _unet_blocks() -> dict[str, str]:
    blocks = {
        "time_embedding.linear_1": "time_embed.0",
        "time_embedding.linear_2": "time_embed.2",
        "conv_in": "input_blocks.0.0",
        "conv_norm_out": "out.0",
        "conv_out": "out.2",
        "mid_block.resnets.0": "middle_block.0",
        "mid_block.attentions.0": "middle_block.1",
        "mid_block.resnets.1": "middle_block.2",
    }
    depth = UNET["layers_per_block"] + 1
    for level, up_type in enumerate(UNET["up_block_types"]):
        for layer in range(depth):
            down, up = 1 + level * depth + layer, level * depth + layer
            blocks[f"down_blocks.{level}.resnets.{layer}"] = f"input_blocks.{down}.0"
            blocks[f"down_blocks.{level}.attentions.{layer}"] = f"input_blocks.{down}.1"
            blocks[f"up_blocks.{level}.resnets.{layer}"] = f"output_blocks.{up}.0"
            blocks[f"up_blocks.{level}.attentions.{layer}"] = f"output_blocks.{up}.1"
        down_end, up_end = (level + 1) * depth, level * depth + depth - 1
        after = 2 if "CrossAttn" in up_type else 1
        blocks[f"down_blocks.{level}.downsamplers.0.conv"] = f"input_blocks.{down_end}.0.op"
        blocks[f"up_blocks.{level}.upsamplers.0.conv"] = f"output_blocks.{up_end}.{after}.conv"
    return blocks


def _vae_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in state.items():
        new = _vae_key(name)
        # The single file has the attention's projections as 1x1 convolutions.
        is_projection = "attn_1" in new and new.endswith("weight") and tensor.ndim == 2
        renamed[f"first_stage_model.{new}"] = tensor[:, :, None, None] if is_projection else tensor
    return renamed


def _vae_key(name: str) -> str:
    top = len(VAE["block_out_channels"]) - 1
    new = re.sub(r"encoder\.down_blocks\.(\d)\.resnets\.(\d)", r"encoder.down.\1.block.\2", name)
    new = re.sub(r"encoder\.down_blocks\.(\d)\.downsamplers\.0", r"encoder.down.\1.downsample", new)
    new = re.sub(
        r"decoder\.up_blocks\.(\d)\.resnets\.(\d)",
        lambda at: f"decoder.up.{top - int(at[1])}.block.{at[2]}",
        new,
    )
    new = re.sub(
        r"decoder\.up_blocks\.(\d)\.upsamplers\.0",
        lambda at: f"decoder.up.{top - int(at[1])}.upsample",
        new,
    )
    new = re.sub(r"mid_block\.resnets\.(\d)", lambda at: f"mid.block_{int(at[1]) + 1}", new)
    new = new.replace("mid_block.attentions.0", "mid.attn_1")
    new = new.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
    attention = {
        "group_norm": "norm",
        "to_q": "q",
        "to_k": "k",
        "to_v": "v",
        "to_out.0": "proj_out",
    }
    for old, short in attention.items():
        new = new.replace(f"attn_1.{old}", f"attn_1.{short}")
    return new


def _text_keys(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = "cond_stage_model.transformer.text_model."
    return {f"{prefix}{name.removeprefix('text_model.')}": tensor for name, tensor in state.items()}


if __name__ == "__main__":
    main()
