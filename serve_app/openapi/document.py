"""The OpenAPI document: operation ids, request bodies, error responses and callbacks."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.routing import BaseRoute

from engine.interface import DiffusionParameters
from events.callback_address import LONGEST_PUT_URL
from events.delivery_steps import CallbackBody
from events.types import Flavour
from serve_app.acceptance.addresses import MEMBER

EXAMPLE_CHECKPOINT = "darkroom-shapes.safetensors"
"""The checkpoint that Darkroom includes, so that the examples can run."""

_IMAGE_PUT_URLS: dict[str, Any] = {
    "description": "Presigned URLs of a bucket. When the job has ended, Darkroom sends each image "
    "to one of them by PUT, in the order of `results`. All URLs must have the same host. Darkroom "
    "stores them encrypted and never shows them",
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
                    "class_type": {
                        "type": "string",
                        "description": "A node class of GET /v1/object_info",
                    },
                    "inputs": {
                        "type": "object",
                        "description": "Literals, or links of the form [node id, output index]. "
                        "Instead of the name of an uploaded image, an input may contain the image: "
                        "a data URL, base64, or an https URL",
                    },
                },
            },
        },
        "extra_data": {
            "type": "object",
            "description": "The member `extra_pnginfo` is an object that is written into the PNG: "
            "its names are keywords of PNG text chunks. On an endpoint with ComfyUI, other "
            "members, such as keys of partner nodes, are stored encrypted and passed to the "
            "server. Elsewhere they are ignored",
        },
        MEMBER: _IMAGE_PUT_URLS,
    },
}

WORKFLOW_EXAMPLE: dict[str, Any] = {
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

# If a field has a custom validator, pydantic writes the limit with its own keyword, such as `ge`.
_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_TWIN_PREFIX = "/api/v1/"
"""The prefix of the second path, or twin, that some routes have for clients of ComfyUI."""
_DESCRIPTIONS = {
    400: "The request is not valid",
    401: "The request has no key, or the key is not valid",
    403: "The key lacks the scope, or may not use this endpoint or callback host",
    404: "It does not exist, or belongs to another owner",
    405: "The path does not allow this method",
    408: "The body arrives too slowly",
    409: "The idempotency key was used for another request, or the key cannot be rotated, or the "
    "job has not failed, or the endpoint exists, was changed, or cannot be deleted",
    410: "The URL has expired, or the events after the cursor are not available",
    413: "The body is too large, or the uploads of the owner take too many bytes",
    415: "The body has an unsupported media type",
    416: "The image ends before this range",
    429: "A limit of the key or its owner is reached (requests, open jobs, streams, bytes, "
    "endpoints), or the queue is full",
    500: "The service had an internal error, or the job is damaged in the event log",
    503: "The event log, the database, the image store, the models folder or the name server does "
    "not answer, the log is full, the endpoint is drained, the job has an event of a later "
    "version, or too many large bodies wait",
}
_HEADERS = {
    401: {"WWW-Authenticate": "How to authenticate"},
    416: {"Content-Range": "The size of the image in bytes"},
    429: {"Retry-After": "Seconds"},
    503: {"Retry-After": "Seconds"},
}


def request_body(flavour: Flavour) -> dict[str, Any]:
    """Return the OpenAPI request body of a generate request."""
    if flavour is Flavour.WORKFLOW:
        return _json_body(_WORKFLOW_SCHEMA, WORKFLOW_EXAMPLE)
    schema = _schema(DiffusionParameters)
    properties = {**schema["properties"], MEMBER: _IMAGE_PUT_URLS}
    named = {**schema, "title": "DiffusionRequest", "properties": properties}
    return _json_body(named, _DIFFUSION_EXAMPLE)


def model_body(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI request body of a route that calls `Bodies.model`."""
    return _json_body(_schema(model), example)


def _json_body(schema: Any, example: dict[str, Any]) -> dict[str, Any]:
    media_type = {"schema": schema, "example": example}
    return {"required": True, "content": {"application/json": media_type}}


def _schema(model: type[BaseModel]) -> Any:
    schema = model.model_json_schema()
    return _plain(schema, schema.pop("$defs", {}))


