"""The WebUI's API as an adapter."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.webui.errors import error_response
from serve_app.adapters.webui.routes import PREFIX, router

WEBUI = Adapter(name="webui", routers=(router,), prefixes=(PREFIX,), error_form=error_response)
