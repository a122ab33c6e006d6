"""Settings of a ComfyUI install. With an install, the service has the endpoint `comfyui`."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import SettingsConfigDict

from settings.fields import Arguments
from settings.group import Group


class ComfyUISettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_COMFYUI_")

    dir: Path | None = None
    """The folder of a ComfyUI install. With it the service has the endpoint `comfyui`, which runs
    the workflows that only its ComfyUI server can run. The models folder is that of the install,
    unless `DARKROOM_MODELS_DIR` is set.
    """
    python: Path | None = None
    """The interpreter of the install. If unset, it is the one in the install's `.venv` or `venv`.
    """
    args: Arguments = ()
    """Further arguments of the install's `main.py`, separated and quoted as in a shell, such as
    `--reserve-vram 2`.
    """