def _plain(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return the schema with its definitions inlined, because references would not resolve."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        return _plain(definitions[reference.rpartition("/")[2]], definitions)
    return {_KEYWORDS.get(key, key): _plain(each, definitions) for key, each in schema.items()}


def operation_id(route: APIRoute) -> str:
    """Return the operation id of a route, such as `generateWorkflow` or `generateWorkflowTwin`."""
    first, *others = route.name.split("_")
    twin = "Twin" if route.path.startswith(_TWIN_PREFIX) else ""
    return "".join([first, *(each.capitalize() for each in others), twin])


def finish(document: dict[str, Any]) -> dict[str, Any]:
    """Adapt the OpenAPI document that FastAPI generated. Changes it in place and returns it."""
    schemas = document["components"]["schemas"]
    _remove_422(document["paths"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    paths = {
        operation["operationId"]: f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            _name_body(operation, schemas)
            _mark_twin(operation, paths)
            for callback in operation.get("callbacks", {}).values():
                for receiver in callback.values():
                    receiver["post"]["operationId"] = f"{operation['operationId']}Completed"
    return document


def _remove_422(paths: dict[str, Any]) -> None:
    """Remove FastAPI's responses with status 422. Darkroom answers invalid requests with 400."""
    for path in paths.values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            for callback in operation.get("callbacks", {}).values():
                _remove_422(callback)


def _name_body(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Move a body with a title to the schemas, so that generated clients have a type for it."""
    for media_type in operation.get("requestBody", {}).get("content", {}).values():
        title = media_type["schema"].get("title")
        if title is not None:
            schemas[title] = media_type["schema"]
            media_type["schema"] = {"$ref": f"#/components/schemas/{title}"}


def _mark_twin(operation: dict[str, Any], paths: dict[str, str]) -> None:
    id = operation["operationId"].removesuffix("Twin")
    if id != operation["operationId"]:
        operation["x-twin-of"] = id
        operation["description"] += f"\n\nThe same as `{paths[id]}`."


class ErrorDetail(BaseModel):
    type: str = Field(
        description="The type of the error, for programs. It does not change between versions"
    )
    message: str = Field(description="A message for people")
    details: str = ""
    extra_info: dict[str, Any] = Field(default_factory=dict)


class ErrorBody(BaseModel):
    """The body of an answer with a status of 400 or more.

    The routes of the OpenAI, WebUI and Comfy v2 protocols have their own error formats.
    """

    error: ErrorDetail
    node_errors: dict[str, Any] = Field(
        default_factory=dict, description="The errors of a refused workflow by node id"
    )


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that can fail with these statuses. 401 implies 429."""
    if 401 in statuses:
        statuses = (*statuses, 429)
    return {
        status: {
            "model": ErrorBody,
            "description": _DESCRIPTIONS[status],
            "headers": {
                name: {"description": text, "schema": {"type": "string"}}
                for name, text in _HEADERS.get(status, {}).items()
            },
        }
        for status in statuses
    }


def callback_routes(path: str) -> list[BaseRoute]:
    """Return the callback route of a generate path. `finish` sets its operation id."""
    router = APIRouter()
    router.add_api_route(
        "{$request.query.callback_url}",
        task_completed,
        methods=["POST"],
        operation_id=path,
        response_model=None,
        responses={
            200: {
                "description": "The callback was received. Any status from 200 to 299 has the same "
                "effect"
            }
        },
    )
    return router.routes


def task_completed(
    body: CallbackBody,
    webhook_id: Annotated[
        str,
        Header(
            description="The id of the callback, the same on every attempt. Use it to ignore "
            "repeated callbacks"
        ),
    ],
    webhook_timestamp: Annotated[str, Header(description="Unix time of this attempt, in seconds")],
    webhook_signature: Annotated[
        str,
        Header(
            description="Signatures by Standard Webhooks, separated by spaces: `v1,<base64>`. The "
            "first is made with the secret of the job's API key, and the others with the secrets "
            "of the owner's other keys"
        ),
    ],
) -> None:
    """Darkroom sends this request when the job has ended, and for each event in `callback_events`.
    The body is the result of the job at this time.
    """
