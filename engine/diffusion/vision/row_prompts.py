"""The image prompts for the rows of a UNet call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from engine.diffusion.conditioning.fitting import FittedCondition
from engine.diffusion.host_copies import copied
from engine.diffusion.inpainting import fitted_mask
from engine.diffusion.loading.layers import PlainAttention
from engine.diffusion.vision.attended import AddedAttention, ImagePrompt, KeysValues


class FittedPrompt(NamedTuple):
    """An image prompt for latents of one size."""

    layers: Mapping[str, KeysValues]
    mask: Tensor | None
    """(masks, 1, height, width)."""
    sides: tuple[int, int]


def fitted_prompts(
    prompts: Sequence[ImagePrompt], fitted: FittedCondition, x: Tensor
) -> list[FittedPrompt]:
    """Return the layers and the mask of each prompt for a condition on the latents `x`."""
    sides = tuple(fitted.window(x).shape[2:])
    return [
        FittedPrompt(
            each.negative if fitted.is_negative else each.positive,
            None if each.mask is None else _window(each.mask, fitted, x),
            (sides[0], sides[1]),
        )
        for each in prompts
    ]


def _window(mask: Tensor, fitted: FittedCondition, x: Tensor) -> Tensor:
    return mask[:, None] if fitted.area is None else fitted.window(fitted_mask(mask, x))


def prompted(
    unet: Any, rows: Sequence[Sequence[FittedPrompt]], sizes: Sequence[int]
) -> AbstractContextManager[None]:
    """Let the latents of each row attend to the row's prompts within this context.

    `sizes` has the number of latents of each row.
    """
    if not any(rows):
        return nullcontext()
    row_prompts: RowPrompts = unet.row_prompts
    return row_prompts.applied(rows, sizes)


class RowPrompts:
    """The image prompts of a UNet's layers in the current call.

    Only the thread that calls the UNet may use this object. A deep copy of the UNet has
    `RowPrompts` of its own.
    """

    def __init__(self, unet: nn.Module) -> None:
        self._by_layer = {
            name: layer.added
            for name, layer in unet.named_modules()
            if isinstance(layer, PlainAttention) and name.endswith(".attn2")
        }

    @contextmanager
    def applied(
        self, rows: Sequence[Sequence[FittedPrompt]], sizes: Sequence[int]
    ) -> Iterator[None]:
        """Let the UNet attend to these prompts within this context.

        One attention serves several rows if their tokens, masks and latents have equal sizes.
        """
        shared: _Shared = {}
        try:
            for name, added in self._by_layer.items():
                added.extend(_added(name, rows, sizes, shared))
            yield
        finally:
            for added in self._by_layer.values():
                added.clear()


_Shared: TypeAlias = dict[Hashable, Tensor]
"""The masks and the rows of groups of prompts. All layers of a call share them, because a mask may
be as large as a picture, and because both are copied to the device.
"""


def _added(
    name: str, rows: Sequence[Sequence[FittedPrompt]], sizes: Sequence[int], shared: _Shared
) -> Iterator[AddedAttention]:
    groups: defaultdict[Hashable, list[tuple[range, FittedPrompt]]] = defaultdict(list)
    start = 0
    for own, size in zip(rows, sizes, strict=True):
        for number, each in enumerate(own):
            if name in each.layers:
                shape = None if each.mask is None else each.mask.shape[2:]
                tokens = each.layers[name].keys.shape[1]
                groups[number, tokens, shape, each.sides].append((range(start, start + size), each))
        start += size
    for group in groups.values():
        yield _joined(name, group, shared)


def _joined(
    name: str, group: Sequence[tuple[range, FittedPrompt]], shared: _Shared
) -> AddedAttention:
    pairs = [(each.layers[name], len(indices)) for indices, each in group]
    keys = torch.cat([each.keys.expand(size, -1, -1) for each, size in pairs])
    own = [(each.mask, len(at)) for at, each in group if each.mask is not None]
    of_group = tuple((id(mask), size) for mask, size in own)
    if own and of_group not in shared:
        masks = [_sized(copied(mask, keys.device), size) for mask, size in own]
        shared[of_group] = torch.cat(masks)
    indices = tuple(index for each, _ in group for index in each)
    if indices not in shared:
        shared[indices] = copied(torch.tensor(indices), keys.device)
    return AddedAttention(
        shared[indices],
        keys,
        torch.cat([each.values.expand(size, -1, -1) for each, size in pairs]),
        shared[of_group] if own else None,
        group[0][1].sides,
    )


def _sized(masks: Tensor, size: int) -> Tensor:
    """Return `size` masks. If there are fewer masks, the last mask is repeated."""
    at = torch.arange(size, device=masks.device).clamp(max=len(masks) - 1)
    return masks[at]
