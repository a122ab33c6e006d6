"""The node types that graphs use.

To add a node, declare it with `@node` in one of the modules. Add a new module to both lists here.
"""

from engine.graph.declarations import gather_nodes
from engine.nodes import (
    conditioning,
    control,
    custom_sampling,
    families,
    gligen,
    images,
    latents,
    loaders,
    masks,
    maths,
    merging,
    model_patches,
    sampling,
    text,
    values,
    vision,
    webui,
)

NODE_TYPES = gather_nodes(
    loaders,
    families,
    text,
    conditioning,
    control,
    gligen,
    vision,
    model_patches,
    merging,
    sampling,
    custom_sampling,
    latents,
    masks,
    images,
    values,
    maths,
    webui,
)
