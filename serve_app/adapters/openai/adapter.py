"""OpenAI's images API as an adapter."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.openai.errors import error_response
from serve_app.adapters.openai.routes import IMAGES, router

OPENAI = Adapter(name="openai", routers=(router,), prefixes=(IMAGES,), error_form=error_response)
