"""Latents, masks and images."""

from __future__ import annotations

from tests.support.comfyui.graphs import (
    VAE,
    Graph,
    Graphs,
    Link,
    Node,
    decoded,
    empty,
    enlarged,
    image,
    latent,
    mask,
    of,
    red,
    sampled_anew,
    sampler,
)
from tests.support.engine.workflows import node

METHODS = ("nearest-exact", "bilinear", "area", "bicubic")


def latents() -> Graphs:
    made = _enlarged_latents() | _composites()
    return {name: latent("made", made=each, to=empty(128, 96)) for name, each in made.items()} | {
        "encoded": latent("encoded"),
        "encoded_odd_size": latent(
            "encoded", encoded=node("VAEEncode", pixels=of("odd_picture"), vae=VAE)
        ),
        "encoded_and_decoded": decoded("encoded"),
        "enlarged_then_sampled": latent(
            "second",
            second=sampler(start="larger", denoise=0.5, sampler_name="dpmpp_2m"),
            larger=node(
                "LatentUpscaleBy", samples=of("sampled"), upscale_method="bilinear", scale_by=1.5
            ),
            sampled=sampler(steps=2),
        ),
    }


def _enlarged_latents() -> Graph:
    def scaled(method: str, width: int, height: int, crop: str) -> Node:
        size = {"width": width, "height": height, "crop": crop}
        return node("LatentUpscale", samples=of("encoded"), upscale_method=method, **size)

    def scaled_by(method: str, factor: float) -> Node:
        by = {"upscale_method": method, "scale_by": factor}
        return node("LatentUpscaleBy", samples=of("encoded"), **by)

    methods = (*METHODS, "bislerp")
    return (
        {f"{each}_stretched": scaled(each, 96, 128, "disabled") for each in methods}
        | {f"{each}_cropped": scaled(each, 32, 96, "center") for each in methods}
        | {f"{each}_by_1.6": scaled_by(each, 1.6) for each in methods}
        | {f"{each}_by_0.55": scaled_by(each, 0.55) for each in methods}
        | {
            "width_of_its_own": scaled("bilinear", 0, 128, "disabled"),
            "height_of_its_own": scaled("bicubic", 128, 0, "center"),
        }
    )


def _composites() -> Graph:
    def composite(x: int, y: int, feather: int) -> Node:
        place = {"x": x, "y": y, "feather": feather}
        return node("LatentComposite", samples_to=of("to"), samples_from=of("encoded"), **place)

    return {
        "composite": composite(8, 40, 0),
        "composite_feathered": composite(32, 16, 16),
        "composite_beyond_the_edge": composite(96, 64, 24),
    }


def batches() -> Graphs:
    """A repeated latent, and a part of it."""
    nodes = {
        "four": node("RepeatLatentBatch", samples=of("encoded"), amount=4),
        "part": node("LatentFromBatch", samples=of("four"), batch_index=2, length=2),
        "again": node("RepeatLatentBatch", samples=of("part"), amount=2),
        "by_sde": sampler(start="part", denoise=0.7, sampler_name="dpmpp_2m_sde"),
    }
    return {
        "repeated": latent("four", **nodes),
        "part": latent("part", **nodes),
        "repeated_then_sampled": sampled_anew("four", **nodes),
        "part_then_sampled": sampled_anew("part", **nodes),
        "part_then_sampled_sde": latent("by_sde", **nodes),
        "part_repeated_then_sampled": sampled_anew("again", **nodes),
    }


def _masked(latents: str = "encoded", mask: str = "mask", output: int = 0) -> Node:
    return node("SetLatentNoiseMask", samples=of(latents), mask=of(mask, output))


def noise_masks() -> Graphs:
    """Masks that say where a latent is sampled again."""
    by = ("euler", "euler_ancestral", "heun", "dpmpp_2m_sde", "lcm", "ddim", "uni_pc")
    larger = node(
        "LatentUpscale",
        samples=of("masked"),
        upscale_method="nearest-exact",
        width=96,
        height=96,
        crop="disabled",
    )
    nodes = {
        "masked": _masked(),
        "small": enlarged("picture", 40, 24),
        "small_mask": node("ImageToMask", image=of("small"), channel="green"),
        "repeated": node("RepeatLatentBatch", samples=of("encoded"), amount=2),
        "doubled": node("RepeatLatentBatch", samples=of("masked"), amount=2),
        "larger": larger,
    }
    return {name: latent("sampled", sampled=_repainted(name), masked=_masked()) for name in by} | {
        "of_another_size": sampled_anew(
            "masked", **(nodes | {"masked": _masked(mask="small_mask")})
        ),
        "of_alpha": sampled_anew("masked", masked=_masked("encoded", "with_alpha", 1)),
        "for_a_batch": sampled_anew("masked", **(nodes | {"masked": _masked("repeated")})),
        "then_repeated": sampled_anew("doubled", **nodes),
        "then_enlarged": sampled_anew("larger", **nodes),
    }


