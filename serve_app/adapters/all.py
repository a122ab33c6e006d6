"""Every adapter there is."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.openai import errors as openai_errors
from serve_app.adapters.openai import routes as openai
from serve_app.adapters.webui import errors as webui_errors
from serve_app.adapters.webui import routes as webui
from settings.http import AdapterSettings

ADAPTERS: tuple[Adapter, ...] = (
    Adapter(
        name="openai",
        routers=(openai.router,),
        prefixes=(openai.IMAGES,),
        error_form=openai_errors.error_response,
    ),
    Adapter(
        name="webui",
        routers=(webui.router,),
        prefixes=(webui.PREFIX,),
        error_form=webui_errors.error_response,
    ),
)


def adapters_of(settings: AdapterSettings) -> tuple[Adapter, ...]:
    """Those that are switched on."""
    return tuple(each for each in ADAPTERS if getattr(settings, each.name))
