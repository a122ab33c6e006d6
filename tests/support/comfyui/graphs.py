"""Graphs to compare with ComfyUI: the usual nodes, and nodes that are added or replace them.

The node "saved" saves the result. Nodes that lead to no result are not run, as in ComfyUI.
"""

from __future__ import annotations

from typing import Any

from tests.support.engine.parity import SMALL
from tests.support.engine.workflows import node

Node = dict[str, Any]
Graph = dict[str, Node]
Graphs = dict[str, Graph]
Link = list[str | int]


def of(name: str, output: int = 0) -> Link:
    """A link to an output of another node."""
    return [name, output]


MODEL, CLIP, VAE = (of("checkpoint", output) for output in range(3))


def text(prompt: str, clip: Link = CLIP) -> Node:
    return node("CLIPTextEncode", text=prompt, clip=clip)


def red(image: str) -> Node:
    """The mask of an image's red channel."""
    return node("LoadImageMask", image=image, channel="red")


def empty(width: int = 64, height: int = 64, batch_size: int = 1) -> Node:
    return node("EmptyLatentImage", width=width, height=height, batch_size=batch_size)


def enlarged(image: str, width: int, height: int) -> Node:
    return node(
        "ImageScale",
        image=of(image),
        upscale_method="bilinear",
        width=width,
        height=height,
        crop="disabled",
    )


USUAL: Graph = {
    "checkpoint": node("CheckpointLoaderSimple", ckpt_name=SMALL),
    "cat": text("a photo of a cat sitting on a bench"),
    "forest": text("a forest at night, " * 12),
    "sky": text("the sky"),
    "blurry": text("blurry, low quality"),
    "empty": empty(),
    "wide": empty(width=96),
    "pair": empty(batch_size=2),
    "picture": node("LoadImage", image="grad64.png"),
    "with_alpha": node("LoadImage", image="grad64_alpha.png"),
    "odd_picture": enlarged("picture", 77, 93),
    "encoded": node("VAEEncode", pixels=of("picture"), vae=VAE),
    "mask": red("mask64.png"),
}


def latent(name: str, output: int = 0, **nodes: Node) -> Graph:
    """Save a node's latent."""
    saved = node("SaveLatent", samples=of(name, output), filename_prefix="case")
    return USUAL | nodes | {"saved": saved}


def image(name: str, output: int = 0, **nodes: Node) -> Graph:
    """Save a node's images."""
    saved = node("SaveImage", images=of(name, output), filename_prefix="case")
    return USUAL | nodes | {"saved": saved}


def mask(name: str, output: int = 0, **nodes: Node) -> Graph:
    """Save a node's mask as images."""
    return image("shown", shown=node("MaskToImage", mask=of(name, output)), **nodes)


def decoded(name: str, **nodes: Node) -> Graph:
    """Save a node's latent as images."""
    return image("decoded", decoded=node("VAEDecode", samples=of(name), vae=VAE), **nodes)


def sampler(
    *,
    start: str = "empty",
    positive: Link | None = None,
    negative: Link | None = None,
    model: Link = MODEL,
    **settings: Any,
) -> Node:
    usual = {
        "seed": 42,
        "steps": 4,
        "cfg": 7.5,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
    }
    return node(
        "KSampler",
        model=model,
        positive=positive or of("cat"),
        negative=negative or of("blurry"),
        latent_image=of(start),
        **(usual | settings),
    )


def sampled(**settings: Any) -> Graph:
    """A latent that one sampler makes from text."""
    return latent("sampled", sampled=sampler(**settings))


def sampled_anew(start: str, *, denoise: float = 0.7, **nodes: Node) -> Graph:
    """Sample another node's latent again."""
    return latent("sampled", sampled=sampler(start=start, denoise=denoise), **nodes)


def advanced(**settings: Any) -> Graph:
    """Sample a picture's latent with a sampler that may start late and end early."""
    usual = {
        "add_noise": "enable",
        "noise_seed": 9,
        "steps": 6,
        "cfg": 6.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "start_at_step": 0,
        "end_at_step": 10000,
        "return_with_leftover_noise": "disable",
    }
    step = node(
        "KSamplerAdvanced",
        model=MODEL,
        positive=of("cat"),
        negative=of("blurry"),
        latent_image=of("encoded"),
        **(usual | settings),
    )
    return latent("sampled", sampled=step)


def custom(
    sigmas: Link | Node, name: str = "euler", *, output: int = 0, noise: bool = True, **nodes: Node
) -> Graph:
    """Sample a picture's latent along a custom schedule; output 1 is the last denoised latent."""
    if isinstance(sigmas, dict):
        nodes["sigmas"], sigmas = sigmas, of("sigmas")
    step = node(
        "SamplerCustom",
        model=MODEL,
        add_noise=noise,
        noise_seed=3,
        cfg=6.0,
        positive=of("cat"),
        negative=of("blurry"),
        sampler=of("chosen"),
        sigmas=sigmas,
        latent_image=of("encoded"),
    )
    chosen = node("KSamplerSelect", sampler_name=name)
    return latent("sampled", output, sampled=step, chosen=chosen, **nodes)


def conditioned(positive: Node | None = None, negative: Node | None = None, **nodes: Node) -> Graph:
    """Sample a wide latent with these conditionings."""
    step = sampler(
        start="wide",
        positive=of("positive"),
        negative=of("negative"),
        steps=3,
        sampler_name="dpmpp_2m",
        scheduler="karras",
    )
    nodes |= {"positive": positive or USUAL["cat"], "negative": negative or USUAL["blurry"]}
    return latent("sampled", sampled=step, **nodes)


def patched(patch: Node, **settings: Any) -> Graph:
    """Sample a picture's latent with a patched model."""
    step = sampler(model=of("patch"), start="encoded", **({"steps": 3} | settings))
    return latent("sampled", sampled=step, patch=patch)
