"""Nodes that behave like the WebUI, for cases in which ComfyUI's nodes behave differently.

The compiler of diffusion requests uses these nodes in its graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import (
    ConditioningShape,
    Estimate,
    ImageShape,
    LatentShape,
    MaskShape,
    model_shape,
    saturated,
    text_tokens,
)
from engine.graph.declarations import Boolean, Choice, Float, Input, Int, Link, String, node
from engine.nodes.images import changed_images, image_upscale_with_model
from engine.nodes.latents import changed_latent, latent_upscale
from engine.nodes.sampling import SEED, STEPS, k_sampler, require_schedule, schedule_work
from engine.nodes.sides import CELL, MAX_SIDE, side
from engine.nodes.text import encoding_estimate
from engine.webui.parameters import MASKED_CONTENTS, RESIZE_MODES, Emphasis, RandnSource
from engine.webui.prompt import Part, PromptInvalid, read_negative_prompt, read_prompt
from engine.webui.sampler_names import (
    SAMPLER_OF,
    SCHEDULER_OF,
    sampler_alone,
    scheduler_alone,
    steps_of,
)

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.diffusion.images.upscale_models import UpscaleNetwork
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model
    from engine.diffusion.samplers.sampler_lookup import SamplerOptions
    from engine.diffusion.text.encoding import Clip
    from engine.diffusion.trajectory import Guidance, NoiseConfig, Refiner


SAMPLER_INPUT = Choice(tuple(SAMPLER_OF), resolve=sampler_alone)
SCHEDULERS = Choice(tuple(SCHEDULER_OF), resolve=scheduler_alone)
_TEXTS = ("positive", "negative")
_NOISE_BYTES = 6 * 16 / CELL**2
"""The memory for each pixel while two noises are combined: six latent tensors of four channels."""
_NV_PATH = 0.5
"""The work to compute a step of a Brownian path with the numbers of a CUDA device, for a megapixel
of a latent with four channels. A step needs about 16 draws."""
_ANY_SIGMA = 1e9
_RANDN_SOURCE = Choice(
    get_args(RandnSource),
    tooltip="Where all noise is drawn: on the device, on the CPU, or with the numbers of a CUDA "
    "device on any device.",
)
TAKEN_STEPS = Int(
    0,
    min=0,
    max=10_000,
    tooltip="The number of last steps to run. 0 means as `denoise` determines.",
)
_RESIZED = Int(
    0,
    min=0,
    max=4096,
    tooltip="The length in pixels. If both are set, noise of that size replaces the middle of the "
    "noise at the start.",
)


def _sampler_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """Return the larger of the estimates for model and refiner, plus the cost of the noise."""
    steps = steps_of(inputs["scheduler"], inputs["steps"])
    real = {**inputs, "steps": min(steps, inputs.get("taken_steps") or steps)}
    parts = [
        k_sampler.estimated({**real, **each})
        for each in ({}, _of_refiner(inputs, "model", *_TEXTS))
    ]
    most = max(parts, key=lambda each: each.work)
    pixels = _varied_pixels(inputs)
    return replace(
        most,
        rows=max(each.rows for each in parts),
        work=most.work + pixels / 1e6 * work.RESAMPLE + _path_work(real),
        scratch_bytes=saturated(most.scratch_bytes + int(pixels * _NOISE_BYTES)),
    )


def _path_work(inputs: Mapping[str, Any]) -> float:
    """Return the work of a Brownian path that a CPU computes slowly. Other noise costs little."""
    kind = SAMPLER_OF[inputs["sampler_name"]]
    if inputs.get("randn_source") != "NV" or kind.noise != "brownian":
        return 0.0
    latent = model_shape(inputs["model"]).sampled(inputs["latent_image"])
    steps: int = inputs["steps"] * kind.calls
    of_channels = latent.pixel_bytes / LatentShape.pixel_bytes
    return latent.megapixels * of_channels * steps * _NV_PATH


def _varied_pixels(inputs: Mapping[str, Any]) -> float:
    """Return the number of pixels of all images whose noise does not come from the seed alone."""
    latents: LatentShape = inputs["latent_image"]
    sides = [inputs.get(f"seed_resize_from_{side}", 0) for side in "wh"]
    if all(sides):
        return latents.count * float(math.prod(sides))
    if inputs.get("subseed_strength"):
        return latents.count * float(latents.width * latents.height)
    return 0.0


@node(
    "WebUISampler",
    inputs={
        **k_sampler.inputs,
        "sampler_name": SAMPLER_INPUT,
        "scheduler": SCHEDULERS,
        "eta_noise_seed_delta": Int(
            0,
            min=0,
            max=2**32 - 1,
            tooltip="The difference between `seed` and the seed for the noise in steps.",
        ),
    },
    optional={
        "continues_noise": Boolean(
            False,
            tooltip="If there is no seed delta, the noise in steps continues the generator of the "
            "noise at the start. Brownian paths cover the whole schedule.",
        ),
        "randn_source": replace(
            _RANDN_SOURCE,
            tooltip=f"{_RANDN_SOURCE.tooltip} Without this input, the sources are those of a "
            "KSampler; the seeds follow the other inputs.",
        ),
        "noise_scale": Choice(
            ("comfyui", "sigma", "unit variance"),
            tooltip="The factor of the noise at the start.",
        ),
        "rounds_timesteps": Boolean(
            True, tooltip="Round the timesteps for the model to whole numbers."
        ),
        "eta": Float(1.0, min=0.0, max=100.0, tooltip="The amount of noise that the steps add."),
        "s_noise": Float(
            1.0, min=0.0, max=100.0, tooltip="The factor of the noise that the steps add."
        ),
        "s_churn": Float(
            0.0, min=0.0, max=100.0, tooltip="The amount of noise that is added before each step."
        ),
        "s_tmin": Float(
            0.0, min=0.0, max=_ANY_SIGMA, tooltip="The smallest sigma at which churn is added."
        ),
        "s_tmax": Float(
            0.0,
            min=0.0,
            max=_ANY_SIGMA,
            tooltip="The largest sigma at which churn is added. 0 means no limit.",
        ),
        "s_min_uncond": Float(
            0.0,
            min=0.0,
            max=_ANY_SIGMA,
            tooltip="Below this sigma, every second call of the model omits the negative text.",
        ),
        "subseed": replace(SEED, tooltip="The seed of the variation."),
        "subseed_strength": Float(
            0.0,
            min=0.0,
            max=1.0,
            tooltip="The share of the variation's noise in the noise at the start.",
        ),
        "seed_resize_from_w": _RESIZED,
        "seed_resize_from_h": _RESIZED,
        "taken_steps": TAKEN_STEPS,
        "noise_multiplier": Float(
            1.0, min=0.0, max=10.0, tooltip="The factor of the noise at the start."
        ),
        "renews_kept": Boolean(
            True, tooltip="Add new noise to the unmasked part before each call of the model."
        ),
        "refiner_model": Link(
            "MODEL", tooltip="The model that replaces the first one near the end."
        ),
        "refiner_positive": Link("CONDITIONING"),
        "refiner_negative": Link("CONDITIONING"),
        "refiner_switch_at": Float(
            0.8,
            min=0.0,
            max=1.0,
            tooltip="The share of the timesteps after which the refiner takes over.",
        ),
    },
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Sampler",
    steps_input="steps",
    estimate=_sampler_estimate,
    check=k_sampler.check,
)
def webui_sampler(
    context: Context,
    *,
    model: Model,
    seed: int,
    steps: int,
    cfg: float,
    sampler_name: str,
    scheduler: str,
    positive: Conditioning,
    negative: Conditioning,
    latent_image: Latent,
    denoise: float,
    rounds_timesteps: bool = True,
    continues_noise: bool = False,
    **options: Any,
) -> Work[tuple[Latent]]:
    """Denoises a latent as the WebUI does, with its noise, its sampler options and a refiner."""
    from engine.diffusion.trajectory import Guidance, SamplerSchedule

    taken = options.get("taken_steps", 0)
    sigmas = context.sigmas(model, scheduler, steps, denoise, sampler=sampler_name, taken=taken)
    whole = None
    if continues_noise and denoise:
        total = int(steps / denoise)
        whole = context.sigmas(model, scheduler, total, 1.0, sampler=sampler_name)
    guidance = Guidance(positive, negative, cfg, options.get("s_min_uncond", 0.0))
    latent, _ = yield from context.sample_along(
        replace(model, rounds_timesteps=rounds_timesteps),
        latent_image,
        SamplerSchedule(sampler_name, sigmas, whole, _sampler_options(options)),
        steps=steps,
        guidance=guidance,
        noise=_noise_config(seed, sampler_name, options, continues_noise=continues_noise),
        refiner=_refiner(guidance, options, rounds_timesteps=rounds_timesteps),
    )
    return (latent,)


def _sampler_options(inputs: Mapping[str, Any]) -> SamplerOptions:
    from engine.diffusion.samplers.ancestral import Churn
    from engine.diffusion.samplers.sampler_lookup import SamplerOptions

    churn = Churn(
        inputs.get("s_churn", 0.0), inputs.get("s_tmin", 0.0), inputs.get("s_tmax", 0.0) or math.inf
    )
    return SamplerOptions(inputs.get("eta"), inputs.get("s_noise", 1.0), churn)


def _noise_config(
    seed: int, sampler: str, inputs: Mapping[str, Any], *, continues_noise: bool
) -> NoiseConfig:
    from engine.diffusion.samplers.noise import Variation
    from engine.diffusion.samplers.noise_sources import comfyui_sources, webui_sources
    from engine.diffusion.trajectory import NoiseConfig

    delta = inputs["eta_noise_seed_delta"]
    sides = [inputs.get(f"seed_resize_from_{side}", 0) for side in "hw"]
    height, width = (side // CELL for side in sides)
    return NoiseConfig(
        seed,
        step_seed_offset=None if continues_noise and not delta else delta,
        sources=webui_sources(inputs["randn_source"])
        if "randn_source" in inputs
        else comfyui_sources(SAMPLER_OF[sampler]),
        scale=inputs.get("noise_scale", "comfyui"),
        variation=Variation(
            inputs.get("subseed", 0),
            inputs.get("subseed_strength", 0.0),
            (height, width) if height and width else None,
        ),
        multiplier=inputs.get("noise_multiplier", 1.0),
        renews_kept=inputs.get("renews_kept", True),
    )


def _of_refiner(inputs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the given inputs of the refiner, which otherwise uses the inputs of the model."""
    return {name: inputs[f"refiner_{name}"] for name in names if f"refiner_{name}" in inputs}


