"""Nodes for CLIP vision models and for unCLIP, which takes images in addition to the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import BatchShape, ConditioningShape, Estimate, ImageShape
from engine.graph.declarations import Choice, Float, Link, node
from engine.graph.models_folder import CHECKPOINTS, CLIP_VISIONS
from engine.nodes.loaders import load_part_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip, FamilyTexts
    from engine.diffusion.vision.clip_vision import ClipVision, ClipVisionOutput

_STATES, _WIDTH = 577, 1664
"""The largest number of states (of ViT-L/14 at 336 pixels) and the largest width (of
ViT-bigG/14)."""


class VisionShape(BatchShape):
    """The CLIP vision states of images, with a float32 for each channel and patch."""

    __slots__ = ()
    pixel_bytes = 4.0


def _unclip_checkpoint_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((None, None, None, None), work=work.LOAD + work.LOAD_PART)


def _encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return Estimate(
        (VisionShape(images.count, _WIDTH, _STATES),),
        work=images.count * work.VISION + images.megapixels * work.RESAMPLE,
        scratch_bytes=images.size_bytes,
    )


def _unclip_estimate(inputs: Mapping[str, Any]) -> Estimate:
    conditioning: ConditioningShape = inputs["conditioning"]
    seen: VisionShape = inputs["clip_vision_output"]
    return Estimate((conditioning.holding(seen.size_bytes),))


@node(
    "CLIPVisionLoader",
    inputs={"clip_name": Choice(folder=CLIP_VISIONS, tooltip="The CLIP vision model to load.")},
    outputs=("CLIP_VISION",),
    category="loaders",
    display_name="Load CLIP Vision",
    estimate=load_part_estimate,
)
def clip_vision_loader(context: Context, clip_name: str) -> Work[tuple[ClipVision]]:
    """Loads a CLIP vision model: ViT-L/14, ViT-H/14 or ViT-bigG/14."""
    return ((yield from context.vision.load(clip_name)),)


@node(
    "CLIPVisionEncode",
    inputs={
        "clip_vision": Link("CLIP_VISION"),
        "image": Link("IMAGE"),
        "crop": Choice(
            ("center", "none"),
            tooltip="Use the middle square of the picture, or squeeze all of it to a square.",
        ),
    },
    outputs=("CLIP_VISION_OUTPUT",),
    category="conditioning",
    display_name="CLIP Vision Encode",
    estimate=_encode_estimate,
)
def clip_vision_encode(
    context: Context, *, clip_vision: ClipVision, image: Images, crop: str
) -> Work[tuple[ClipVisionOutput]]:
    """Encodes pictures with a CLIP vision model."""
    crops = crop == "center"
    return ((yield from context.vision.encode(clip_vision, image, crop=crops)),)


@node(
    "unCLIPConditioning",
    inputs={
        "conditioning": Link("CONDITIONING"),
        "clip_vision_output": Link("CLIP_VISION_OUTPUT"),
        "strength": Float(1.0, min=-10.0, max=10.0, tooltip="The weight of the picture."),
        "noise_augmentation": Float(
            0.0,
            min=0.0,
            max=1.0,
            tooltip="How far the result may deviate from the picture. 1 is all noise.",
        ),
    },
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="unCLIP Conditioning",
    estimate=_unclip_estimate,
)
def unclip_conditioning(
    context: Context,
    *,
    conditioning: Conditioning,
    clip_vision_output: ClipVisionOutput,
    strength: float,
    noise_augmentation: float,
) -> tuple[Conditioning]:
    """Adds a picture to the conditioning, for unCLIP models and SDXL."""
    from engine.diffusion.vision.unclip import UnclipImage

    if strength == 0:
        return (conditioning,)
    image = UnclipImage(clip_vision_output.image_embeds, strength, noise_augmentation)
    return (tuple(replace(each, unclip=(*each.unclip, image)) for each in conditioning),)


@node(
    "unCLIPCheckpointLoader",
    inputs={"ckpt_name": Choice(folder=CHECKPOINTS, tooltip="The checkpoint of unCLIP to load.")},
    outputs=("MODEL", "CLIP", "VAE", "CLIP_VISION"),
    category="loaders",
    display_name="Load unCLIP Checkpoint",
    estimate=_unclip_checkpoint_estimate,
)
def unclip_checkpoint_loader(
    context: Context, ckpt_name: str
) -> Work[tuple[Model, Clip | FamilyTexts, Vae, ClipVision]]:
    """Loads a checkpoint of unCLIP with its CLIP vision model."""
    checkpoint = yield from context.load(ckpt_name)
    network = yield from context.vision.load_from_checkpoint(ckpt_name)
    return checkpoint.model, checkpoint.clip, checkpoint.vae, network
