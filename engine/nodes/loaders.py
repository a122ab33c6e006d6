"""Nodes that load checkpoints, LoRAs and VAEs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.families.family import ModelName
from engine.graph import work
from engine.graph.cost import Estimate, ModelShape, model_shape
from engine.graph.declarations import Choice, Float, Link, node
from engine.graph.models_folder import CHECKPOINTS, LORAS, VAES

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip, FamilyTexts

_STRENGTH = {"min": -100.0, "max": 100.0}
_MERGED = ModelShape(is_merged=True)


def _checkpoint_estimate(inputs: Mapping[str, Any]) -> Estimate:
    name: ModelName = inputs["ckpt_name"]
    shape = ModelShape(family=name.family) if name.family else ModelShape()
    own = shape.traits.work
    return Estimate((shape, shape, None), work=work.LOAD * (own.load + own.text_load))


def _lora_estimate(inputs: Mapping[str, Any]) -> Estimate:
    model, clip = (model_shape(inputs[name]).traits.work for name in ("model", "clip"))
    return Estimate((_MERGED, _MERGED), work=work.LOAD * (model.load + clip.text_load))


def _model_lora_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((_MERGED,), work=work.LOAD * model_shape(inputs["model"]).traits.work.load)


def load_part_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    """Return the cost to load a model that is smaller than a checkpoint."""
    return Estimate((None,), work=work.LOAD_PART)


@node(
    "CheckpointLoaderSimple",
    inputs={"ckpt_name": Choice(folder=CHECKPOINTS, tooltip="The checkpoint (model) to load.")},
    outputs=("MODEL", "CLIP", "VAE"),
    category="loaders",
    display_name="Load Checkpoint",
    estimate=_checkpoint_estimate,
)
def checkpoint_loader(
    context: Context, ckpt_name: str
) -> Work[tuple[Model, Clip | FamilyTexts, Vae]]:
    """Loads the denoising model, the text encoder and the image decoder of a checkpoint."""
    checkpoint = yield from context.load(ckpt_name)
    return checkpoint.model, checkpoint.clip, checkpoint.vae


@node(
    "LoraLoader",
    inputs={
        "model": Link("MODEL"),
        "clip": Link("CLIP"),
        "lora_name": Choice(folder=LORAS, tooltip="The LoRA to load."),
        "strength_model": Float(1.0, **_STRENGTH, tooltip="How much it changes the model."),
        "strength_clip": Float(1.0, **_STRENGTH, tooltip="How much it changes the text encoder."),
    },
    outputs=("MODEL", "CLIP"),
    category="loaders",
    display_name="Load LoRA",
    estimate=_lora_estimate,
)
def lora_loader(
    context: Context,
    *,
    model: Model,
    clip: Clip | FamilyTexts,
    lora_name: str,
    strength_model: float,
    strength_clip: float,
) -> Work[tuple[Model, Clip | FamilyTexts | None]]:
    """Changes a model and its text encoder by a LoRA."""
    return (
        yield from context.lora(
            lora_name, model, clip, model_strength=strength_model, clip_strength=strength_clip
        )
    )


@node(
    "LoraLoaderModelOnly",
    inputs={
        "model": Link("MODEL"),
        "lora_name": Choice(folder=LORAS, tooltip="The LoRA to load."),
        "strength_model": Float(1.0, **_STRENGTH, tooltip="How much it changes the model."),
    },
    outputs=("MODEL",),
    category="loaders",
    display_name="Load LoRA (Model Only)",
    estimate=_model_lora_estimate,
)
def lora_loader_model_only(
    context: Context, model: Model, lora_name: str, strength_model: float
) -> Work[tuple[Model]]:
    """Changes a model by a LoRA, but not its text encoder."""
    changed, _ = yield from context.lora(
        lora_name, model, None, model_strength=strength_model, clip_strength=0.0
    )
    return (changed,)


@node(
    "VAELoader",
    inputs={"vae_name": Choice(folder=VAES, tooltip="The VAE to load.")},
    outputs=("VAE",),
    category="loaders",
    display_name="Load VAE",
    estimate=load_part_estimate,
)
def vae_loader(context: Context, vae_name: str) -> Work[tuple[Vae]]:
    """Loads a VAE from a file of its own."""
    return ((yield from context.load_vae(vae_name)),)
