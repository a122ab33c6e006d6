"""Comfy API v2 as an adapter."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.comfy_v2 import assets, jobs
from serve_app.adapters.comfy_v2.errors import error_response
from serve_app.adapters.comfy_v2.links import PREFIX

COMFY_V2 = Adapter(
    name="comfy_v2",
    routers=(assets.router, jobs.router),
    prefixes=(PREFIX,),
    error_form=error_response,
)
