"""Writes tiny random models of the families of transformers, for tests.

Each network, text encoder and VAE is written to a separate file in ComfyUI's layout. The same
weights can be written as one file or as a diffusers folder. Tokenizers have a token for each byte
or letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel, ZImageTransformer2DModel
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)

from engine.diffusion.families.family_lookup import transformer_family
from engine.diffusion.loading import layout
from engine.families.family import Family
from training.make_tiny import SEED, TEXT_ENCODER, with_large_weights
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
FLUX: dict[str, Any] = {
    "in_channels": 64,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": 48,
    "pooled_projection_dim": 64,
    "axes_dims_rope": [4, 14, 14],
}
T5: dict[str, Any] = {
    "vocab_size": 120,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}
CLIP_L: dict[str, Any] = {**TEXT_ENCODER, "num_attention_heads": 1, "num_hidden_layers": 2}
_CHAT_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def write_z_image(root: Path, *, layers: int = 2) -> dict[str, Any]:
    """Write a tiny Z-Image below the models folder `root`. Returns its modules by their roles."""
    sizes = {**QWEN3, "num_hidden_layers": layers + 1}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        made = {
            "transformer": _with_varied_weights(
                ZImageTransformer2DModel(**{**Z_IMAGE, "n_layers": layers})
            ),
            "text_encoder": _with_varied_weights(Qwen3Model(Qwen3Config(**sizes))),
            "vae": AutoencoderKL(**VAE).eval(),
        }
    tokenizer = byte_tokenizer()
    write_network(root / "diffusion_models/tiny-z-image.safetensors", Family.Z_IMAGE, made)
    state = {f"model.{name}": each for name, each in made["text_encoder"].state_dict().items()}
    write_encoder(root / "text_encoders/tiny-qwen3.safetensors", state, tokenizer)
    write_vae(root / "vae/tiny-ae.safetensors", made["vae"])
    return {**made, "tokenizer": tokenizer}


def write_flux(root: Path, name: str = "dev") -> dict[str, Any]:
    """Write a tiny Flux, `dev` or `schnell`, as `write_z_image` writes a Z-Image."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED + 1)
        config = {**FLUX, "guidance_embeds": name == "dev"}
        clip = with_large_weights(CLIPTextModel(CLIPTextConfig(**CLIP_L)), seed=SEED)
        clip.load_state_dict({key: each.half().float() for key, each in clip.state_dict().items()})
        made = {
            "transformer": _with_varied_weights(FluxTransformer2DModel(**config)),
            "text_encoder": clip.eval(),
            "text_encoder_2": _with_varied_weights(T5EncoderModel(T5Config(**T5))),
            "vae": AutoencoderKL(**VAE).eval(),
        }
    tokenizer = letter_tokenizer()
    write_network(root / f"unet/tiny-flux-{name}.safetensors", Family.FLUX, made)
    state = {
        key: each
        for key, each in made["text_encoder_2"].state_dict().items()
        if key != "encoder.embed_tokens.weight"
    }
    write_encoder(root / "clip/tiny-t5xxl.safetensors", state, tokenizer)
    clip_state = {
        key if key.startswith("text_model.") else f"text_model.{key}": each
        for key, each in clip.state_dict().items()
    }
    _save(clip_state, root / "clip/tiny-clip-l.safetensors")
    write_vae(root / "vae/tiny-flux-ae.safetensors", made["vae"])
    return {**made, "tokenizer_2": tokenizer}


def write_whole(path: Path, family: Family, made: Mapping[str, Any]) -> None:
    """Write all parts in one file, as ComfyUI saves a checkpoint, without the tokenizers."""
    state = made["transformer"].state_dict()
    parts = {
        "model.diffusion_model.": packed(state, transformer_family(family).key_map(list(state), {}))
    }
    parts["vae."] = packed(made["vae"].state_dict(), layout.vae(made["vae"].state_dict(), VAE))
    encoder = made["text_encoder"].state_dict()
    parts["text_encoders.qwen3_4b.transformer.model."] = encoder
    _save({f"{at}{key}": each for at, some in parts.items() for key, each in some.items()}, path)
    write_json(path.with_suffix(".config") / "config.json", VAE)


def write_folder(path: Path, made: Mapping[str, Any]) -> None:
    write_json(path / "model_index.json", {"_class_name": "ZImagePipeline"})
    for name in ("transformer", "text_encoder", "vae"):
        made[name].save_pretrained(path / name)
    (path / "tokenizer").mkdir()
    made["tokenizer"].save(str(path / "tokenizer" / "tokenizer.json"))


def write_network(path: Path, family: Family, made: Mapping[str, Any]) -> None:
    state = made["transformer"].state_dict()
    joined = 7 * FLUX["attention_head_dim"] * FLUX["num_attention_heads"]
    shapes = {
        f"single_blocks.{at}.linear1.{end}": (joined,)
        for at in range(FLUX["num_single_layers"])
        for end in ("weight", "bias")
    }
    _save(packed(state, transformer_family(family).key_map(list(state), shapes)), path)


def write_encoder(path: Path, state: Mapping[str, Tensor], tokenizer: Tokenizer) -> None:
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
    """Return a tokenizer that splits a text as Qwen does, but has a token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_CHAT_TOKENS)
    return tokenizer


def letter_tokenizer() -> Tokenizer:
    """Return a tokenizer that splits a text as T5 does, but has a token for each letter."""
    letters = ["\u2581", *(chr(code) for code in range(33, 127))]
    vocabulary = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        *((each, -3.0) for each in letters),
    ]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def _with_varied_weights(module: nn.Module) -> nn.Module:
    """Return the module with weights that make its output depend on texts, times and positions."""
    for name, weight in module.named_parameters():
        if weight.ndim == 2:
            weight.normal_(0.0, 1.0 if "embed_tokens" in name else 1.3 / weight.shape[1] ** 0.5)
        elif "norm" not in name:
            weight.normal_(0.0, 0.02)
    return module.eval()


def _save(state: Mapping[str, Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in state.items()}, path)
