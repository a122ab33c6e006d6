"""Nodes that crop, flip and rotate latents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.graph.cost import Estimate, LatentShape
from engine.graph.declarations import Int, Link, node
from engine.nodes.images.transforms import FLIPS, ROTATIONS, quarter_turns
from engine.nodes.latents.latent import changed_latent
from engine.nodes.sides import CELL, CELL_PLACE, MAX_SIDE

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent

_SIDE = Int(512, min=64, max=MAX_SIDE, step=CELL, tooltip="In pixels.")


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    sides = min(latent.width, inputs["width"]), min(latent.height, inputs["height"])
    # The part is a view of the latents, so they stay.
    return Estimate((LatentShape(latent.count, *sides, latent.size_bytes),))


def _flip_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_latent(inputs["samples"], inputs["samples"])


def _rotate_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    odd = quarter_turns(inputs["rotation"]) % 2
    turned = replace(latent, width=latent.height, height=latent.width) if odd else latent
    return changed_latent(latent, turned)


@node(
    "LatentFlip",
    inputs={"samples": Link("LATENT"), "flip_method": FLIPS},
    outputs=("LATENT",),
    category="latent/transform",
    display_name="Flip Latent",
    estimate=_flip_estimate,
)
def latent_flip(context: Context, samples: Latent, flip_method: str) -> tuple[Latent]:
    """Flips latents."""
    side = 2 if flip_method.startswith("x") else 3
    return (replace(samples, samples=samples.samples.flip(side)),)


@node(
    "LatentRotate",
    inputs={"samples": Link("LATENT"), "rotation": ROTATIONS},
    outputs=("LATENT",),
    category="latent/transform",
    display_name="Rotate Latent",
    estimate=_rotate_estimate,
)
def latent_rotate(context: Context, samples: Latent, rotation: str) -> tuple[Latent]:
    """Rotates latents by quarter turns."""
    turned = samples.samples.rot90(quarter_turns(rotation), dims=(3, 2))
    return (replace(samples, samples=turned),)


@node(
    "LatentCrop",
    inputs={
        "samples": Link("LATENT"),
        "width": _SIDE,
        "height": _SIDE,
        "x": CELL_PLACE,
        "y": CELL_PLACE,
    },
    outputs=("LATENT",),
    category="latent/transform",
    display_name="Crop Latent",
    estimate=_crop_estimate,
)
def latent_crop(
    context: Context, samples: Latent, *, width: int, height: int, x: int, y: int
) -> tuple[Latent]:
    """Cuts a part out of latents."""
    from engine.diffusion.images.latent_arithmetic import cut

    cells = {"width": width // CELL, "height": height // CELL, "x": x // CELL, "y": y // CELL}
    return (cut(samples, **cells),)