def _refiner(
    guidance: Guidance, inputs: Mapping[str, Any], *, rounds_timesteps: bool
) -> Refiner | None:
    from engine.diffusion.trajectory import Refiner

    if "refiner_model" not in inputs:
        return None
    return Refiner(
        replace(inputs["refiner_model"], rounds_timesteps=rounds_timesteps),
        replace(guidance, **_of_refiner(inputs, *_TEXTS)),
        inputs.get("refiner_switch_at", 0.8),
    )


_SCHEDULE: dict[str, Input] = {
    "steps": STEPS,
    "sampler_name": SAMPLER_INPUT,
    "scheduler": SCHEDULERS,
    "denoise": k_sampler.inputs["denoise"],
}


def _check(literals: Mapping[str, Any]) -> None:
    require_schedule(literals)
    counted = {"steps": literals["steps"], "steps_before": literals["steps_before"]}
    for name, read in (("text", read_prompt), ("negative_text", read_negative_prompt)):
        try:
            read(literals[name], **counted)
        except PromptInvalid as error:
            raise PromptInvalid(f"{name}: {error}") from error


def _encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    counted = {"steps": inputs["steps"], "steps_before": inputs["steps_before"]}
    parts = read_prompt(inputs["text"], **counted)
    negative = _conditioning(read_negative_prompt(inputs["negative_text"], **counted))
    positive = _conditioning(parts)
    if sum(part.weight for part in parts) != 1.0:
        positive = positive.combined(negative)
    clip = model_shape(inputs["clip"])
    encoded = [encoding_estimate(each, clip) for each in (positive, negative)]
    return Estimate(
        tuple(each.shapes[0] for each in encoded),
        work=sum(each.work for each in encoded) + schedule_work(inputs),
    )


