"""Diffusion requests that core nodes of ComfyUI can express. They need two images as uploads."""

from __future__ import annotations

from typing import Any

SMALL = {"prompt": "a red fox", "seed": 5, "width": 64, "height": 64, "steps": 2}
IMAGE, MASK = "start.png", "mask.png"
_FROM_IMAGE = {"init_images": [IMAGE], "denoising_strength": 0.5}
_HIRES = {"enable_hr": True, "hr_resize_x": 96, "hr_resize_y": 96}
CORE_REQUESTS: dict[str, dict[str, Any]] = {
    "txt2img": {"negative_prompt": "blurry", "sampler_name": "DPM++ 2M Karras"},
    "weights": {"prompt": r"a (red:1.2) [fox] \(animal\), ((sharp))"},
    "break": {"prompt": "a fox BREAK in the (snow:0.8)"},
    "images": {"batch_size": 2, "n_iter": 2},
    "clip skip": {"clip_skip": 2},
    "guidance": {"distilled_cfg_scale": 3.0},
    "hires fix": {**_HIRES, "hr_prompt": "a blue fox", "hr_second_pass_steps": 1},
    "hires fix by pixels": {**_HIRES, "hr_upscaler": "Lanczos"},
    "img2img": _FROM_IMAGE,
    "img2img, cropped": {**_FROM_IMAGE, "resize_mode": 1},
    "img2img, latent": {**_FROM_IMAGE, "resize_mode": 3, "sampler_name": "Euler a"},
    "inpaint": {**_FROM_IMAGE, "mask": MASK, "inpainting_mask_invert": True},
}

CORE_INPUTS = {
    "CLIPSetLastLayer": {"clip", "stop_at_clip_layer"},
    "CLIPTextEncode": {"clip", "text"},
    "CheckpointLoaderSimple": {"ckpt_name"},
    "ConditioningConcat": {"conditioning_from", "conditioning_to"},
    "EmptyLatentImage": {"batch_size", "height", "width"},
    "FluxGuidance": {"conditioning", "guidance"},
    "ImageScale": {"crop", "height", "image", "upscale_method", "width"},
    "ImageUpscaleWithModel": {"image", "upscale_model"},
    "InvertMask": {"mask"},
    "KSampler": {
        *("model", "positive", "negative", "latent_image", "seed", "steps", "cfg"),
        *("sampler_name", "scheduler", "denoise"),
    },
    "LatentUpscale": {"crop", "height", "samples", "upscale_method", "width"},
    "LoadImage": {"image"},
    "LoadImageMask": {"channel", "image"},
    "LoraLoader": {"clip", "lora_name", "model", "strength_clip", "strength_model"},
    "SaveImage": {"filename_prefix", "images"},
    "SetLatentNoiseMask": {"mask", "samples"},
    "UpscaleModelLoader": {"model_name"},
    "VAEDecode": {"samples", "vae"},
    "VAEEncode": {"pixels", "vae"},
    "VAELoader": {"vae_name"},
}
"""The required inputs of core nodes in ComfyUI 0.3.64."""


def core_request(name: str, **members: Any) -> dict[str, Any]:
    return {**SMALL, **CORE_REQUESTS[name], **members}
