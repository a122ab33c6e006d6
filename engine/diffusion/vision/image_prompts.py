"""Models that attend to images: which layers can, and a model with one more image prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from engine.diffusion.loading.unets import require_unet
from engine.diffusion.model import Model
from engine.diffusion.vision.attended import CrossAttention, ImagePrompt, KeysValues
from engine.errors import EngineError

_BLOCKS: dict[str, Literal["input", "middle", "output"]] = {
    "down_blocks": "input",
    "up_blocks": "output",
    "mid_block": "middle",
}
"""In the order in which diffusers and the files of IP-Adapter number their layers."""
_CALLED = ("down_blocks", "mid_block", "up_blocks")


def cross_attentions(unet: Any) -> tuple[CrossAttention, ...]:
    """The cross-attention layers of a UNet, as IP-Adapter numbers them: down, up, then middle.

    Raises EngineError for a network that is no UNet, and for one that is compiled.
    """
    require_unet(unet)
    if not hasattr(unet, "row_prompts"):
        raise EngineError(
            "a compiled UNet attends to texts alone: use an endpoint without a compiler"
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
    """The model, which attends to one more image prompt. Raises EngineError for one that is not
    made for its layers.
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
