"""Nodes for vision models, and for unCLIP and Redux, which use images in addition to the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import BatchShape, ConditioningShape, Estimate, ImageShape, saturated
from engine.graph.declarations import Choice, Float, Link, node
from engine.graph.models_folder import CHECKPOINTS, CLIP_VISIONS, STYLE_MODELS
from engine.nodes.loaders import load_part_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip, FamilyTexts
    from engine.diffusion.vision.clip_vision import ClipVision, ClipVisionOutput
    from engine.diffusion.vision.redux import StyleModel

_STATES, _WIDTH = 1024, 1152
"""The number and the width of the states of SigLIP So400m at 512 pixels, which has the most."""
_STYLE = 0.05
"""The work to make tokens of the states of an image."""


class VisionShape(BatchShape):
    """The states of images before and after the last layer, with a float32 for each channel."""

    __slots__ = ()
    pixel_bytes = 8.0


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


def _style_estimate(inputs: Mapping[str, Any]) -> Estimate:
    conditioning: ConditioningShape = inputs["conditioning"]
    seen: VisionShape = inputs["clip_vision_output"]
    tokens = saturated(conditioning.tokens + seen.count * _STATES)
    return Estimate((replace(conditioning, tokens=tokens),), work=seen.count * _STYLE)


@node(
    "CLIPVisionLoader",
    inputs={"clip_name": Choice(folder=CLIP_VISIONS, tooltip="The CLIP vision model to load.")},
    outputs=("CLIP_VISION",),
    category="loaders",
    display_name="Load CLIP Vision",
    estimate=load_part_estimate,
)
def clip_vision_loader(context: Context, clip_name: str) -> Work[tuple[ClipVision]]:
    """Loads a vision model: CLIP ViT-L/14, ViT-H/14 or ViT-bigG/14, or SigLIP So400m."""
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
    "StyleModelLoader",
    inputs={"style_model_name": Choice(folder=STYLE_MODELS, tooltip="The Redux to load.")},
    outputs=("STYLE_MODEL",),
    category="loaders",
    display_name="Load Style Model",
    estimate=load_part_estimate,
)
def style_model_loader(context: Context, style_model_name: str) -> Work[tuple[StyleModel]]:
    """Loads Redux, a model of Flux.1 that makes tokens of a picture."""
    from engine.diffusion.vision.redux import read_style_model

    return ((yield from context.model(STYLE_MODELS, style_model_name, read_style_model)),)


@node(
    "StyleModelApply",
    inputs={
        "conditioning": Link("CONDITIONING"),
        "style_model": Link("STYLE_MODEL"),
        "clip_vision_output": Link("CLIP_VISION_OUTPUT"),
    },
    optional={
        "strength": Float(1.0, min=0.0, max=10.0, step=0.001, tooltip="The weight of the picture."),
        "strength_type": Choice(
            ("multiply", "attn_bias"),
            tooltip="Whether the strength multiplies the tokens, or the attention to the tokens.",
        ),
    },
    outputs=("CONDITIONING",),
    category="conditioning/style_model",
    display_name="Apply Style Model",
    estimate=_style_estimate,
)
def style_model_apply(
    context: Context,
    *,
    conditioning: Conditioning,
    style_model: StyleModel,
    clip_vision_output: ClipVisionOutput,
    strength: float = 1.0,
    strength_type: str = "multiply",
) -> Work[tuple[Conditioning]]:
    """Appends a picture to the texts, for Flux.1 with Redux."""
    from engine.diffusion.vision.redux import EncodeStyle, with_style

    tokens = yield EncodeStyle(style_model, clip_vision_output)
    is_bias = strength_type == "attn_bias"
    return (with_style(conditioning, tokens, strength, is_bias=is_bias),)


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
