"""The nodes, one declaration each."""

from engine.declarations import NodeType
from engine.nodes.conditioning import (
    conditioning_average,
    conditioning_combine,
    conditioning_concat,
    conditioning_set_area,
    conditioning_set_area_percentage,
    conditioning_set_area_strength,
    conditioning_set_mask,
    conditioning_set_timestep_range,
    conditioning_zero_out,
)
from engine.nodes.custom_sampling import (
    basic_scheduler,
    exponential_scheduler,
    flip_sigmas,
    k_sampler_select,
    karras_scheduler,
    polyexponential_scheduler,
    sampler_custom,
    sd_turbo_scheduler,
    split_sigmas,
    vp_scheduler,
)
from engine.nodes.image import save_image
from engine.nodes.latent import empty_latent_image, vae_decode
from engine.nodes.loaders import checkpoint_loader
from engine.nodes.sampling import k_sampler, k_sampler_advanced
from engine.nodes.text import clip_set_last_layer, clip_text_encode

NODE_TYPES: tuple[NodeType, ...] = (
    checkpoint_loader,
    clip_set_last_layer,
    clip_text_encode,
    conditioning_average,
    conditioning_combine,
    conditioning_concat,
    conditioning_set_area,
    conditioning_set_area_percentage,
    conditioning_set_area_strength,
    conditioning_set_mask,
    conditioning_set_timestep_range,
    conditioning_zero_out,
    empty_latent_image,
    k_sampler,
    k_sampler_advanced,
    sampler_custom,
    k_sampler_select,
    basic_scheduler,
    karras_scheduler,
    exponential_scheduler,
    polyexponential_scheduler,
    sd_turbo_scheduler,
    vp_scheduler,
    split_sigmas,
    flip_sigmas,
    vae_decode,
    save_image,
)

__all__ = ["NODE_TYPES"]