def _conditioning(parts: Sequence[Part]) -> ConditioningShape:
    """Return the shape of the conditioning of all texts that are joined by AND.

    In each step, the model gets one stretch of each text.
    """
    tokens = [
        sum(text_tokens("".join(words for words, _ in section)) for section in stretch.sections)
        for part in parts
        for stretch in part.stretches
    ]
    return ConditioningShape(rows=len(parts), tokens=max(tokens), texts=len(tokens))


@node(
    "WebUITextEncode",
    inputs={
        "clip": Link("CLIP"),
        "model": Link("MODEL", tooltip="The model for which the texts are encoded."),
        "text": String(multiline=True, tooltip="The description of the image."),
        "negative_text": String(
            multiline=True, tooltip="The description of things that the image should not show."
        ),
        **_SCHEDULE,
        "steps_before": Int(
            0,
            min=0,
            max=10_000,
            tooltip="The number of steps of an earlier pass, which [a:b:step] counts as well.",
        ),
    },
    optional={
        "pads_texts": Boolean(
            False, tooltip="Pad texts that follow one another or are combined to the same length."
        ),
        "zeroes_empty_negative": Boolean(
            False, tooltip="Use zeros for an empty negative text of SDXL."
        ),
        "makes_plain": Boolean(
            False, tooltip="Replace typographic and full-width characters with plain ones."
        ),
        "taken_steps": TAKEN_STEPS,
        "emphasis": Choice(
            get_args(Emphasis),
            tooltip="Whether weights keep the mean of a chunk, change it, or are ignored.",
        ),
        "guidance": Float(
            0.0,
            min=0.0,
            max=100.0,
            tooltip="The guidance scale that Flux.1 takes as an input. 0 means the default.",
        ),
    },
    outputs=("CONDITIONING", "CONDITIONING"),
    category="darkroom",
    display_name="WebUI Text Encode",
    check=_check,
    estimate=_encode_estimate,
)
def webui_text_encode(
    context: Context,
    *,
    clip: Clip,
    model: Model,
    text: str,
    negative_text: str,
    steps: int,
    steps_before: int,
    sampler_name: str,
    scheduler: str,
    denoise: float,
    taken_steps: int = 0,
    guidance: float = 0.0,
    **options: Any,
) -> Work[tuple[Conditioning, Conditioning]]:
    """Encodes a prompt and a negative prompt in the WebUI's syntax and with its weights.

    The schedule must be that of the sampler that gets the conditionings.
    """
    from engine.diffusion.text.webui_texts import TextOptions

    counted = {"steps": steps, "steps_before": steps_before}
    sigmas = context.sigmas(
        model, scheduler, steps, denoise, sampler=sampler_name, taken=taken_steps
    )
    positive, negative = yield from context.encode_webui(
        clip,
        read_prompt(text, **counted),
        read_negative_prompt(negative_text, **counted),
        sigmas=sigmas,
        options=TextOptions(**options),
    )
    return _with_guidance(positive, guidance), _with_guidance(negative, guidance)


