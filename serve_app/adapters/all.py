"""Every adapter there is."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.openai import errors as openai_errors
from serve_app.adapters.openai import routes as openai
from settings.http import AdapterSettings

ADAPTERS: tuple[Adapter, ...] = (
    Adapter(
        name="openai",
        routers=(openai.router,),
        prefixes=(openai.IMAGES,),
        error_form=openai_errors.error_response,
    ),
)


def adapters_of(settings: AdapterSettings) -> tuple[Adapter, ...]:
    """Those that are switched on."""
    return tuple(each for each in ADAPTERS if getattr(settings, each.name))
