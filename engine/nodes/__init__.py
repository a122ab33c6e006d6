"""The nodes, one declaration each."""

from engine.graph.declarations import NodeType
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
from engine.nodes.control import (
    control_net_apply,
    control_net_apply_advanced,
    control_net_loader,
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
from engine.nodes.image import (
    empty_image,
    image_batch,
    image_invert,
    image_pad_for_outpaint,
    image_scale,
    image_scale_by,
    preview_image,
    save_image,
)
from engine.nodes.image_files import load_image, load_image_mask
from engine.nodes.latent import (
    empty_latent_image,
    latent_composite,
    latent_upscale,
    latent_upscale_by,
    vae_decode,
    vae_encode,
)
from engine.nodes.latent_batch import latent_from_batch, repeat_latent_batch
from engine.nodes.latent_files import load_latent, save_latent
from engine.nodes.loaders import checkpoint_loader, lora_loader, lora_loader_model_only, vae_loader
from engine.nodes.mask import (
    image_to_mask,
    mask_to_image,
    set_latent_noise_mask,
    vae_encode_for_inpaint,
)
from engine.nodes.model_patches import (
    free_u,
    free_u_v2,
    model_sampling_discrete,
    rescale_cfg,
)
from engine.nodes.sampling import k_sampler, k_sampler_advanced
from engine.nodes.text import (
    clip_set_last_layer,
    clip_text_encode,
    clip_text_encode_sdxl,
    clip_text_encode_sdxl_refiner,
)
from engine.nodes.upscale_model import image_upscale_with_model, upscale_model_loader
from engine.nodes.webui import webui_latent_upscale, webui_sampler, webui_text_encode

NODE_TYPES: tuple[NodeType, ...] = (
    checkpoint_loader,
    lora_loader,
    lora_loader_model_only,
    vae_loader,
    clip_set_last_layer,
    clip_text_encode,
    clip_text_encode_sdxl,
    clip_text_encode_sdxl_refiner,
    conditioning_average,
    conditioning_combine,
    conditioning_concat,
    conditioning_set_area,
    conditioning_set_area_percentage,
    conditioning_set_area_strength,
    conditioning_set_mask,
    conditioning_set_timestep_range,
    conditioning_zero_out,
    control_net_loader,
    control_net_apply,
    control_net_apply_advanced,
    empty_latent_image,
    free_u,
    free_u_v2,
    model_sampling_discrete,
    rescale_cfg,
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
    # latents
    vae_encode,
    latent_upscale,
    latent_upscale_by,
    latent_composite,
    latent_from_batch,
    repeat_latent_batch,
    load_latent,
    save_latent,
    # masks
    vae_encode_for_inpaint,
    set_latent_noise_mask,
    image_to_mask,
    mask_to_image,
    # images
    load_image,
    load_image_mask,
    empty_image,
    image_scale,
    image_scale_by,
    image_invert,
    image_batch,
    image_pad_for_outpaint,
    upscale_model_loader,
    image_upscale_with_model,
    save_image,
    preview_image,
    # as in the WebUI
    webui_text_encode,
    webui_sampler,
    webui_latent_upscale,
)

__all__ = ["NODE_TYPES"]
