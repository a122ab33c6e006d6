"""The nodes that graphs are made of.

To add a node, declare it with `@node` in one of these modules. A new module is listed here.
"""

from engine.graph.declarations import gather_nodes
from engine.nodes import (
    conditioning,
    control,
    custom_sampling,
    files,
    image,
    latent,
    latent_batch,
    loaders,
    mask,
    model_patches,
    sampling,
    text,
    upscale_model,
    webui,
)

NODE_TYPES = gather_nodes(
    loaders,
    text,
    conditioning,
    control,
    model_patches,
    sampling,
    custom_sampling,
    latent,
    latent_batch,
    mask,
    image,
    files,
    upscale_model,
    webui,
)
