"""ControlNet: a picture that guides the denoising together with the text.

As in Zhang et al. 2023 (arXiv:2302.05543), the picture is the input of a second network. The
outputs of this network are added to the skip connections and to the middle block of the UNet, or
to the blocks of a transformer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from diffusers import ControlNetModel, FluxControlNetModel, T2IAdapter
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.union_control_net import UnionControlNet
from engine.diffusion.host_copies import copied
from engine.diffusion.images.latents import COLOURS, PIXELS_PER_LATENT, Images, repeated_to
from engine.diffusion.images.resampling import resampled
from engine.diffusion.images.vae import Vae, encoded_within_memory
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.errors import EngineError
from engine.families.control_nets import NEEDS_VAE, type_problem


def _ignore() -> None:
    """The default of `on_tiled`."""


@dataclass(frozen=True, slots=True, eq=False)
class ControlNet:
    """A loaded ControlNet or T2I adapter. `type` is the type of the hint that a union gets."""

    network: Any
    type: int | None = None

    def with_type(self, number: int | None) -> ControlNet:
        """Return the union with hints of that type. Raises EngineError if it has no such type."""
        types = getattr(self.network.config, "num_mode", None)
        if number is not None and (problem := type_problem(number, types or 0)):
            raise EngineError(problem)
        return replace(self, type=number)

    def control(
        self,
        hint: Images,
        strength: float,
        *,
        vae: Vae | None = None,
        percent_range: tuple[float, float] = (0.0, 1.0),
        applies_to_uncond: bool = False,
        on_tiled: Callable[[], None] = _ignore,
    ) -> Control:
        """Return the network with a hint. Raises EngineError if it needs another VAE, or a VAE.

        For `on_tiled` see `Control`.
        """
        if not takes_latents(self.network):
            vae = None
        elif vae is None:
            raise EngineError(NEEDS_VAE)
        elif vae.channels != (channels := self.network.config.in_channels // 4):
            raise EngineError(
                f"the VAE makes latents of {vae.channels} channels, but the ControlNet needs "
                f"{channels}: use the VAE of the model"
            )
        return Control(
            self.network,
            hint,
            strength,
            percent_range,
            type=self.type,
            vae=vae,
            applies_to_uncond=applies_to_uncond,
            on_tiled=on_tiled,
        )


def takes_latents(network: Any) -> bool:
    """Return whether the network gets hints that a VAE has encoded."""
    is_flux = isinstance(network, FluxControlNetModel)
    return is_flux and network.config.conditioning_embedding_channels is None


_Size: TypeAlias = tuple[int, int, int]
"""A number of pictures, and a height and a width in latent cells."""


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A ControlNet or a T2I adapter with its input picture, which is called the hint."""

    network: Any
    hint: Images
    strength: float
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The start and the end of the control, as fractions (0..1) of the timesteps."""
    type: int | None = None
    """The type of the hint, for a union of ControlNets. None: the union gets no type."""
    vae: Vae | None = None
    """The VAE that encodes the hint, if the network needs latents."""
    applies_to_uncond: bool = False
    """Whether `with_shared_controls` applies the control to the other conditionings too."""
    on_tiled: Callable[[], None] = _ignore
    """It is called for each picture that is encoded in tiles."""
    _resized: dict[_Size, Tensor] = field(default_factory=dict)
    """The first n pictures of the hint as (n, 3, 8 * h, 8 * w), by n, h and w."""
    _encoded: dict[_Size, Tensor] = field(default_factory=dict)
    """The latents that `_encode` has made for n pictures of h x w cells, by n, h and w."""

    def applies_at(self, sigma: float, levels: NoiseLevels) -> bool:
        start, end = (levels.percent_to_sigma(percent) for percent in self.percent_range)
        return end <= sigma <= start

    def hint_for(self, x: Tensor) -> Tensor:
        """Return the hint (batch, 3, height, width), resized to the pictures of the latents `x`.

        If the hint has several pictures, the latents use these pictures in turn.
        """
        size = self._size_for(x)
        if size not in self._resized:
            self._resized[size] = copied(self._hint_of(*size), x.device)
        return repeated_to(self._resized[size], len(x))

    def latent_hint_for(self, x: Tensor) -> Tensor:
        """Return the latents of the hint (batch, channels, h, w), which `encode_hint` has made."""
        return repeated_to(copied(self._encoded[self._size_for(x)], x.device), len(x))

    def encode_hint(self, x: Tensor) -> Work[None]:
        """Encode the hint for the latents `x`, unless it is encoded or needs no VAE."""
        size = self._size_for(x)
        if self.vae is not None and size not in self._encoded:
            self._encoded[size] = yield from self._encode(self.vae, *size)

    def _encode(self, vae: Vae, count: int, height: int, width: int) -> Work[Tensor]:
        """Return the first `count` pictures of the hint as latents (count, channels, h, w)."""
        return self._latents(vae, self._hint_of(count, height, width))

    def _latents(self, vae: Vae, pixels: Tensor) -> Work[Tensor]:
        """Encode pictures (n, 3, height, width)."""
        latent = yield from encoded_within_memory(vae, pixels.movedim(1, -1), self.on_tiled)
        return latent.samples

    def _size_for(self, x: Tensor) -> _Size:
        """Return the number of pictures that the latents `x` use, and the sides of `x`."""
        height, width = x.shape[2:]
        return min(len(self.hint), len(x)), height, width

    def _hint_of(self, count: int, height: int, width: int) -> Tensor:
        return resampled(
            self.hint[:count, ..., :COLOURS].movedim(-1, 1),
            width * PIXELS_PER_LATENT,
            height * PIXELS_PER_LATENT,
            method="nearest-exact",
            crop="center",
        )


def require_unet_control(control: Control) -> None:
    """Raise EngineError if a ControlNet is not for a UNet."""
    if not isinstance(control.network, ControlNetModel | T2IAdapter):
        raise EngineError("the ControlNet is for a transformer, but the model has a UNet")


def residuals(
    controls: Sequence[Sequence[Control]],
    sizes: Sequence[int],
    *,
    x: Tensor,
    timesteps: Tensor,
    tokens: Tensor,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments by which a UNet adds the residuals of ControlNets and T2I adapters.

    `controls` and `sizes` have the controls and the number of rows of each part of the UNet call.
    The other parameters are the arguments of the UNet: the latents `x`, the texts `tokens`, the
    `timesteps`, and all others in `inputs`. Each network is called once for all its rows.
    """
    if not any(controls):
        return {}
    extra: Mapping[str, Tensor] = inputs.get("added_cond_kwargs", {})
    rows = torch.arange(len(x), device=x.device).split(list(sizes))
    sums: list[Tensor] = []
    inside: list[Tensor] = []
    for network, uses in by_network(controls, rows).items():
        at = torch.cat([places for _, places in uses])
        dtype = next(network.parameters()).dtype
        hints = torch.cat([control.hint_for(x[places]) for control, places in uses]).to(dtype)
        placed = partial(scattered, uses=uses, like=x)
        if isinstance(network, T2IAdapter):
            inside = added(inside, map(placed, _features(network, hints)))
            continue
        _require_same_text(network, tokens)
        types = {}
        if isinstance(network, UnionControlNet):
            types["class_labels"] = copied(_types(network, uses), hints.device).to(hints)
        found = network(
            x[at].to(dtype),
            timesteps[at],
            tokens[at].to(dtype),
            hints,
            added_cond_kwargs={name: each[at] for name, each in extra.items()},
            return_dict=False,
            **types,
        )
        sums = added(sums, map(placed, (*found[0], found[1])))
    return _arguments(sums, inside)


