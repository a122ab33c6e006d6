"""The nodes that graphs are made of.

To add a node, declare it with `@node` in one of the modules. A new module is listed here.
"""

from engine.graph.declarations import gather_nodes
from engine.nodes import (
    attention_patches,
    conditioning,
    control,
    families,
    loaders,
    maths,
    merging,
    model_patches,
    text,
    values,
    vision,
)
from engine.nodes.images import (
    compositing,
    files,
    filters,
    image,
    mask,
    mask_operations,
    sent_images,
    transforms,
    upscale_model,
)
from engine.nodes.latents import arithmetic, latent, latent_batch, tiled
from engine.nodes.latents import transforms as latent_transforms
from engine.nodes.samplers import custom_sampling, guiders, sampling, schedulers
from engine.nodes.webui import hires, img2img, sampler, tiling
from engine.nodes.webui import text as webui_text

NODE_TYPES = gather_nodes(
    loaders,
    families,
    text,
    conditioning,
    control,
    vision,
    model_patches,
    attention_patches,
    merging,
    sampling,
    custom_sampling,
    schedulers,
    guiders,
    latent,
    latent_batch,
    arithmetic,
    latent_transforms,
    tiled,
    mask,
    mask_operations,
    image,
    transforms,
    compositing,
    filters,
    files,
    sent_images,
    upscale_model,
    values,
    maths,
    webui_text,
    sampler,
    hires,
    img2img,
    tiling,
)
