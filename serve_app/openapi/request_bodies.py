"""The schema and an example of each request body, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from engine.webui.parameters import DiffusionParameters
from events.callback_address import LONGEST_PUT_URL
from events.types import Flavour
from serve_app.acceptance.image_puts import MEMBER

EXAMPLE_CHECKPOINT = "darkroom-shapes.safetensors"
"""The one that is included, so that examples run."""

_IMAGE_PUT_URLS: dict[str, Any] = {
    "description": "Where the images are sent by PUT once the job has ended, one address an image "
    "in the order of `results`: presigned ones of a bucket of yours, all of one host. They are "
    "kept where nobody reads them, and shown nowhere",
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_PUT_URL},
}

_WORKFLOW_SCHEMA: dict[str, Any] = {
    "title": "WorkflowRequest",
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "prompt": {
            "description": "Node graph: nodes by their id",
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["class_type", "inputs"],
                "properties": {
                    "class_type": {"type": "string", "description": "One of GET /v1/object_info"},
                    "inputs": {
                        "type": "object",
                        "description": "Literals, or [node id, output index]. In the place of "
                        "an uploaded image's name may be the image: a data URL, base64, or an "
                        "https URL",
                    },
                },
            },
        },
        "extra_data": {
            "type": "object",
            "description": "extra_pnginfo in it goes into the PNG: an object, whose names are "
            "keywords of PNG text chunks. Its other members are ignored",
        },
        MEMBER: _IMAGE_PUT_URLS,
    },
}

_WORKFLOW_EXAMPLE: dict[str, Any] = {
    "prompt": {
        "3": {
            "class_type": "KSampler",
            "inputs": {
                "cfg": 5,
                "denoise": 1,
                "latent_image": ["5", 0],
                "model": ["4", 0],
                "negative": ["7", 0],
                "positive": ["6", 0],
                "sampler_name": "euler",
                "scheduler": "normal",
                "seed": 8566257,
                "steps": 20,
            },
        },
        "4": {
            "class_type": "CheckpointLoaderSimple",
            "inputs": {"ckpt_name": EXAMPLE_CHECKPOINT},
        },
        "5": {
            "class_type": "EmptyLatentImage",
            "inputs": {"batch_size": 1, "height": 64, "width": 64},
        },
        "6": {
            "class_type": "CLIPTextEncode",
            "inputs": {"clip": ["4", 1], "text": "a large red circle on white"},
        },
        "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "blurred"}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {
            "class_type": "SaveImage",
            "inputs": {"filename_prefix": "darkroom", "images": ["8", 0]},
        },
    }
}

_DIFFUSION_EXAMPLE: dict[str, Any] = {
    "sd_model_checkpoint": EXAMPLE_CHECKPOINT,
    "prompt": "a large red circle on white",
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "sampler_name": "Euler",
    "scheduler": "Automatic",
    "steps": 20,
    "cfg_scale": 5,
    "batch_size": 1,
    "clip_skip": 1,
    "seed": -1,
    "override_settings": {"sd_model_checkpoint": EXAMPLE_CHECKPOINT},
}

# A bound beside a validator of our own reaches the schema under pydantic's name for it.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def request_body(flavour: Flavour) -> dict[str, Any]:
    """The OpenAPI request body object."""
    if flavour is Flavour.WORKFLOW:
        return _json_body(_WORKFLOW_SCHEMA, _WORKFLOW_EXAMPLE)
    schema = _schema(DiffusionParameters)
    properties = {**schema["properties"], MEMBER: _IMAGE_PUT_URLS}
    named = {**schema, "title": "DiffusionRequest", "properties": properties}
    return _json_body(named, _DIFFUSION_EXAMPLE)


def model_body(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI request body object of a body that `Bodies.model` reads."""
    return _json_body(_schema(model), example)


def _json_body(schema: Any, example: dict[str, Any]) -> dict[str, Any]:
    media_type = {"schema": schema, "example": example}
    return {"required": True, "content": {"application/json": media_type}}


def _schema(model: type[BaseModel]) -> Any:
    schema = model.model_json_schema()
    return _plain(schema, schema.pop("$defs", {}))


def _plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its definitions inlined: a reference would not resolve where it stands."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _plain(definitions[reference.rpartition("/")[2]], definitions)
    return {_KEYWORDS.get(key, key): _plain(each, definitions) for key, each in schema.items()}
