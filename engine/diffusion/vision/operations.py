"""The operations of `context.vision`, which use pictures as prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from engine.batcher import Work
from engine.diffusion.images.latents import Images
from engine.diffusion.loading.networks import require_unet
from engine.diffusion.loading.store import Load, ModelStore
from engine.diffusion.model import Model
from engine.diffusion.vision.attended import CrossAttention, ImagePrompt, KeysValues
from engine.diffusion.vision.clip_vision import (
    ClipVision,
    ClipVisionOutput,
    encoded,
    load_clip_vision,
)
from engine.errors import EngineError
from engine.graph.models_folder import CHECKPOINTS, CLIP_VISIONS

_BLOCKS: dict[str, Literal["input", "middle", "output"]] = {
    "down_blocks": "input",
    "up_blocks": "output",
    "mid_block": "middle",
}
"""diffusers and the files of IP-Adapter number their layers in this order."""
_CALLED = ("down_blocks", "mid_block", "up_blocks")


def cross_attentions(unet: Any) -> tuple[CrossAttention, ...]:
    """Return the cross-attention layers of a UNet in IP-Adapter's order: down, up, then middle.

    Raises EngineError if the network is not a UNet, or if it is compiled.
    """
    require_unet(unet)
    if not hasattr(unet, "row_prompts"):
        raise EngineError(
            "a compiled UNet cannot use image prompts: use an endpoint without a compiler"
        )
    found = [(name, layer) for name, layer in unet.named_modules() if name.endswith(".attn2")]
    layers = {part: [each for each in found if each[0].startswith(part)] for part in _BLOCKS}
    called = (name for part in _CALLED for name, _ in layers[part])
    transformers = list(dict.fromkeys(map(_transformer, called)))
    return tuple(
        CrossAttention(
            name=name,
            block=block,
            transformer=transformers.index(_transformer(name)),
            width=layer.to_k.out_features,
            text_width=layer.to_k.in_features,
        )
        for part, block in _BLOCKS.items()
        for name, layer in layers[part]
    )


def _transformer(name: str) -> str:
    return name.partition(".transformer_blocks.")[0]


def with_image_prompt(model: Model, prompt: ImagePrompt) -> Model:
    """Return the model with one more image prompt.

    Raises EngineError if the prompt was not made for the layers of the model.
    """
    widths = {each.name: each.width for each in cross_attentions(model.unet)}
    sides = [
        {name: _own(each, widths.get(name), model) for name, each in side.items()}
        for side in (prompt.positive, prompt.negative)
    ]
    mask = prompt.mask if prompt.mask is None else prompt.mask.reshape(-1, *prompt.mask.shape[-2:])
    own = replace(prompt, positive=sides[0], negative=sides[1], mask=mask)
    return replace(model, image_prompts=(*model.image_prompts, own))


def _own(pair: KeysValues, width: int | None, model: Model) -> KeysValues:
    keys, values = pair.keys, pair.values
    if keys.ndim != 3 or keys.shape != values.shape or (len(keys), keys.shape[2]) != (1, width):
        raise EngineError("the image prompt was made for another model: it has other layers")
    return KeysValues(*(each.to(model.device, model.dtype) for each in (keys, values)))


class VisionOperations:
    """Operations that load vision models, encode images, and add image prompts to models."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    def load(self, name: str) -> Work[ClipVision]:
        return self._load(CLIP_VISIONS, name)

    def load_from_checkpoint(self, name: str) -> Work[ClipVision]:
        """Load the CLIP vision model inside a checkpoint of unCLIP."""
        return self._load(CHECKPOINTS, name)

    def encode(self, network: ClipVision, images: Images, *, crop: bool) -> Work[ClipVisionOutput]:
        """Encode images, cropped to their centre square if `crop`, else stretched to a square."""
        return encoded(network, images, crop=crop)

    def cross_attentions(self, model: Model) -> tuple[CrossAttention, ...]:
        """Return the layers that can attend to images; see the function `cross_attentions`."""
        return cross_attentions(model.unet)

    def with_image_prompt(self, model: Model, prompt: ImagePrompt) -> Model:
        """Return the model with one more image prompt.

        Jobs with this model share calls with all other jobs that use the same weights. Raises
        EngineError if the prompt was not made for the layers of the model.
        """
        return with_image_prompt(model, prompt)

    def _load(self, kind: str, name: str) -> Work[ClipVision]:
        store = self._store
        network: ClipVision = yield Load(
            ("clip_vision", kind, name), lambda: load_clip_vision(store, kind, name)
        )
        return network
