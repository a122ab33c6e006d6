"""Writes tiny random models of the families of transformers, for tests.

Each network, text encoder and VAE lies in a file of its own, in ComfyUI's layout, and together they
are a diffusers folder of the same weights. Tokenizers have a token for each byte or letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, ZImageTransformer2DModel
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from engine.diffusion.families.table import FAMILIES
from engine.diffusion.loading import layout
from engine.graph.families import Family
from training.make_tiny import SEED
from training.single_file import packed, write_json

VAE: dict[str, Any] = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 16,
    "block_out_channels": [8, 8, 8, 8],
    "norm_num_groups": 4,
    "layers_per_block": 1,
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "sample_size": 64,
    "scaling_factor": 0.3611,
    "shift_factor": 0.1159,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
Z_IMAGE: dict[str, Any] = {
    "in_channels": 16,
    "dim": 64,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 4,
    "cap_feat_dim": 32,
    "axes_dims": [4, 6, 6],
    "axes_lens": [1024, 64, 64],
}
QWEN3: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
}
_CHAT_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def write_z_image(root: Path) -> dict[str, Any]:
    """Write a tiny Z-Image below the models folder `root`; returns its modules by their roles."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        made = {
            "transformer": _livelier(ZImageTransformer2DModel(**Z_IMAGE)),
            "text_encoder": _livelier(Qwen3Model(Qwen3Config(**QWEN3))),
            "vae": AutoencoderKL(**VAE).eval(),
        }
    tokenizer = byte_tokenizer()
    write_network(root / "diffusion_models/tiny-z-image.safetensors", Family.Z_IMAGE, made)
    state = {f"model.{name}": each for name, each in made["text_encoder"].state_dict().items()}
    write_encoder(root / "text_encoders/tiny-qwen3.safetensors", state, tokenizer)
    write_vae(root / "vae/tiny-ae.safetensors", made["vae"])
    return {**made, "tokenizer": tokenizer}


def write_network(path: Path, family: Family, made: Mapping[str, Any]) -> None:
    """Write a network in ComfyUI's layout."""
    state = made["transformer"].state_dict()
    _save(packed(state, FAMILIES[family].key_map(list(state), {})), path)


def write_encoder(path: Path, state: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
    """Write a text encoder, with its tokenizer beside it."""
    _save(state, path)
    folder = path.with_suffix(".config")
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_vae(path: Path, vae: Any) -> None:
    """Write a VAE in the layout of a checkpoint, with its configuration beside it."""
    state = vae.state_dict()
    _save(packed(state, layout.vae(state, VAE)), path)
    write_json(path.with_suffix(".config") / "config.json", VAE)


def byte_tokenizer() -> Tokenizer:
    """Qwen's way to split a text, without any merges: a token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_CHAT_TOKENS)
    return tokenizer


def _livelier(module: nn.Module) -> nn.Module:
    """The module with weights by which texts, times and places change what it answers."""
    for name, weight in module.named_parameters():
        if weight.ndim == 2:
            weight.normal_(0.0, 1.0 if "embed_tokens" in name else 1.3 / weight.shape[1] ** 0.5)
        elif "norm" not in name:
            weight.normal_(0.0, 0.02)
    return module.eval()


def _save(state: Mapping[str, Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
