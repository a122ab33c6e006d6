"""ControlNets of Z-Image (Fun ControlNets), which ComfyUI applies to the model.

A chain of blocks starts with the tokens of the picture and the hint. The output of each block is
added to a layer of the transformer. In the second version of these networks, a chain starts before
the layers that refine the noise, and is added to them too. As in ComfyUI, the blocks attend to the
picture only, and not to the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.batcher import Work
from engine.diffusion.conditioning.control_net import Control, by_network, scattered
from engine.diffusion.families.model_family import Call
from engine.diffusion.families.transformer import FLUX_LATENT, Shapes, count_of
from engine.diffusion.images.latents import COLOURS, PIXELS_PER_LATENT, Images, Mask
from engine.diffusion.images.resampling import resampled
from engine.diffusion.images.vae import Vae
from engine.errors import EngineError
from engine.families.control_nets import NEEDS_IMAGE

_LAYERS = 30
"""The number of layers of the published models, over which the blocks are distributed."""
_OWN, _SHARED = "control_noise_refiner", "control_layers"
"""The names in diffusers of the blocks that are added to the layers which refine the noise."""
_GREY = 0.5


def control_net_config(shapes: Shapes) -> dict[str, Any]:
    """Return the configuration of a ControlNet from the shapes of its weights."""
    width, inputs = shapes["control_all_x_embedder.2-1.weight"]
    norms = (f"control_layers.0.attention.{name}.weight" for name in ("norm_q", "q_norm"))
    (head,) = next(shapes[name] for name in norms if name in shapes)
    blocks = count_of(shapes, "control_layers.")
    is_second = f"{_OWN}.0.after_proj.weight" in shapes
    return {
        "control_layers_places": [at * round(_LAYERS / blocks) for at in range(blocks)],
        "control_in_dim": inputs // 4,
        "add_control_noise_refiner": _OWN if is_second else None,
        "dim": width,
        "n_refiner_layers": count_of(shapes, f"{_OWN}."),
        "n_heads": width // head,
        "n_kv_heads": width // head,
    }


def share_untrained_blocks(network: Any) -> None:
    """Let a network of version 2.0 refine with its usual blocks.

    In its training, these blocks took the place of those for the refining layers by mistake. So the
    file has zeros as the weights of the latter.
    """
    if network.add_control_noise_refiner == _OWN:
        is_trained = network.control_noise_refiner[0].after_proj.weight.any()
        network.add_control_noise_refiner = _OWN if is_trained else _SHARED


@dataclass(frozen=True, slots=True, eq=False)
class ZImageControl(Control):
    """A ControlNet of Z-Image with its hint."""

    inpaint: Images | None = None
    """The picture to inpaint, for networks with further input channels."""
    mask: Mask | None = None
    """1 where the picture is painted. None: everywhere."""

    def _encode(self, vae: Vae, count: int, height: int, width: int) -> Work[Tensor]:
        """Return the latents of the hint. For inpainting, mask and picture are further channels."""
        sides = height + height % 2, width + width % 2
        parts = [(yield from self._latents(vae, _scaled(self.hint[:count], *sides)))]
        if self.inpaint is not None:
            pixels, kept = _scaled(self.inpaint[:count], *sides), torch.zeros(1, 1, *sides)
            if self.mask is not None:
                planes = 1.0 - self.mask.reshape(-1, 1, *self.mask.shape[-2:])[:count]
                fitted = partial(resampled, planes, crop="center")
                shown = fitted(*reversed(pixels.shape[2:]), method="bilinear").round()
                pixels, shown = _in_turn([pixels, shown])
                pixels = (pixels - _GREY) * shown + _GREY
                kept = fitted(*reversed(sides), method="nearest")
            parts += [kept.to(parts[0]), (yield from self._latents(vae, pixels))]
        return torch.cat(_in_turn(parts), dim=1)

    def _size_for(self, x: Tensor) -> tuple[int, int, int]:
        height, width = x.shape[2:]
        given = [each for each in (self.hint, self.inpaint, self.mask) if each is not None]
        return min(max(map(len, given)), len(x)), height, width

    def _latents(self, vae: Vae, pixels: Tensor) -> Work[Tensor]:
        samples = yield from Control._latents(self, vae, pixels)
        return (samples - FLUX_LATENT.shift) * FLUX_LATENT.scale


def z_image_control(
    network: Any,
    vae: Vae,
    strength: float,
    *,
    image: Images | None,
    inpaint_image: Images | None,
    mask: Mask | None,
    on_tiled: Callable[[], None],
) -> ZImageControl:
    """Return a ControlNet with its hint. A missing picture is grey.

    `mask` is 1 where `inpaint_image` is painted. Networks with 16 input channels ignore both.
    Raises EngineError if there is no picture, or if the VAE is for another model.
    """
    inputs = network.config.control_in_dim
    channels = inputs // 2 if (has_inpainting := inputs % 2 == 1) else inputs
    if vae.channels != channels:
        raise EngineError(
            f"the VAE makes latents of {vae.channels} channels, but the ControlNet needs "
            f"{channels}: use the VAE of the model"
        )
    given = image if image is not None or not has_inpainting else inpaint_image
    if given is None:
        raise EngineError(NEEDS_IMAGE)
    grey = torch.full_like(given, _GREY)
    return ZImageControl(
        network,
        grey if image is None else image,
        strength,
        vae=vae,
        inpaint=(grey if inpaint_image is None else inpaint_image) if has_inpainting else None,
        mask=mask,
        on_tiled=on_tiled,
    )


def _scaled(images: Images, height: int, width: int) -> Tensor:
    """Return images for latents of that size, as (n, 3, 8 * height, 8 * width)."""
    sides = width * PIXELS_PER_LATENT, height * PIXELS_PER_LATENT
    planes = images[..., :COLOURS].movedim(-1, 1)
    return resampled(planes, *sides, method="area", crop="center")


def _in_turn(batches: Sequence[Tensor]) -> list[Tensor]:
    """Return batches of one length. The items of shorter batches are used in turn."""
    count = max(map(len, batches))
    return [each[torch.arange(count, device=each.device) % len(each)] for each in batches]


@contextmanager
def adding_residuals(network: Any, call: Call) -> Iterator[None]:
    """Within this context, the transformer adds the residuals of the call's ControlNets.

    Each ControlNet is called once for all of its rows.
    """
    rows = torch.arange(len(call.x), device=call.x.device).split(call.counts)
    uses = by_network([part.controls for part in call.parts], rows)
    with ExitStack() as hooks:
        for control_net, own in uses.items():
            for handle in _Chain(control_net, own, call.x).hooked(network):
                hooks.callback(handle.remove)
        yield


class _Chain:
    """The blocks of a ControlNet during one call."""

    tokens: Tensor
    """(rows, tokens, width): the tokens of the picture from which the blocks start."""

    def __init__(self, network: Any, uses: Sequence[tuple[Control, Tensor]], x: Tensor) -> None:
        self._network, self._uses = network, uses
        self._rows = torch.cat([at for _, at in uses])
        hints = torch.cat([control.latent_hint_for(x[at]) for control, at in uses])
        cells: Tensor = hints.unflatten(3, (-1, 2)).unflatten(2, (-1, 2))
        # Unlike in Flux.1, the channels are the last axis of a patch.
        self._hint = cells.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        self._refining: Sequence[Any] = ()
        self._blocks = dict(zip(network.control_layers_places, network.control_layers, strict=True))

    def hooked(self, transformer: Any) -> Iterator[Any]:
        """Hook the chain to the layers of the transformer. Yields the handles of the hooks."""
        yield transformer.noise_refiner[0].register_forward_pre_hook(self._begin)
        for layers, hook in (
            (transformer.noise_refiner, self._add_to_refined),
            (transformer.layers, self._add_to_layer),
        ):
            for at, layer in enumerate(layers):
                yield layer.register_forward_hook(partial(hook, at=at))

    def _begin(self, _layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Start from the arguments of the first layer that refines the noise."""
        self.tokens, _, positions, time = inputs[:4]
        network = self._network
        weight = next(network.parameters())
        self._positions = positions[self._rows, : self._hint.shape[1]]
        self._time = time[self._rows].to(weight)
        self._state = network.control_all_x_embedder["2-1"](self._hint.to(weight))
        if network.add_control_noise_refiner is not None:
            self._refining = getattr(network, network.add_control_noise_refiner)
            return
        for block in network.control_noise_refiner:
            self._state = block(self._state, None, self._positions, self._time)

    def _add_to_refined(self, _layer: nn.Module, _inputs: Any, output: Tensor, *, at: int) -> None:
        """Add a residual to the output of a layer that refines the noise."""
        if at < len(self._refining):
            self._add(output, self._next(self._refining[at]))
        if at == len(self._network.control_noise_refiner) - 1:
            for block in self._refining[at + 1 :]:
                self._next(block)
            self.tokens = output

    def _add_to_layer(self, _layer: nn.Module, _inputs: Any, output: Tensor, *, at: int) -> None:
        if at in self._blocks:
            self._add(output, self._next(self._blocks[at]))

    def _next(self, block: Any) -> Tensor:
        """Pass a block. Returns its residual for the chain's rows."""
        count = self._hint.shape[1]
        tokens = self.tokens[self._rows, :count].to(self._state)
        # Later blocks take and return a stack of all states, of which they read the last.
        state = self._state if block.block_id == 0 else self._state[None]
        residual, self._state = block(state, tokens, None, self._positions, self._time)
        found: Tensor = residual
        return found

    def _add(self, output: Tensor, residual: Tensor) -> None:
        output[:, : residual.shape[1]] += scattered(residual, uses=self._uses, like=output)
