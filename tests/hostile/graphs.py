"""Hostile graphs: what is not reached, what doubles, what is long, large or not finite."""

from __future__ import annotations

from typing import Any

from tests.hostile.attack import (
    Attack,
    Nodes,
    blank,
    chain,
    easy,
    latent,
    node,
    sampled,
    save,
    workflow,
)

LARGEST = 4096


def _unreached(inputs: Any) -> Nodes:
    return easy() | {"3": {"class_type": "KSampler", "inputs": inputs}}


def _doubled_rows(class_type: str, first: str, second: str, count: int) -> Nodes:
    """2**count rows of conditioning, or as many tokens."""
    nodes, last = chain(
        "6", count, lambda at: node(class_type, **{first: [at, 0], second: [at, 0]})
    )
    return sampled(positive=[last, 0]) | nodes


def _doubled_images(count: int) -> Nodes:
    nodes, last = chain("1", count, lambda at: node("ImageBatch", image1=[at, 0], image2=[at, 0]))
    return {"1": blank(), **nodes, "2": save(last)}


def _doubled_latents(count: int) -> Nodes:
    nodes, last = chain(
        "5", count, lambda at: node("RepeatLatentBatch", samples=[at, 0], amount=64)
    )
    return (
        sampled(latent_image=latent())
        | nodes
        | {"8": node("SaveLatent", samples=[last, 0], filename_prefix="x")}
    )


def _many_blanks(count: int, *, saved: bool) -> Nodes:
    blanks = {f"b{number}": blank(LARGEST) for number in range(count)}
    saves = {f"s{number}": save(f"b{number}") for number in range(count)}
    if saved:
        return blanks | saves
    joined: Nodes = {}
    last = "b0"
    for number in range(1, count):
        joined[f"j{number}"] = node("ImageBatch", image1=[last, 0], image2=[f"b{number}", 0])
        last = f"j{number}"
    return blanks | joined | {"2": save(last)}


def _scaled(count: int, **changes: Any) -> Nodes:
    inputs = {"upscale_method": "lanczos", "width": LARGEST, "height": LARGEST, "crop": "disabled"}
    nodes, last = chain(
        "1", count, lambda at: node("ImageScale", **{"image": [at, 0], **inputs, **changes})
    )
    return {"1": blank(LARGEST), **nodes, "2": save(last)}


def _grown(class_type: str, count: int, **inputs: Any) -> Nodes:
    nodes, last = chain("1", count, lambda at: node(class_type, image=[at, 0], **inputs))
    return {"1": blank(), **nodes, "2": save(last)}


def _steps(sigmas: Nodes, last: str, side: int = LARGEST) -> Nodes:
    """A SamplerCustom along the sigmas of another node."""
    custom = node(
        "SamplerCustom",
        model=["4", 0],
        add_noise=True,
        noise_seed=7,
        cfg=7,
        positive=["6", 0],
        negative=["7", 0],
        sampler=["s", 0],
        sigmas=[last, 0],
        latent_image=["5", 0],
    )
    chosen = node("KSamplerSelect", sampler_name="euler")
    return sampled(latent_image=latent(side)) | {"3": custom, "s": chosen} | sigmas


_KARRAS = node("KarrasScheduler", steps=10_000, sigma_max=14.6, sigma_min=0.03, rho=7)
_FLIPPED = node("FlipSigmas", sigmas=["k", 0])
_NOT_FINITE = node("PolyexponentialScheduler", steps=4, sigma_max=5000, sigma_min=0, rho=100)
_PADDED = {"left": 16384, "top": 16384, "right": 16384, "bottom": 16384, "feathering": 16384}


def _samplers(count: int) -> Nodes:
    """Many samplers of one graph, side by side."""
    nodes = sampled(steps=100)
    for number in range(count):
        again = {**nodes["3"]["inputs"], "seed": number}
        nodes[f"k{number}"] = node("KSampler", **again)
        nodes[f"d{number}"] = node("VAEDecode", samples=[f"k{number}", 0], vae=["4", 2])
        nodes[f"s{number}"] = save(f"d{number}")
    return nodes


def _apart(count: int) -> Nodes:
    """Many samplers of one graph, none of which shares a call with another."""
    nodes = sampled()
    for number in range(count):
        nodes[f"l{number}"] = node(
            "EmptyLatentImage", width=64 + 8 * number, height=64, batch_size=1
        )
        again = {**nodes["3"]["inputs"], "latent_image": [f"l{number}", 0]}
        nodes[f"k{number}"] = node("KSampler", **again)
        nodes[f"s{number}"] = node("SaveLatent", samples=[f"k{number}", 0], filename_prefix="x")
    return nodes


