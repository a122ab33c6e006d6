"""Nodes that decode and encode tile by tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import BatchShape, Estimate, ImageShape, LatentShape
from engine.graph.declarations import Int, Link, node
from engine.graph.tiles import tiled_area, tilings
from engine.nodes.sides import CELL

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent
    from engine.diffusion.images.vae import Vae

_COPIES = 3
_LEAST_MEGAPIXELS = work.LEAST_MEGAPIXELS / 16
"""A call for a tile takes hardly less time on fewer pixels."""
_TILE = Int(512, min=64, max=4096, step=32, tooltip="The side of a tile, in pixels.")
_OVERLAP = Int(64, min=0, max=4096, step=32, tooltip="In pixels; a quarter of a tile at most.")
_OF_VIDEOS = {
    "temporal_size": Int(64, min=8, max=4096, step=4, tooltip="Accepted and not used."),
    "temporal_overlap": Int(8, min=4, max=4096, step=4, tooltip="Accepted and not used."),
}


def _cells(tile_size: int, overlap: int) -> tuple[int, int]:
    """The side of a tile and its overlap, in cells of a latent."""
    overlap = tile_size // 4 if tile_size < 4 * overlap else overlap
    return tile_size // CELL, overlap // CELL


def _work(batch: BatchShape, inputs: Mapping[str, Any], factor: float) -> float:
    tile, overlap = _cells(inputs["tile_size"], inputs["overlap"])
    width, height = max(1, batch.width // CELL), max(1, batch.height // CELL)
    taken = 0.0
    for wide, high in tilings(tile):
        area = tiled_area(width, height, tile=(wide, high), overlap=overlap)
        one = ImageShape(1, min(wide, width) * CELL, min(high, height) * CELL)
        tiles = area * CELL**2 / 1e6 / one.megapixels
        taken += tiles * max(one.attended_megapixels(), _LEAST_MEGAPIXELS)
    return batch.count * taken * factor


def _decode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    images = ImageShape(latent.count, latent.width, latent.height)
    taken = _work(latent, inputs, work.DECODE)
    return Estimate((images,), work=taken, scratch_bytes=_COPIES * images.size_bytes)


def _encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["pixels"]
    latent = LatentShape(images.count, images.width, images.height)
    taken = _work(images, inputs, work.ENCODE)
    return Estimate((latent,), work=taken, scratch_bytes=images.size_bytes)


@node(
    "VAEDecodeTiled",
    inputs={
        "samples": Link("LATENT"),
        "vae": Link("VAE"),
        "tile_size": _TILE,
        "overlap": _OVERLAP,
    },
    optional=_OF_VIDEOS,
    outputs=("IMAGE",),
    category="_for_testing",
    display_name="VAE Decode (Tiled)",
    estimate=_decode_estimate,
)
def vae_decode_tiled(
    context: Context,
    *,
    samples: Latent,
    vae: Vae,
    tile_size: int,
    overlap: int,
    temporal_size: int = 64,
    temporal_overlap: int = 8,
) -> Work[tuple[Images]]:
    """Decodes latents tile by tile, in less memory and more time."""
    from engine.diffusion.images.tiled_vae import decoded

    tile, overlap = _cells(tile_size, overlap)
    return ((yield from decoded(vae, samples, tile=tile, overlap=overlap)),)


@node(
    "VAEEncodeTiled",
    inputs={
        "pixels": Link("IMAGE"),
        "vae": Link("VAE"),
        "tile_size": _TILE,
        "overlap": _OVERLAP,
    },
    optional=_OF_VIDEOS,
    outputs=("LATENT",),
    category="_for_testing",
    display_name="VAE Encode (Tiled)",
    estimate=_encode_estimate,
)
def vae_encode_tiled(
    context: Context,
    *,
    pixels: Images,
    vae: Vae,
    tile_size: int,
    overlap: int,
    temporal_size: int = 64,
    temporal_overlap: int = 8,
) -> Work[tuple[Latent]]:
    """Encodes images tile by tile, in less memory and more time."""
    from engine.diffusion.images.tiled_vae import encoded

    tile, overlap = _cells(tile_size, overlap)
    return ((yield from encoded(vae, pixels, tile=tile, overlap=overlap)),)
