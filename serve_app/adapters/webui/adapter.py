"""The WebUI's API as an adapter."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.webui import extras, generation, listings, options, running
from serve_app.adapters.webui.errors import error_response
from serve_app.adapters.webui.paths import PREFIX

WEBUI = Adapter(
    name="webui",
    routers=tuple(each.router for each in (generation, extras, running, options, listings)),
    prefixes=(PREFIX,),
    error_form=error_response,
)