ATTACKS: tuple[Attack, ...] = (
    workflow("40 samplers that share no call", _apart(40)),
    workflow("one step of 4096 squared", sampled(latent(LARGEST), steps=1)),
    workflow("9 steps of 2048 squared", sampled(latent(2048), steps=9)),
    workflow("an unreached node with inputs null", _unreached(None)),
    workflow("an unreached node with inputs 5", _unreached(5)),
    workflow("an unreached node with a text as inputs", _unreached("ckpt_name")),
    workflow("an unreached node with a link as checkpoint", _unreached({"ckpt_name": ["a", 0]})),
    workflow("10,000 steps with denoise 1e-6", sampled(steps=10_000, denoise=1e-6)),
    workflow("10,000 steps with denoise 0", sampled(steps=10_000, denoise=0)),
    workflow("10,000 steps of 4096 squared", sampled(latent(LARGEST), steps=10_000)),
    workflow("10,000 steps of 64 squared", sampled(steps=10_000)),
    workflow("16 images of 4096 squared", sampled(latent(LARGEST, 16))),
    workflow("one image of 4096 squared", sampled(latent(LARGEST), steps=1000)),
    workflow("150 samplers side by side", _samplers(150)),
    workflow("10,000 sigmas of 4096 squared", _steps({"k": _KARRAS}, "k")),
    workflow("sigmas that rise", _steps({"k": _KARRAS, "f": _FLIPPED}, "f", side=64)),
    workflow("sigmas that are not finite", _steps({"k": _NOT_FINITE}, "k", side=64)),
    workflow(
        "60 ConditioningCombine of a node with itself",
        _doubled_rows("ConditioningCombine", "conditioning_1", "conditioning_2", 60),
    ),
    workflow(
        "12 ConditioningCombine of a node with itself",
        _doubled_rows("ConditioningCombine", "conditioning_1", "conditioning_2", 12),
    ),
    workflow(
        "12 ConditioningConcat of a node with itself",
        _doubled_rows("ConditioningConcat", "conditioning_to", "conditioning_from", 12),
    ),
    workflow(
        "900 ConditioningConcat of a node with itself",
        _doubled_rows("ConditioningConcat", "conditioning_to", "conditioning_from", 900),
    ),
    workflow("60 ImageBatch of a node with itself", _doubled_images(60)),
    workflow("14 ImageBatch of a node with itself", _doubled_images(14)),
    workflow("4 RepeatLatentBatch by 64", _doubled_latents(4)),
    workflow("500 images of 4096 squared, each saved", _many_blanks(450, saved=True)),
    workflow("300 images of 4096 squared in one batch", _many_blanks(300, saved=False)),
    workflow("900 ImageScale in a row", _scaled(900)),
    workflow("900 ImageScale to the smallest and back", _scaled(900, width=16, height=0)),
    workflow("10 ImageScaleBy 8", _grown("ImageScaleBy", 10, upscale_method="lanczos", scale_by=8)),
    workflow("900 ImageInvert", _grown("ImageInvert", 900)),
    workflow("10 paddings by 16384", _grown("ImagePadForOutpaint", 10, **_PADDED)),
    workflow("a padding by 2000", _grown("ImagePadForOutpaint", 3, **dict.fromkeys(_PADDED, 2000))),
    workflow("a batch of 4096 images", {"1": blank(1, batch_size=4096), "2": save("1")}),
    workflow("an image of 16384 squared", {"1": blank(16384), "2": save("1")}),
    workflow("cfg that is not a number", sampled(cfg=float("nan"))),
    workflow("cfg without end", sampled(cfg=float("inf"))),
    workflow("a seed of 4,000 digits", sampled(seed=10**4000)),
    workflow(
        "a checkpoint outside the folder",
        sampled() | {"4": node("CheckpointLoaderSimple", ckpt_name="../../../../etc/passwd")},
    ),
    workflow("a prefix outside the folder", easy() | {"2": save("1", "../../../etc/" * 2000)}),
    workflow("a prefix with NUL and escapes", easy() | {"2": save("1", "\0\x1b[2J\r\nERROR")}),
    workflow("a prefix of 400 kB", easy() | {"2": save("1", "x" * 400_000)}),
)