def _with_guidance(conditioning: Conditioning, guidance: float) -> Conditioning:
    if not guidance:
        return conditioning
    return tuple(replace(each, guidance=guidance) for each in conditioning)


_METHODS = Choice(
    (
        "bilinear",
        "bilinear antialiased",
        "bicubic",
        "bicubic antialiased",
        "nearest",
        "nearest-exact",
    )
)
_MOST_TIMES = 3
_SIZE = {"width": side(512), "height": side(512)}


def _upscale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    total, scratch = 0.0, 0
    for _ in range(_MOST_TIMES):
        if images.width >= inputs["width"] and images.height >= inputs["height"]:
            break
        once = image_upscale_with_model.estimated({**inputs, "image": images})
        total, scratch = total + once.work, max(scratch, once.scratch_bytes)
        images = images.scaled(inputs["upscale_model"])
    return Estimate((images,), work=total, scratch_bytes=scratch)


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    samples: LatentShape = inputs["samples"]
    cropped = samples.sized(inputs["width"], inputs["height"])
    return Estimate((cropped,), work=cropped.megapixels * work.COPY)


@node(
    "WebUILatentUpscale",
    inputs={**latent_upscale.inputs, "upscale_method": _METHODS},
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Upscale",
    pixel_inputs=latent_upscale.pixel_inputs,
    estimate=latent_upscale.estimate,
)
def webui_latent_upscale(context: Context, **inputs: Any) -> tuple[Latent]:
    """Resizes latents to images of `width` x `height` pixels, by the WebUI's methods."""
    latents: tuple[Latent] = latent_upscale.body(context, **inputs)
    return latents


@node(
    "WebUIImageUpscale",
    inputs={"upscale_model": Link("UPSCALE_MODEL"), "image": Link("IMAGE"), **_SIZE},
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Image Upscale",
    estimate=_upscale_estimate,
)
def webui_image_upscale(
    context: Context, *, upscale_model: UpscaleNetwork, image: Images, width: int, height: int
) -> Work[tuple[Images]]:
    """Enlarges images with a model, repeatedly until they have at least the given size."""
    for _ in range(_MOST_TIMES):
        before = image.shape
        if before[2] >= width and before[1] >= height:
            break
        image = yield from context.upscaled(upscale_model, image)
        if image.shape == before:
            break
    return (image,)


