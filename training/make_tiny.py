"""Writes a tiny checkpoint with random weights, in the key layout of Stable Diffusion 1.x.

    python -m training.make_tiny [OUT.safetensors]

The file has about 12 MB. With the same version of torch, the file is always the same. The
configurations are written to `OUT.config/` beside the file. The weights are chosen so that pictures
(64x64) are not saturated, and depend on seed, step and prompt. The checkpoint is for tests, demos
and benchmarks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from training.single_file import SCHEDULER, Component, write_single_file

SEED = 20261120
DEFAULT_OUT = Path(__file__).parents[1] / "models" / "checkpoints" / "darkroom-tiny.safetensors"

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

_LATENT_CHANNELS = 4
_CHANNELS_PER_LATENT = 2
"""A latent channel passes through the UNet as x and -x, because silu(x) - silu(-x) = x."""
_COPIED_CHANNELS = _LATENT_CHANNELS * _CHANNELS_PER_LATENT
_COPIED_GAIN = 0.93


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.make_tiny", description="Write a tiny random checkpoint."
    )
    parser.add_argument("out", nargs="?", type=Path, default=DEFAULT_OUT)
    out: Path = parser.parse_args().out
    write_checkpoint(out)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def write_checkpoint(out: Path) -> None:
    """Write the checkpoint to `out`, and the configurations to a folder beside `out`."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        write_single_file(
            out,
            unet=Component(UNET, _make_unet().state_dict()),
            vae=Component(VAE, _make_vae().state_dict()),
            text_encoders=[Component(TEXT_ENCODER, _make_text_encoder().state_dict())],
            scheduler=SCHEDULER,
        )


def _make_unet() -> nn.Module:
    torch.manual_seed(SEED)
    unet: Any = UNet2DConditionModel(**UNET)
    _copy_latent_through(unet)
    return stronger_prompt(unet)


def stronger_prompt(unet: Any) -> nn.Module:
    """Change a random UNet so that its output depends on prompt and step."""
    for name, module in unet.named_modules():
        if name.endswith("attn2"):  # the prompt
            for layer, gain in ((module.to_q, 3), (module.to_k, 3), (module.to_v, 2)):
                layer.weight.mul_(gain)
            module.to_out[0].weight.mul_(3)
        if name.endswith("time_emb_proj"):  # the step
            module.weight.mul_(6)
    made: nn.Module = unet
    return made


def _copy_latent_through(unet: Any) -> None:
    """Make the first channels copy the latent from input to output. Other channels stay random."""
    first = UNET["block_out_channels"][0]
    last = unet.up_blocks[-1]
    resnet, attention = last.resnets[-1], last.attentions[-1]
    for channel in range(_COPIED_CHANNELS):
        sign = 1.0 if channel % 2 == 0 else -1.0
        unet.conv_in.weight[channel] = 0
        unet.conv_in.bias[channel] = 0
        unet.conv_in.weight[channel, channel // _CHANNELS_PER_LATENT, 1, 1] = sign
    for layer in (resnet.conv2, resnet.conv_shortcut, attention.proj_out):
        layer.weight[:_COPIED_CHANNELS] = 0
        layer.bias[:_COPIED_CHANNELS] = 0
    for channel in range(_COPIED_CHANNELS):
        resnet.conv_shortcut.weight[channel, first + channel, 0, 0] = 1
    unet.conv_norm_out.weight.fill_(1)
    unet.conv_norm_out.bias.zero_()
    unet.conv_out.weight.mul_(0.4)
    for latent in range(_LATENT_CHANNELS):
        unet.conv_out.weight[latent, :_COPIED_CHANNELS] = 0
        at = latent * _CHANNELS_PER_LATENT
        unet.conv_out.weight[latent, at, 1, 1] = _COPIED_GAIN
        unet.conv_out.weight[latent, at + 1, 1, 1] = -_COPIED_GAIN


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
    return with_large_weights(CLIPTextModel(CLIPTextConfig(**TEXT_ENCODER)), seed=SEED + 3)


def with_large_weights(encoder: nn.Module, *, seed: int) -> nn.Module:
    """Set larger weights than in a new model, so that words have different encodings."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in encoder.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim == 2:
            weight.copy_(noise * (0.5 if "embedding" in name else 0.8 / weight.shape[1] ** 0.5))
        elif "norm" in name and name.endswith("weight"):
            weight.copy_(1 + 0.1 * noise)
        else:
            weight.copy_(0.02 * noise)
    return encoder


if __name__ == "__main__":
    main()
