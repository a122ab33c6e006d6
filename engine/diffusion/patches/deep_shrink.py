"""Deep shrink: for large images, the inner layers of a UNet run on a smaller latent.

The method is by kohya (https://gist.github.com/kohya-ss/3f774da220df102548093a7abc8538ed). In a
range of the timesteps, the latent is made smaller after one of the encoder's blocks. The latent
gets its size back where the skip connection of this block joins the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from engine.diffusion.images.resampling import resampled


@dataclass(frozen=True, slots=True)
class DeepShrink:
    """Settings of deep shrink: where, when and how the latent is made smaller."""

    percent_range: tuple[float, float]
    """The range of the timesteps in which the latent is smaller, in fractions of all timesteps."""
    block: int
    """The index of the encoder's block, as in single files: the first convolution is 0."""
    factor: float
    after_skip: bool
    down: str
    up: str

    def patch(self, unet: Any) -> None:
        """Make the layers of a UNet resize their outputs. No other UNet may share the layers."""
        encoder, decoder = list(_encoder(unet)), list(_decoder(unet))
        if self.block >= len(encoder):
            return
        sizes: list[tuple[int, ...]] = []
        encoder[0][0].register_forward_pre_hook(lambda *_: sizes.clear())
        if self.after_skip:
            behind = (*(first for first, _ in encoder), unet.mid_block.resnets[0])[self.block + 1]
            behind.register_forward_pre_hook(
                lambda _, inputs: (self._shrunk(inputs[0]), *inputs[1:])
            )
        else:
            encoder[self.block][1].register_forward_hook(_on_output(self._shrunk))
        for _, last in encoder:
            last.register_forward_hook(_on_output(lambda hidden: _noted(hidden, sizes)))
        for before, skip in zip(
            (unet.mid_block, *decoder[:-1]), reversed(range(len(encoder))), strict=True
        ):
            self._join(before, skip, sizes)

    def _join(self, before: nn.Module, skip: int, sizes: list[tuple[int, ...]]) -> None:
        """Resize the output of `before` to the size of the skip connection that follows."""

        def fitted(hidden: Tensor) -> Tensor:
            height, width = sizes[skip]
            if hidden.shape[2] == height:
                return hidden
            return resampled(hidden, width, height, method=self.up, crop="disabled")

        if hasattr(before, "interpolate"):
            before.register_forward_pre_hook(lambda _, inputs: (inputs[0], sizes[skip]))
        else:
            before.register_forward_hook(_on_output(fitted))

    def _shrunk(self, hidden: Tensor) -> Tensor:
        height, width = (max(1, round(side / self.factor)) for side in hidden.shape[2:])
        return resampled(hidden, width, height, method=self.down, crop="disabled")


def _on_output(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(_layer: nn.Module, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return change(output[0]), *output[1:]
        return change(output)

    return hook


def _noted(hidden: Tensor, sizes: list[tuple[int, ...]]) -> Tensor:
    sizes.append(tuple(hidden.shape[2:]))
    return hidden


def _encoder(unet: Any) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield the first and the last layer of each encoder block, in the order of single files."""
    yield unet.conv_in, unet.conv_in
    for block in unet.down_blocks:
        attentions = getattr(block, "attentions", block.resnets)
        yield from zip(block.resnets, attentions, strict=True)
        for layer in block.downsamplers or ():
            yield layer, layer


def _decoder(unet: Any) -> Iterator[nn.Module]:
    for block in unet.up_blocks:
        layers = list(getattr(block, "attentions", block.resnets))
        if block.upsamplers:
            layers[-1] = block.upsamplers[0]
        yield from layers
