"""Bodies of generate requests, as the service document has them."""

from __future__ import annotations

from typing import Any

from events.types import Flavour

CHECKPOINT = "tiny.safetensors"
"""The only model of `tests.support.edge`."""

GENERATE_PATHS = {
    "/api/v1/workflow/generate": Flavour.WORKFLOW,
    "/workflow/v1/generate": Flavour.WORKFLOW,
    "/diffusion/v1/generate": Flavour.DIFFUSION,
    "/api/v1/diffusion/generate": Flavour.DIFFUSION,
}


def workflow_body(**sampling: Any) -> dict[str, Any]:
    """The node kinds and input names of the service document, section 2.3."""
    inputs = {
        "cfg": 8,
        "denoise": 1,
        "latent_image": ["5", 0],
        "model": ["4", 0],
        "negative": ["7", 0],
        "positive": ["6", 0],
        "sampler_name": "euler",
        "scheduler": "normal",
        "seed": 8566257,
        "steps": 20,
    }
    return {
        "prompt": {
            "3": {"class_type": "KSampler", "inputs": {**inputs, **sampling}},
            "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
            "5": {
                "class_type": "EmptyLatentImage",
                "inputs": {"batch_size": 1, "height": 512, "width": 512},
            },
            "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "a cat"}},
            "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": ""}},
            "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
            "9": {
                "class_type": "SaveImage",
                "inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]},
            },
        }
    }


def diffusion_body(**parameters: Any) -> dict[str, Any]:
    """Every field of the service document, section 2.4."""
    return {
        "sd_model_checkpoint": CHECKPOINT,
        "prompt": "a cat",
        "negative_prompt": "",
        "width": 512,
        "height": 512,
        "sampler_name": "Euler",
        "scheduler": "Automatic",
        "steps": 20,
        "cfg_scale": 7.5,
        "batch_size": 1,
        "clip_skip": 1,
        "seed": -1,
        "override_settings": {"sd_model_checkpoint": CHECKPOINT},
        **parameters,
    }


def body_for(flavour: Flavour) -> dict[str, Any]:
    return workflow_body() if flavour is Flavour.WORKFLOW else diffusion_body()
