"""Every adapter there is."""

from __future__ import annotations

from serve_app.adapters.adapter import Adapter
from serve_app.adapters.comfy_v2.adapter import COMFY_V2
from serve_app.adapters.comfyui.adapter import COMFYUI
from serve_app.adapters.openai.adapter import OPENAI
from serve_app.adapters.webui.adapter import WEBUI
from settings.http import AdapterSettings

ADAPTERS: tuple[Adapter, ...] = (COMFYUI, COMFY_V2, OPENAI, WEBUI)


def adapters_of(settings: AdapterSettings) -> tuple[Adapter, ...]:
    """Those that are switched on."""
    return tuple(each for each in ADAPTERS if getattr(settings, each.name))
