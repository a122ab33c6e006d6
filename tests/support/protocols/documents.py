"""OpenAPI documents of protocols, whose routes are not in Darkroom's own document.

FastAPI describes paths, queries and headers. The routes read bodies themselves, so the schemas of
bodies are defined here.
"""

from __future__ import annotations

import copy
from base64 import b64encode
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from actors.worker.result_file import encode_png
from serve_app.protocols.comfy_v2.assets import FromHash
from serve_app.protocols.comfyui.bodies import TWIN
from serve_app.protocols.openai.requests import EditParameters, GenerationParameters
from serve_app.protocols.registry import HttpProtocol
from serve_app.protocols.webui.extras import ImageBatch, PngInfo, SingleImage
from tests.support.generate_bodies import diffusion_body, workflow_body

Schema = dict[str, Any]

PICTURE = encode_png(np.full((16, 16, 3), 90, np.uint8), {"parameters": "a cat\nSteps: 2"})
ANYTHING: Schema = {}
TEXT: Schema = {"type": "string"}
FILE: Schema = {"type": "string", "format": "binary"}
IN_BASE64 = {"anyOf": [{"enum": [b64encode(PICTURE).decode()]}, TEXT]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Existing things that a random request may name."""

    job_ids: tuple[str, ...]
    asset_ids: tuple[str, ...]
    names: tuple[str, ...]
    """Names of files, uploads, folders of models, nodes, settings."""
    schemas: Mapping[str, Any]
    """The schemas of Darkroom's own document."""
    workflow: Schema
    diffusion: Schema
    """The schema of diffusion bodies."""

    def or_any(self, *known: Any, schema: Schema = TEXT) -> Schema:
        return {"anyOf": [{"enum": list(known)}, schema]}

    @property
    def any_id(self) -> Schema:
        return self.or_any(*self.job_ids, *self.asset_ids, *self.names)


def document_of(adapter: HttpProtocol, known: Known) -> dict[str, Any]:
    """Return the document of a protocol; known names are among the values of parameters."""
    document = get_openapi(title=adapter.name, version="1", routes=list(_routes(adapter)))
    components = document.setdefault("components", {})
    components["schemas"] = {**known.schemas, **components.get("schemas", {})}
    bodies = _bodies(adapter.name, known)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.get("parameters", ()):
                if parameter["schema"].get("type") == "string":
                    parameter["schema"] = {"anyOf": [known.any_id, parameter["schema"]]}
            if body := bodies.pop(f"{method} {path}", None):
                operation["requestBody"] = body
    assert not bodies, f"there are no routes of these: {sorted(bodies)}"
    return document


def _routes(adapter: HttpProtocol) -> Generator[APIRoute]:
    for router in adapter.routers:
        for route in router.routes:
            if isinstance(route, APIRoute):
                shown = copy.copy(route)
                shown.include_in_schema = True
                shown.path_format = route.path_format.replace(TWIN.partition(":")[0] + "}", "")
                yield shown


def _bodies(adapter: str, known: Known) -> dict[str, Schema]:
    """Return the schemas of bodies by method and path."""
    schemas = {
        "comfyui": _of_comfyui,
        "comfy_v2": _of_comfy_v2,
        "webui": _of_webui,
        "openai": _of_openai,
        "mcp": _of_mcp,
    }
    return schemas[adapter](known)


def _of_comfyui(known: Known) -> dict[str, Schema]:
    ids = {"type": "array", "items": known.any_id}
    more = {
        "client_id": TEXT,
        "prompt_id": known.any_id,
        "front": {"type": "boolean"},
        "partial_execution_targets": {"type": "array", "items": known.or_any("9", "3")},
        "extra_data": {"type": "object", "properties": {"preview_method": TEXT}},
    }
    prompt = known.or_any(_graph(), schema={"type": "object"})
    lists = {"delete": ids, "clear": {"type": "boolean"}}
    return {
        "post /prompt": _json(_either(_object(prompt=prompt, **more), known.workflow)),
        "post /queue": _json(_object(**lists)),
        "post /history": _json(_object(**lists)),
        "post /interrupt": _json(_object(prompt_id=known.any_id)),
        "post /jobs/cancel": _json(_object(job_ids=ids)),
        "post /free": _json(_object(unload_models=ANYTHING, free_memory=ANYTHING)),
        "patch /internal/logs/subscribe": _json(_object(clientId=TEXT, enabled=ANYTHING)),
        "post /settings": _json(_object(**dict.fromkeys(known.names, ANYTHING))),
        "post /settings/{id}": _json(ANYTHING),
        "post /upload/image": _form(image=FILE, subfolder=TEXT, type=TEXT, overwrite=TEXT),
        "post /upload/mask": _form(
            image=FILE,
            original_ref=known.or_any('{"filename": "cat.png", "type": "input"}'),
        ),
    }


def _of_comfy_v2(known: Known) -> dict[str, Schema]:
    asset = {"__type": "core/ASSET", "info": {"id": known.asset_ids[0]}}
    graphs = known.or_any(_graph(), _graph(asset), schema={"type": "object"})
    return {
        "post /api/v2/assets": _form(file=FILE, file_path=TEXT, expected_hash=known.any_id),
        "post /api/v2/assets/from-hash": _json(_of(FromHash)),
        "post /api/v2/jobs": _json(_object(workflow=graphs, extra_data={"type": "object"})),
    }


def _of_webui(known: Known) -> dict[str, Schema]:
    small = diffusion_body(steps=2, width=64, height=64)
    images = _object(
        init_images={"type": "array", "items": IN_BASE64},
        mask=IN_BASE64,
        denoising_strength={"type": "number"},
        resize_mode={"type": "integer"},
        inpainting_fill={"type": "integer"},
        send_images={"type": "boolean"},
    )
    image = {"properties": {"image": IN_BASE64}}
    options = dict.fromkeys(("sd_model_checkpoint", "sd_vae", "samples_format"), known.any_id)
    return {
        "post /sdapi/v1/txt2img": _json(_either({"enum": [small]}, known.diffusion)),
        "post /sdapi/v1/img2img": _json({"allOf": [images, {"properties": _members(small)}]}),
        "post /sdapi/v1/extra-single-image": _json({"allOf": [_of(SingleImage), image]}),
        "post /sdapi/v1/extra-batch-images": _json(_of(ImageBatch)),
        "post /sdapi/v1/png-info": _json({"allOf": [_of(PngInfo), image]}),
        "post /sdapi/v1/options": _json(_object(**options)),
    }


def _of_openai(_known: Known) -> dict[str, Schema]:
    members = dict.fromkeys(EditParameters.model_fields, TEXT)
    return {
        "post /v1/images/generations": _json(_of(GenerationParameters)),
        "post /v1/images/edits": _form(**members, image=FILE, mask=FILE),
        "post /v1/images/variations": _form(**members, image=FILE),
    }


def _of_mcp(known: Known) -> dict[str, Schema]:
    methods = ("initialize", "ping", "resources/list", "resources/read", "tools/list")
    tools = ("cancel_job", "generate_image", "list_models", "submit_job", "wait_for_job")
    arguments = _object(
        prompt=TEXT,
        request_id=known.any_id,
        flavour=known.or_any("workflow", "diffusion"),
        body=known.or_any(_graph(), schema={"type": "object"}),
        timeout_s={"type": "number"},
        width={"type": "integer"},
    )
    call = _message(("tools/call",), name={"enum": list(tools)}, arguments=arguments)
    other = _message(methods, uri=known.or_any(*(f"darkroom://jobs/{i}" for i in known.job_ids)))
    return {"post /mcp": _json(_either(call, other))}


def _message(methods: Sequence[str], **params: Schema) -> Schema:
    """Return the schema of a JSON-RPC message with all of these parameters."""
    members = _object(
        jsonrpc={"enum": ["2.0"]},
        id={"type": "integer", "minimum": 0, "maximum": 9},
        method={"enum": list(methods)},
        params={**_object(**params), "required": list(params)},
    )
    return {**members, "required": list(members["properties"])}


def _graph(image: Any = None) -> dict[str, Any]:
    """Return a small graph, which starts from an image if one is given."""
    if image is None:
        graph: dict[str, Any] = workflow_body(steps=2)["prompt"]
        return graph
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": image}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    }


def _members(body: Mapping[str, Any]) -> dict[str, Schema]:
    return {name: {"enum": [value]} for name, value in body.items()}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _object(**members: Schema) -> Schema:
    return {"type": "object", "properties": members}


def _of(model: type[BaseModel]) -> Schema:
    """Return the model's schema without references to others."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return _resolved(schema, definitions)


def _resolved(value: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _resolved(definitions[value["$ref"].rpartition("/")[2]], definitions)
        return {name: _resolved(each, definitions) for name, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, definitions) for each in value]
    return value


def _json(schema: Schema) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _form(**fields: Schema) -> Schema:
    return {"required": True, "content": {"multipart/form-data": {"schema": _object(**fields)}}}