@node(
    "WebUILatentCrop",
    inputs={"samples": Link("LATENT"), **_SIZE},
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Crop",
    estimate=_crop_estimate,
)
def webui_latent_crop(context: Context, samples: Latent, width: int, height: int) -> tuple[Latent]:
    """Crops latents to the middle `width` x `height` pixels."""
    return (context.latents.cropped(samples, width, height),)


_MODES = Choice(RESIZE_MODES[:3])
_BLUR = Int(0, min=0, max=64, tooltip="The standard deviation of the blur, in pixels.")
_PADDING = Int(
    0,
    min=0,
    max=MAX_SIDE,
    tooltip="The number of pixels around the mask that belong to the sampled part.",
)
_ONLY_MASKED = Boolean(True, tooltip="Sample only the part of the image around the mask.")
_FILLS = 11
"""The number of composites in `img2img.filled`: six blurred copies of the image, each
composited one to four times.
"""
_LATENT_COPIES = 3


def _start_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return changed_images(images, images.sized(inputs["width"], inputs["height"]), work.RESAMPLE)


def _mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    mask = MaskShape(images.count, images.width, images.height)
    return Estimate(
        (mask,), work=images.megapixels * work.RESAMPLE, scratch_bytes=images.size_bytes
    )


def _area_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    sized = images.sized(inputs["width"], inputs["height"])
    found = changed_images(images, sized, 2 * work.RESAMPLE)
    mask = MaskShape(sized.count, sized.width, sized.height)
    return replace(found, shapes=(sized, mask))


def _fill_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_images(inputs["image"], inputs["image"], _FILLS * work.RESAMPLE)


def _latent_mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    mask: MaskShape = inputs["mask"]
    found = changed_latent(latent, replace(latent, held_bytes=saturated(mask.size_bytes)))
    return replace(
        found,
        work=found.work + mask.megapixels * work.RESAMPLE,
        scratch_bytes=saturated(_LATENT_COPIES * latent.size_bytes + mask.size_bytes),
    )


def _paste_estimate(inputs: Mapping[str, Any]) -> Estimate:
    made: ImageShape = inputs["image"]
    original: ImageShape = inputs["original"]
    return changed_images(made, original, 2 * work.RESAMPLE)


@node(
    "WebUIInitImage",
    inputs={
        "image": Link("IMAGE"),
        "transparency": Link("MASK"),
        "width": side(
            512, tooltip="The length in pixels. If both are 0, the image keeps its size."
        ),
        "height": side(512),
        "resize_mode": _MODES,
    },
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Init Image",
    pixel_inputs=("width", "height"),
    estimate=_start_estimate,
)
def webui_init_image(
    context: Context,
    image: Images,
    *,
    transparency: Mask,
    width: int,
    height: int,
    resize_mode: Any,
) -> tuple[Images]:
    """Puts a white background behind transparent images, and resizes them."""
    from engine.diffusion.images.img2img import flattened, resized

    plain = flattened(image, transparency)
    if not width or not height:
        return (plain,)
    context.images.limits.require_batch(len(plain), width=width, height=height)
    return (resized(plain, width, height, mode=resize_mode),)


@node(
    "WebUIMask",
    inputs={
        "image": Link("IMAGE"),
        "transparency": Link("MASK"),
        "invert": Boolean(False, tooltip="Invert the mask: its black part is sampled."),
        "blur_x": _BLUR,
        "blur_y": _BLUR,
    },
    outputs=("MASK",),
    category="darkroom",
    display_name="WebUI Mask",
    estimate=_mask_estimate,
)
def webui_mask(
    context: Context, image: Images, *, transparency: Mask, invert: bool, blur_x: int, blur_y: int
) -> tuple[Mask]:
    """Makes a mask of the opaque part of images, or of their white part if all of it is opaque."""
    from engine.diffusion.images.img2img import painted_mask

    return (painted_mask(image, transparency, inverts=invert, blur_x=blur_x, blur_y=blur_y),)


