"""Hostile graphs: unreachable, doubling, long, large, or not finite."""

from __future__ import annotations

from typing import Any

from tests.hostile.attack import (
    Attack,
    Nodes,
    blank,
    chain,
    easy,
    images,
    inverted,
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
    return images(count, lambda at: node("ImageBatch", image1=[at, 0], image2=[at, 0]))


def _doubled_latents(count: int) -> Nodes:
    nodes, last = chain(
        "5", count, lambda at: node("RepeatLatentBatch", samples=[at, 0], amount=64)
    )
    stored = node("SaveLatent", samples=[last, 0], filename_prefix="x")
    return sampled() | nodes | {"8": stored}


def _many_blanks(count: int, *, saved: bool) -> Nodes:
    blanks = {f"b{number}": blank(LARGEST) for number in range(count)}
    if saved:
        return blanks | {f"s{id}": save(id) for id in blanks}
    joined: Nodes = {}
    last = "b0"
    for id in [*blanks][1:]:
        joined[f"j{id}"] = node("ImageBatch", image1=[last, 0], image2=[id, 0])
        last = f"j{id}"
    return blanks | joined | {"2": save(last)}


def _scaled(count: int, **changes: Any) -> Nodes:
    inputs = {"upscale_method": "lanczos", "width": LARGEST, "height": LARGEST, "crop": "disabled"}
    inputs |= changes
    return images(count, lambda at: node("ImageScale", image=[at, 0], **inputs), blank(LARGEST))


def _grown(class_type: str, count: int, **inputs: Any) -> Nodes:
    return images(count, lambda at: node(class_type, image=[at, 0], **inputs))


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


def _grown_masks(count: int, by: int) -> Nodes:
    solid = node("SolidMask", value=1, width=LARGEST, height=LARGEST)
    inputs = {"expand": by, "tapered_corners": True}
    nodes, last = chain("m", count, lambda at: node("GrowMask", mask=[at, 0], **inputs))
    shown = node("MaskToImage", mask=[last, 0])
    return {"m": solid, **nodes, "i": shown, "2": save("i")}


def _doubled_texts(count: int) -> Nodes:
    """A text of 2**count characters as the prompt."""
    join = {"class_type": "StringConcatenate"}
    nodes, last = chain(
        "t",
        count,
        lambda at: join | {"inputs": {"string_a": [at, 0], "string_b": [at, 0], "delimiter": ""}},
    )
    nodes |= {"t": node("PrimitiveString", value="a")} | sampled()
    nodes["6"]["inputs"]["text"] = [last, 0]
    return nodes


def _tiled(side: int) -> Nodes:
    """An image decoded in the smallest tiles."""
    tiles = {"tile_size": 64, "overlap": 64}
    tiled = node("VAEDecodeTiled", samples=["5", 0], vae=["4", 2], **tiles)
    return sampled(latent(side)) | {"8": tiled}


def _circle(switches: int, links: int) -> Nodes:
    """Switches that choose each other, and links to them that no node uses."""
    circle = {
        f"s{number}": node("ComfySwitchNode", switch=True, on_true=[f"s{number - 1}", 0])
        for number in range(1, switches)
    }
    circle["s0"] = node("ComfySwitchNode", switch=True, on_true=[f"s{switches - 1}", 0])
    unknown = {f"u{number}": [f"s{number % switches}", 0] for number in range(links)}
    return easy() | circle | {"x": node("SaveImage", filename_prefix="x", **unknown)}


def _guided() -> Nodes:
    """A model with every patch that causes more calls of it."""
    third = node("PerpNeg", model=["4", 0], empty_conditioning=["7", 0], neg_scale=1)
    attention = node("SelfAttentionGuidance", model=["p", 0], scale=1, blur_sigma=2)
    perturbed = node("PerturbedAttentionGuidance", model=["a", 0], scale=3)
    return sampled(model=["g", 0]) | {"p": third, "a": attention, "g": perturbed}


def _merged(count: int) -> Nodes:
    nodes, last = chain(
        "4", count, lambda at: node("ModelMergeSimple", model1=[at, 0], model2=["4", 0], ratio=0.5)
    )
    return sampled(model=[last, 0]) | nodes


def _column() -> Nodes:
    """A column of pixels that is as long as the limit of pixels allows."""
    to = {"upscale_method": "bilinear", "megapixels": 16, "resolution_steps": 1}
    scaled = node("ImageScaleToTotalPixels", image=["1", 0], **to)
    return {"1": blank(1, height=LARGEST), "s": scaled, "2": save("s")}


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
    """Many samplers of one graph, none of which can share a call with another."""
    nodes = sampled()
    for number in range(count):
        width = 64 + 8 * number
        nodes[f"l{number}"] = node("EmptyLatentImage", width=width, height=64, batch_size=1)
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
    workflow("900 ImageInvert", images(900, inverted)),
    workflow("10 paddings by 16384", _grown("ImagePadForOutpaint", 10, **_PADDED)),
    workflow("a padding by 2000", _grown("ImagePadForOutpaint", 3, **dict.fromkeys(_PADDED, 2000))),
    workflow("20 masks of 4096 squared grown by 16384", _grown_masks(20, 16384)),
    workflow("a mask of 4096 squared grown by 100", _grown_masks(1, 100)),
    workflow("900 texts that double", _doubled_texts(900)),
    workflow("14 texts that double", _doubled_texts(14)),
    workflow("an image of 4096 squared in the smallest tiles", _tiled(LARGEST)),
    workflow("900 switches in a circle, and 20,000 links to them", _circle(900, 20_000)),
    workflow("a model with every kind of guidance", _guided()),
    workflow("900 models merged in a row", _merged(900)),
    workflow("8 models merged in a row", _merged(8)),
    workflow("a column of 16 megapixels", _column()),
    workflow("10 blurs by 31", _grown("ImageBlur", 10, blur_radius=31, sigma=1.0)),
    workflow("4 RepeatImageBatch by 16", _grown("RepeatImageBatch", 4, amount=16)),
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
