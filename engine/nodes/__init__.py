"""The nodes, one declaration each."""

from engine.declarations import NodeType
from engine.nodes.image import save_image
from engine.nodes.latent import empty_latent_image, vae_decode
from engine.nodes.loaders import checkpoint_loader
from engine.nodes.sampling import k_sampler
from engine.nodes.text import clip_set_last_layer, clip_text_encode
from engine.nodes.webui import webui_text_encode

NODE_TYPES: tuple[NodeType, ...] = (
    checkpoint_loader,
    clip_set_last_layer,
    clip_text_encode,
    empty_latent_image,
    k_sampler,
    vae_decode,
    save_image,
    webui_text_encode,
)

__all__ = ["NODE_TYPES"]