def _types(union: Any, uses: Sequence[tuple[Control, Tensor]]) -> Tensor:
    """Return the type of each row as (rows, types), with zeros for a row without a type."""
    found = []
    for control, at in uses:
        own = torch.zeros(len(at), union.config.num_mode)
        if control.type is not None:
            own[:, control.type] = 1.0
        found.append(own)
    return torch.cat(found)


def _arguments(sums: list[Tensor], inside: list[Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if inside:
        found["down_intrablock_additional_residuals"] = inside
    if sums:
        *down, middle = sums
        found |= {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
    return found


def _features(network: Any, hints: Tensor) -> list[Tensor]:
    """Return the features for each level of the UNet. Some adapters need grey pictures."""
    if network.config.in_channels == 1:
        hints = hints.mean(1, keepdim=True)
    found: list[Tensor] = network(hints)
    return found


def added(sums: list[Tensor], parts: Iterable[Tensor]) -> list[Tensor]:
    """Return the sums with one more part added to each. Without sums, the parts are the sums."""
    return [a + b for a, b in zip(sums, parts, strict=True)] if sums else list(parts)


def by_network(
    controls: Sequence[Sequence[Control]], rows: Sequence[Tensor]
) -> dict[Any, list[tuple[Control, Tensor]]]:
    """Return the controls of each network, each with the indices of its rows."""
    tasks: defaultdict[Any, list[tuple[Control, Tensor]]] = defaultdict(list)
    for own, at in zip(controls, rows, strict=True):
        for control in own:
            tasks[control.network].append((control, at))
    return tasks


def scattered(part: Tensor, *, uses: Sequence[tuple[Control, Tensor]], like: Tensor) -> Tensor:
    """Return residuals for all rows of `like`: those in `part`, scaled by the strengths of their
    controls, at the indices of their rows, and zeros elsewhere.
    """
    at = torch.cat([places for _, places in uses])
    parts = part.split([len(places) for _, places in uses])
    own = [each * control.strength for each, (control, _) in zip(parts, uses, strict=True)]
    scaled = (own[0] if len(own) == 1 else torch.cat(own)).to(like.dtype)
    return scaled.new_zeros(len(like), *part.shape[1:]).index_add_(0, at, scaled)


def _require_same_text(network: Any, tokens: Tensor) -> None:
    own, given = network.config.cross_attention_dim, tokens.shape[-1]
    if own != given:
        raise EngineError(
            f"the ControlNet is for another kind of model: it needs texts of width {own}, but the "
            f"texts of this model have width {given}"
        )
