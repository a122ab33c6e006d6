"""Nodes that make, combine, change, encode and decode latents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import BatchShape, Estimate, ImageShape, LatentShape, saturated
from engine.graph.declarations import Choice, Float, Int, Link, node
from engine.graph.tiles import tiled_area, tilings
from engine.nodes.images import FLIPS, ROTATIONS, quarter_turns
from engine.nodes.sides import CELL, CELL_POSITION, CROP, MAX_SIDE, side

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent
    from engine.diffusion.images.vae import Vae


_METHODS = Choice(("nearest-exact", "bilinear", "area", "bicubic", "bislerp"))
_SLERP_COPIES = 12
"""The number of tensors of the size of the latent in a spherical interpolation."""
_EMPTY_SIDE = Int(
    512, min=16, max=MAX_SIDE, step=8, multiple=8, limit="side", tooltip="The length in pixels."
)
_IN_PROPORTION = "The length in pixels. 0 keeps the proportions."


def _empty_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((LatentShape(inputs["batch_size"], inputs["width"], inputs["height"]),))


def encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """Return the cost to encode `pixels` and to keep a `mask` with the latent."""
    images: ImageShape = inputs["pixels"]
    held = images.size_bytes // 3 if "mask" in inputs else 0
    latent = LatentShape(images.count, images.width, images.height, held)
    return Estimate(
        (latent,), work=images.attended_megapixels() * work.ENCODE, scratch_bytes=images.size_bytes
    )


def changed_latent(before: LatentShape, after: LatentShape) -> Estimate:
    """Return the estimate for a latent that is made from another latent."""
    largest = max(before.megapixels, after.megapixels)
    return Estimate((after,), work=largest * work.COPY, scratch_bytes=after.size_bytes)


def _resized_latent(before: LatentShape, after: LatentShape) -> Estimate:
    """Return the estimate for a latent that is resized along its rows, then along its columns."""
    between = before.sized(after.width, before.height)
    largest = max(before, between, after, key=lambda each: each.megapixels)
    return Estimate(
        (after,),
        work=largest.megapixels * work.RESAMPLE,
        scratch_bytes=_SLERP_COPIES * largest.size_bytes,
    )


def upscale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """Return the cost to resize `samples` to `width` x `height`. No side becomes less than 64."""
    latent: LatentShape = inputs["samples"]
    sides = (side and max(64, side) for side in (inputs["width"], inputs["height"]))
    return _resized_latent(latent, latent.sized(*sides))


def _upscale_by_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    return _resized_latent(latent, latent.scaled(inputs["scale_by"]))


def _composite_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_latent(inputs["samples_from"], inputs["samples_to"])


def _decode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    images = ImageShape(latent.count, latent.width, latent.height)
    return Estimate(
        (images,), work=latent.attended_megapixels() * work.DECODE, scratch_bytes=images.size_bytes
    )


@node(
    "EmptyLatentImage",
    inputs={
        "width": _EMPTY_SIDE,
        "height": _EMPTY_SIDE,
        "batch_size": Int(1, min=1, max=4096, limit="batch", tooltip="The number of images."),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Empty Latent Image",
    estimate=_empty_estimate,
    pixel_inputs=("width", "height", "batch_size"),
)
def empty_latent_image(context: Context, width: int, height: int, batch_size: int) -> tuple[Latent]:
    """Makes a batch of empty latents to be denoised."""
    return (context.latents.empty(width, height, batch_size),)


@node(
    "VAEDecode",
    inputs={"samples": Link("LATENT"), "vae": Link("VAE")},
    outputs=("IMAGE",),
    category="latent",
    display_name="VAE Decode",
    estimate=_decode_estimate,
)
def vae_decode(context: Context, samples: Latent, vae: Vae) -> Work[tuple[Images]]:
    """Decodes latents into images."""
    images = yield from context.decode(vae, samples)
    return (images,)


@node(
    "VAEEncode",
    inputs={"pixels": Link("IMAGE"), "vae": Link("VAE")},
    outputs=("LATENT",),
    category="latent",
    display_name="VAE Encode",
    estimate=encode_estimate,
)
def vae_encode(context: Context, pixels: Images, vae: Vae) -> Work[tuple[Latent]]:
    """Encodes images into latents. Sides that are not multiples of 8 are cropped evenly."""
    latent = yield from context.encode_images(vae, pixels)
    return (latent,)


@node(
    "LatentUpscale",
    inputs={
        "samples": Link("LATENT"),
        "upscale_method": _METHODS,
        "width": side(512, tooltip=_IN_PROPORTION),
        "height": side(512, tooltip=_IN_PROPORTION),
        "crop": CROP,
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Upscale Latent",
    pixel_inputs=("width", "height"),
    estimate=upscale_estimate,
)
def latent_upscale(
    context: Context, samples: Latent, *, upscale_method: str, width: int, height: int, crop: str
) -> tuple[Latent]:
    """Resizes latents to the size of images of `width` x `height` pixels."""
    return (context.latents.scaled(samples, width, height, method=upscale_method, crop=crop),)


@node(
    "LatentUpscaleBy",
    inputs={
        "samples": Link("LATENT"),
        "upscale_method": _METHODS,
        "scale_by": Float(1.5, min=0.01, max=8.0),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Upscale Latent By",
    estimate=_upscale_by_estimate,
)
def latent_upscale_by(
    context: Context, samples: Latent, upscale_method: str, scale_by: float
) -> tuple[Latent]:
    """Resizes latents by a factor."""
    return (context.latents.scaled_by(samples, scale_by, method=upscale_method),)


@node(
    "LatentComposite",
    inputs={
        "samples_to": Link("LATENT"),
        "samples_from": Link("LATENT"),
        "x": CELL_POSITION,
        "y": CELL_POSITION,
        "feather": Int(
            0, min=0, max=MAX_SIDE, step=8, tooltip="The width of the soft edge, in pixels."
        ),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Latent Composite",
    estimate=_composite_estimate,
)
def latent_composite(
    context: Context, samples_to: Latent, samples_from: Latent, *, x: int, y: int, feather: int
) -> tuple[Latent]:
    """Pastes one latent over another."""
    return (context.latents.pasted(samples_to, samples_from, x=x, y=y, feather=feather),)


def _repeat_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    amount: int = inputs["amount"]
    repeated = replace(
        latent,
        count=saturated(latent.count * amount),
        held_bytes=saturated(latent.held_bytes * amount),
    )
    return changed_latent(latent, repeated)


def _slice_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    return Estimate((latent.counted(min(latent.count, inputs["length"])),))


@node(
    "RepeatLatentBatch",
    inputs={"samples": Link("LATENT"), "amount": Int(1, min=1, max=64, limit="batch")},
    outputs=("LATENT",),
    category="latent/batch",
    display_name="Repeat Latent Batch",
    estimate=_repeat_estimate,
)
def repeat_latent_batch(context: Context, samples: Latent, amount: int) -> tuple[Latent]:
    """Repeats a batch of latents. A sampler gives each repetition its own noise."""
    return (context.latents.repeated(samples, amount),)


@node(
    "LatentFromBatch",
    inputs={
        "samples": Link("LATENT"),
        "batch_index": Int(0, min=0, max=63, tooltip="The index of the first one to take."),
        "length": Int(1, min=1, max=64, tooltip="The number to take."),
    },
    outputs=("LATENT",),
    category="latent/batch",
    display_name="Latent From Batch",
    estimate=_slice_estimate,
)
def latent_from_batch(
    context: Context, samples: Latent, batch_index: int, length: int
) -> tuple[Latent]:
    """Takes a range of a batch of latents.

    A sampler gives each latent the noise of its position in the batch.
    """
    return (context.latents.batch_slice(samples, batch_index, length),)


_PAIR = {"samples1": Link("LATENT"), "samples2": Link("LATENT")}
_COPIES = 8


def _of_two(first: LatentShape, second: LatentShape, made: LatentShape) -> Estimate:
    largest = max(first, second, made, key=lambda each: each.size_bytes)
    resampled = largest.megapixels * work.RESAMPLE
    return Estimate((made,), work=resampled, scratch_bytes=_COPIES * largest.size_bytes)


def _pair_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["samples1"], inputs["samples2"]
    return _of_two(first, second.counted(max(first.count, second.count)), first)


def _batch_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["samples1"], inputs["samples2"]
    return _of_two(first, second, first.counted(saturated(first.count + second.count)))


def _copy_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_latent(inputs["samples"], inputs["samples"])


@node(
    "LatentAdd",
    inputs=_PAIR,
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_pair_estimate,
)
def latent_add(context: Context, samples1: Latent, samples2: Latent) -> tuple[Latent]:
    """Adds two latents."""
    from engine.diffusion.images import latent_operations

    return (latent_operations.added(samples1, samples2),)


@node(
    "LatentSubtract",
    inputs=_PAIR,
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_pair_estimate,
)
def latent_subtract(context: Context, samples1: Latent, samples2: Latent) -> tuple[Latent]:
    """Subtracts the second latent from the first."""
    from engine.diffusion.images import latent_operations

    return (latent_operations.added(samples1, samples2, -1.0),)


@node(
    "LatentMultiply",
    inputs={"samples": Link("LATENT"), "multiplier": Float(1.0, min=-10.0, max=10.0)},
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_copy_estimate,
)
def latent_multiply(context: Context, samples: Latent, multiplier: float) -> tuple[Latent]:
    """Multiplies a latent by a number."""
    return (replace(samples, samples=samples.samples * multiplier),)


@node(
    "LatentInterpolate",
    inputs={
        **_PAIR,
        "ratio": Float(1.0, min=0.0, max=1.0, tooltip="The share of the first latent."),
    },
    outputs=("LATENT",),
    category="latent/advanced",
    estimate=_pair_estimate,
)
def latent_interpolate(
    context: Context, samples1: Latent, samples2: Latent, ratio: float
) -> tuple[Latent]:
    """Interpolates the directions and the lengths of two latents."""
    from engine.diffusion.images import latent_operations

    return (latent_operations.interpolated(samples1, samples2, ratio),)


@node(
    "LatentBlend",
    inputs={
        **_PAIR,
        "blend_factor": Float(0.5, min=0.0, max=1.0, tooltip="The share of the first latent."),
    },
    outputs=("LATENT",),
    category="_for_testing",
    display_name="Latent Blend",
    estimate=_pair_estimate,
)
def latent_blend(
    context: Context, samples1: Latent, samples2: Latent, blend_factor: float
) -> tuple[Latent]:
    """Computes the weighted mean of two latents."""
    from engine.diffusion.images import latent_operations

    return (latent_operations.blended(samples1, samples2, blend_factor),)


@node(
    "LatentBatch",
    inputs=_PAIR,
    outputs=("LATENT",),
    category="latent/batch",
    estimate=_batch_estimate,
)
def latent_batch(context: Context, samples1: Latent, samples2: Latent) -> tuple[Latent]:
    """Joins two batches. The second batch is resized to the size of the first."""
    return (context.latents.joined(samples1, samples2),)


_SIDE = Int(512, min=64, max=MAX_SIDE, step=CELL, tooltip="The length in pixels.")


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    sides = min(latent.width, inputs["width"]), min(latent.height, inputs["height"])
    # The result is a view of the latents, so the whole latents stay in memory.
    return Estimate((LatentShape(latent.count, *sides, latent.size_bytes),))


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
    estimate=_copy_estimate,
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
        "x": CELL_POSITION,
        "y": CELL_POSITION,
    },
    outputs=("LATENT",),
    category="latent/transform",
    display_name="Crop Latent",
    estimate=_crop_estimate,
)
def latent_crop(
    context: Context, samples: Latent, *, width: int, height: int, x: int, y: int
) -> tuple[Latent]:
    """Cuts a rectangle out of latents."""
    from engine.diffusion.images.latent_operations import cut

    cells = {"width": width // CELL, "height": height // CELL, "x": x // CELL, "y": y // CELL}
    return (cut(samples, **cells),)


_TILED_COPIES = 3
_LEAST_MEGAPIXELS = work.LEAST_MEGAPIXELS / 16
"""The smallest size of a call for a tile. With fewer pixels, a call takes nearly the same time."""
_TILING = {
    "tile_size": Int(512, min=64, max=4096, step=32, tooltip="The side of a tile, in pixels."),
    "overlap": Int(
        64,
        min=0,
        max=4096,
        step=32,
        tooltip="The overlap of tiles in pixels, at most a quarter of a tile.",
    ),
}
_FOR_VIDEOS = {
    "temporal_size": Int(64, min=8, max=4096, step=4, tooltip="Accepted and not used."),
    "temporal_overlap": Int(8, min=4, max=4096, step=4, tooltip="Accepted and not used."),
}


def _cells(tile_size: int, overlap: int) -> tuple[int, int]:
    """Return the side of a tile and its overlap, in cells of a latent."""
    overlap = tile_size // 4 if tile_size < 4 * overlap else overlap
    return tile_size // CELL, overlap // CELL


def _tiled_work(batch: BatchShape, inputs: Mapping[str, Any], factor: float) -> float:
    tile, overlap = _cells(inputs["tile_size"], inputs["overlap"])
    width, height = max(1, batch.width // CELL), max(1, batch.height // CELL)
    taken = 0.0
    for wide, high in tilings(tile):
        area = tiled_area(width, height, tile=(wide, high), overlap=overlap)
        one = ImageShape(1, min(wide, width) * CELL, min(high, height) * CELL)
        tiles = area * CELL**2 / 1e6 / one.megapixels
        taken += tiles * max(one.attended_megapixels(), _LEAST_MEGAPIXELS)
    return batch.count * taken * factor


def _tiled_decode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    images = ImageShape(latent.count, latent.width, latent.height)
    taken = _tiled_work(latent, inputs, work.DECODE)
    return Estimate((images,), work=taken, scratch_bytes=_TILED_COPIES * images.size_bytes)


def _tiled_encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["pixels"]
    latent = LatentShape(images.count, images.width, images.height)
    taken = _tiled_work(images, inputs, work.ENCODE)
    return Estimate((latent,), work=taken, scratch_bytes=images.size_bytes)


@node(
    "VAEDecodeTiled",
    inputs={
        "samples": Link("LATENT"),
        "vae": Link("VAE"),
        **_TILING,
    },
    optional=_FOR_VIDEOS,
    outputs=("IMAGE",),
    category="_for_testing",
    display_name="VAE Decode (Tiled)",
    estimate=_tiled_decode_estimate,
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
    from engine.diffusion.images.vae import decoded

    tile, overlap = _cells(tile_size, overlap)
    return ((yield from decoded(vae, samples, tile=tile, overlap=overlap)),)


@node(
    "VAEEncodeTiled",
    inputs={
        "pixels": Link("IMAGE"),
        "vae": Link("VAE"),
        **_TILING,
    },
    optional=_FOR_VIDEOS,
    outputs=("LATENT",),
    category="_for_testing",
    display_name="VAE Encode (Tiled)",
    estimate=_tiled_encode_estimate,
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
    from engine.diffusion.images.vae import encoded

    tile, overlap = _cells(tile_size, overlap)
    return ((yield from encoded(vae, pixels, tile=tile, overlap=overlap)),)
