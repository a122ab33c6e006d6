"""The nodes, one declaration each."""

from engine.declarations import NodeType
from engine.nodes.image import save_image
from engine.nodes.latent import empty_latent_image, vae_decode
from engine.nodes.loaders import checkpoint_loader, lora_loader, lora_loader_model_only, vae_loader
from engine.nodes.sampling import k_sampler
from engine.nodes.text import (
    clip_set_last_layer,
    clip_text_encode,
    clip_text_encode_sdxl,
    clip_text_encode_sdxl_refiner,
)

NODE_TYPES: tuple[NodeType, ...] = (
    checkpoint_loader,
    lora_loader,
    lora_loader_model_only,
    vae_loader,
    clip_set_last_layer,
    clip_text_encode,
    clip_text_encode_sdxl,
    clip_text_encode_sdxl_refiner,
    empty_latent_image,
    k_sampler,
    vae_decode,
    save_image,
)

__all__ = ["NODE_TYPES"]