@node(
    "WebUIInpaintArea",
    inputs={
        "image": Link("IMAGE"),
        "mask": Link("MASK"),
        **_SIZE,
        "resize_mode": _MODES,
        "only_masked": _ONLY_MASKED,
        "padding": _PADDING,
    },
    outputs=("IMAGE", "MASK"),
    category="darkroom",
    display_name="WebUI Inpaint Area",
    pixel_inputs=("width", "height"),
    estimate=_area_estimate,
)
def webui_inpaint_area(
    context: Context,
    image: Images,
    mask: Mask,
    *,
    width: int,
    height: int,
    resize_mode: Any,
    only_masked: bool,
    padding: int,
) -> tuple[Images, Mask]:
    """Resizes images and their mask: the whole images, or the part around the mask."""
    from engine.diffusion.images import img2img
    from engine.diffusion.images.img2img import resized, resized_mask

    width, height = width or image.shape[2], height or image.shape[1]
    context.images.limits.require_batch(len(image), width=width, height=height)
    if not only_masked:
        return (
            resized(image, width, height, mode=resize_mode),
            resized_mask(mask, width, height, mode=resize_mode),
        )
    mask = _mask_of(image, mask)
    region = img2img.region_of(mask, width, height, padding=padding)
    part = img2img.cut_out(mask, region) if mask.any() else img2img.cut_out(mask, region) + 1
    return (
        resized(img2img.cut_out(image, region), width, height, mode="resize and fill"),
        resized_mask(part, width, height, mode="resize and fill"),
    )


@node(
    "WebUIFill",
    inputs={"image": Link("IMAGE"), "mask": Link("MASK")},
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Fill",
    estimate=_fill_estimate,
)
def webui_fill(context: Context, image: Images, mask: Mask) -> tuple[Images]:
    """Fills the masked part of images with the colours of its surroundings."""
    from engine.diffusion.images.img2img import filled

    return (filled(image, _mask_of(image, mask)),)


@node(
    "WebUILatentMask",
    inputs={
        "model": Link("MODEL"),
        "samples": Link("LATENT"),
        "mask": Link("MASK"),
        "content": Choice(MASKED_CONTENTS, tooltip="The content of the masked part at the start."),
        "seed": SEED,
    },
    optional={"randn_source": _RANDN_SOURCE},
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Mask",
    estimate=_latent_mask_estimate,
)
def webui_latent_mask(
    context: Context,
    model: Model,
    *,
    samples: Latent,
    mask: Mask,
    content: str,
    seed: int,
    randn_source: RandnSource = "CPU",
) -> tuple[Latent]:
    """Sets the mask of a latent, and replaces the masked part with noise or zeros if requested."""
    from engine.diffusion.images.img2img import latent_mask
    from engine.diffusion.inpainting import fitted_mask
    from engine.diffusion.samplers.noise_sources import seeded_randn, webui_sources

    cells, before = latent_mask(mask), samples.samples
    masked = fitted_mask(cells, before)
    if content in ("latent noise", "latent nothing"):
        before = before * (1 - masked)
    if content == "latent noise":
        draws = seeded_randn(webui_sources(randn_source).start, model.device)
        noise = draws(seed)(before.shape).to(before)
        before = before + noise / model.latent_scale * masked
    return (replace(samples, samples=before, noise_mask=cells),)


@node(
    "WebUIPaste",
    inputs={
        "image": Link("IMAGE"),
        "original": Link("IMAGE"),
        "mask": Link("MASK"),
        "only_masked": _ONLY_MASKED,
        "padding": _PADDING,
    },
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Paste",
    estimate=_paste_estimate,
)
def webui_paste(
    context: Context,
    image: Images,
    *,
    original: Images,
    mask: Mask,
    only_masked: bool,
    padding: int,
) -> tuple[Images]:
    """Pastes a sampled inpaint area into the original image where the mask is."""
    from engine.diffusion.images import img2img
    from engine.diffusion.images.img2img import resized

    mask = _mask_of(original, mask)
    if not only_masked:
        height, width = original.shape[1:3]
        same = resized(image, width, height, mode="just resize")
        return (img2img.overlaid(same, original, mask, None),)
    region = img2img.region_of(mask, image.shape[2], image.shape[1], padding=padding)
    covering = mask if mask.any() else mask + 1
    return (img2img.overlaid(image, original, covering, region),)


def _mask_of(images: Images, mask: Mask) -> Mask:
    from engine.diffusion.images.img2img import stretched_mask

    height, width = images.shape[1:3]
    return mask if mask.shape[1:] == (height, width) else stretched_mask(mask, width, height)


@node(
    "WebUITiling",
    inputs={"model": Link("MODEL"), "vae": Link("VAE")},
    outputs=("MODEL", "VAE"),
    category="darkroom",
    display_name="WebUI Tiling",
)
def webui_tiling(context: Context, model: Model, vae: Vae) -> tuple[Model, Vae]:
    """Changes a model and a VAE so that opposite edges of the image fit together."""
    from engine.diffusion.patches.variants import seamless

    tiled = replace(model, unet=seamless(model.unet))
    return tiled, replace(vae, autoencoder=seamless(vae.autoencoder))
