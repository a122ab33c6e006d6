"""All routes of this API, below one path."""

from __future__ import annotations

from fastapi import APIRouter

from serve_app.adapters.webui import extras, generation, listings, options, running

PREFIX = "/sdapi"

router = APIRouter(prefix=f"{PREFIX}/v1", include_in_schema=False)
for each in (generation, extras, running, options, listings):
    router.include_router(each.router)
