"""CLIP's vision models: pictures to an embedding, and to hidden states of their patches.

CLIP: Radford et al. 2021 (arXiv:2103.00020).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPVisionModelWithProjection

from engine.batcher import Request, Work
from engine.diffusion.images.latents import Images
from engine.diffusion.out_of_memory import memory_checked

ClipVision: TypeAlias = CLIPVisionModelWithProjection
"""A vision model, as transformers has it."""
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
_MOST_RATIO = 8
"""Of the sides of an image before it is resized, so that a narrow one does not become huge."""


@dataclass(frozen=True, slots=True, eq=False)
class ClipVisionOutput:
    """What a vision model makes of images, in float32 on the CPU."""

    image_embeds: Tensor
    """(images, projected width)."""
    penultimate_hidden_states: Tensor
    """(images, 1 + patches, width): the states before the last layer."""

    @classmethod
    def joined(cls, parts: Sequence[ClipVisionOutput]) -> ClipVisionOutput:
        """The images of all parts."""
        return cls(
            torch.cat([each.image_embeds for each in parts]),
            torch.cat([each.penultimate_hidden_states for each in parts]),
        )


@dataclass(slots=True, eq=False)
class EncodeVision(Request):
    """Encodes one image (1, height, width, 3) of any size."""

    network: ClipVision
    image: Images
    crop: bool
    goes_ahead: bool = False

    @property
    def key(self) -> Hashable:
        return "clip vision", id(self.network)

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.image)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[ClipVisionOutput]:
        """What the model makes of each image."""
        network = requests[0].network
        side = network.config.image_size
        assert isinstance(side, int)  # CLIP's images are squares
        with memory_checked():
            pixels = [preprocessed(each.image, side, crop=each.crop) for each in requests]
            found = network(torch.cat(pixels).to(network.device), output_hidden_states=True)
            embeds, states = found.image_embeds.cpu(), found.hidden_states[-2].cpu()
        parts = zip(embeds.split(1), states.split(1), strict=True)
        return [ClipVisionOutput(*each) for each in parts]


def encoded(network: ClipVision, images: Images, *, crop: bool) -> Work[ClipVisionOutput]:
    """What the model makes of images, one after the other."""
    parts: list[ClipVisionOutput] = []
    for image in images.split(1):
        parts.append((yield EncodeVision(network, image, crop, goes_ahead=not parts)))
    return ClipVisionOutput.joined(parts)


def preprocessed(images: Images, side: int, *, crop: bool) -> Tensor:
    """(images, 3, side, side) as CLIP was trained to see them, on the CPU.

    With `crop` the middle of an image is seen, else all of it, squeezed to a square.
    """
    planes = images.movedim(-1, 1)
    height, width = planes.shape[2:]
    if (height, width) != (side, side):
        sides = side, side
        if crop:
            planes = _bounded(planes)
            scale = side / min(planes.shape[2:])
            sides = round(scale * planes.shape[2]), round(scale * planes.shape[3])
        planes = functional.interpolate(planes, size=sides, mode="bicubic", antialias=True)
        planes = _middle(planes, side, side)
    # ComfyUI rounds to 8 bits here, as OpenAI's code does, which reads files.
    levels = (planes * 255.0).clamp(0, 255).round() / 255.0
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (_MEAN, _DEVIATION))
    return (levels - mean) / deviation


def _bounded(planes: Tensor) -> Tensor:
    most = _MOST_RATIO * min(planes.shape[2:])
    return _middle(planes, min(most, planes.shape[2]), min(most, planes.shape[3]))


def _middle(planes: Tensor, height: int, width: int) -> Tensor:
    top, left = (planes.shape[2] - height) // 2, (planes.shape[3] - width) // 2
    return planes[:, :, top : top + height, left : left + width]
