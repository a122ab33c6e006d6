"""What requests mean; how large a graph may be, and the images that it makes."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, NonNegativeInt, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group

Compatibility: TypeAlias = Literal["webui", "comfyui"]
"""Whose meaning the parameters of a diffusion request have."""
MAX_COST_WITHOUT_GPU = 250.0
"""The default of `max_cost` where all work is done by CPUs."""


class GraphSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    compatibility: Compatibility = "webui"
    """Whose meaning diffusion requests have that name none: the WebUI's, or that of the same nodes
    in ComfyUI."""
    max_nodes: PositiveInt = 1000
    """The most nodes that a graph may have."""
    max_node_id_chars: PositiveInt = 128
    """The longest id that a node may have."""
    max_prompt_chars: PositiveInt = 32_768
    """The longest text that a node may have."""
    max_sent_images: PositiveInt = 16
    """The most images that a graph may bring along, beside those that it names as uploads."""
    max_request_chars: PositiveInt = 131_072
    """The most characters that all texts of a request may have together."""
    max_extra_data_bytes: PositiveInt = 64 * 1024
    """The most bytes of JSON that a workflow may send along for its PNG files."""
    max_metadata_bytes: PositiveInt = 64 * 1024**2
    """The most bytes that all images of a job may say together of how they were made."""
    max_side_px: PositiveInt = 4096
    """The longest side that an image may have."""
    max_batch: PositiveInt = 16
    """The most images that one batch may have."""
    max_cost: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2000.0
    """How many megapixel-steps a job may cost on an endpoint that has no limit of its own; 0 is any
    number. If unset, it is 250 under a `darkroom up` that finds no GPU."""
    max_live_bytes: NonNegativeInt = 2 * 1024**3
    """How much a job may hold at once of images, latents, masks and encoded texts; 0 is any
    amount."""
    max_conditioning_rows: NonNegativeInt = 64
    """The most rows of conditioning that one sampler may have, positive and negative together; 0
    is any number."""
    max_tokens: NonNegativeInt = 65_536
    """The most tokens that one conditioning may have; 0 is any number."""
    max_merged_models: NonNegativeInt = 4
    """The most models with LoRAs that a job may hold at once; one that they are merged into takes
    about as much memory as its checkpoint. 0 is any number."""
    max_outputs: NonNegativeInt = 256
    """The most images and latents that a job may save; 0 is any number."""
