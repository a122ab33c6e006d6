"""Reads the styles of the WebUI from `styles.csv`: texts that are added to prompts."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.errors import ModelsUnavailable
from engine.graph.models_folder import ModelsFolder

STYLES_FILE = "styles.csv"


@dataclass(frozen=True, slots=True)
class Style:
    """Texts that are added to a prompt and a negative prompt, or put around them."""

    prompt: str
    negative_prompt: str


def styles_of(models: ModelsFolder) -> Mapping[str, Style]:
    """Return the styles of the styles file by name; empty if the file does not exist."""
    path = models.top_level_path(STYLES_FILE)
    found: Mapping[str, Style] = models.reads.read(path, partial(_read_styles, path))
    return found


def _read_styles(path: Path) -> dict[str, Style]:
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("name")]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ModelsUnavailable(f"{path.name} cannot be read: {error}.") from error
    return {
        row["name"]: Style(row.get("prompt") or "", row.get("negative_prompt") or "")
        for row in rows
    }