def _repainted(name: str) -> Node:
    return sampler(start="masked", sampler_name=name, denoise=0.7)


def inpainting() -> Graphs:
    """Pictures that are encoded without the masked area."""

    def emptied(grow: int, pixels: str = "picture", mask: Link | None = None) -> Node:
        masks = {"mask": mask or of("mask"), "grow_mask_by": grow}
        return node("VAEEncodeForInpaint", pixels=of(pixels), vae=VAE, **masks)

    edges = {"left": 16, "top": 8, "right": 24, "bottom": 0}
    return {f"grown_by_{grow}": latent("made", made=emptied(grow)) for grow in (0, 6, 7, 20)} | {
        "then_sampled": sampled_anew("made", made=emptied(6), denoise=1.0),
        "odd_size": sampled_anew("made", made=emptied(6, "odd_picture"), denoise=1.0),
        "outpainted": decoded(
            "sampled",
            sampled=sampler(start="made"),
            made=emptied(6, "padded", of("padded", 1)),
            padded=node("ImagePadForOutpaint", image=of("picture"), feathering=10, **edges),
        ),
    }


def _padded(left: int, bottom: int, feathering: int) -> Node:
    edges = {"left": left, "top": 8, "right": 0, "bottom": bottom, "feathering": feathering}
    return node("ImagePadForOutpaint", image=of("picture"), **edges)


def images() -> Graphs:
    def scaled(method: str, width: int, height: int, crop: str) -> Node:
        size = {"width": width, "height": height, "crop": crop}
        return node("ImageScale", image=of("picture"), upscale_method=method, **size)

    def scaled_by(method: str, factor: float) -> Node:
        return node("ImageScaleBy", image=of("picture"), upscale_method=method, scale_by=factor)

    def joined(first: str, second: str) -> Node:
        return node("ImageBatch", image1=of(first), image2=of(second))

    methods = (*METHODS, "lanczos")
    made = (
        {f"{each}_stretched": scaled(each, 80, 40, "disabled") for each in methods}
        | {f"{each}_cropped": scaled(each, 30, 70, "center") for each in methods}
        | {f"{each}_by_1.37": scaled_by(each, 1.37) for each in methods}
        | {f"{each}_by_0.41": scaled_by(each, 0.41) for each in methods}
        | {
            "width_of_its_own": scaled("bicubic", 0, 48, "disabled"),
            "inverted": node("ImageInvert", image=of("picture")),
            "alpha_left_out": node("ImageInvert", image=of("with_alpha")),
            "padded": _padded(16, 8, 10),
            "batch_of_unlike_sizes": joined("picture", "odd_picture"),
            "batch_of_unlike_sizes_larger_first": joined("odd_picture", "picture"),
            "of_one_colour": node("EmptyImage", width=40, height=24, batch_size=2, color=0x123456),
        }
    )
    return {name: image("made", made=each) for name, each in made.items()} | _masks_of_images()


def _masks_of_images() -> Graphs:
    return {
        "mask_of_padding": mask("padded", 1, padded=_padded(16, 8, 10)),
        "mask_of_padding_feathered_far": mask("padded", 1, padded=_padded(16, 32, 40)),
        "mask_of_padding_on_one_side": mask("padded", 1, padded=_padded(0, 0, 20)),
        "mask_of_alpha": mask("with_alpha", 1),
        "mask_without_alpha": mask("picture", 1),
        "mask_of_red": mask("loaded", loaded=red("grad64.png")),
        "mask_of_the_alpha_channel": mask(
            "loaded", loaded=node("LoadImageMask", image="grad64_alpha.png", channel="alpha")
        ),
        "mask_of_a_missing_alpha_channel": mask(
            "loaded", loaded=node("LoadImageMask", image="grad64.png", channel="alpha")
        ),
        "mask_of_blue_pixels": mask(
            "made", made=node("ImageToMask", image=of("picture"), channel="blue")
        ),
    }
