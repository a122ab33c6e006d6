"""What a diffusion request names, and the service knows: styles, and checkpoints by their hash."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engine.errors import FieldError, ModelsUnavailable, ParametersInvalid
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from engine.webui.infotext.hashes import named_by_hash
from engine.webui.model_names import listed_name
from engine.webui.parameters import DiffusionParameters

STYLES_FILE = "styles.csv"
_PLACE = "{prompt}"
_LONGEST_CHARS = 2**20
_SHOWN_NAMES = 20
_CHECKPOINT_MEMBERS = ("sd_model_checkpoint", "hr_checkpoint_name", "refiner_checkpoint")


@dataclass(frozen=True, slots=True)
class Style:
    """Texts that are added to a prompt and a negative prompt, or put around them."""

    prompt: str
    negative_prompt: str


def expanded(parameters: DiffusionParameters, models: ModelsFolder) -> DiffusionParameters:
    """The parameters with their styles applied, and with names in the place of hashes, so that
    they mean the same later. Raises ParametersInvalid, ModelsUnavailable.
    """
    return _with_named_checkpoints(_with_styles(parameters, models), models)


def _with_styles(parameters: DiffusionParameters, models: ModelsFolder) -> DiffusionParameters:
    if not parameters.styles:
        return parameters
    known = styles_of(models)
    styles = [_style(name, known) for name in parameters.styles]
    texts = {
        "prompt": [each.prompt for each in styles],
        "hr_prompt": [each.prompt for each in styles],
        "negative_prompt": [each.negative_prompt for each in styles],
        "hr_negative_prompt": [each.negative_prompt for each in styles],
    }
    changed = {
        name: _styled(name, getattr(parameters, name), added)
        for name, added in texts.items()
        if getattr(parameters, name) or not name.startswith("hr_")
    }
    return parameters.model_copy(update={**changed, "styles": ()})


def _style(name: str, known: Mapping[str, Style]) -> Style:
    if name in known:
        return known[name]
    shown = ", ".join([*known][:_SHOWN_NAMES]) or "none"
    message = f"{name[:80]!r} is not known; there are: {shown}"
    raise ParametersInvalid((FieldError("value_not_in_list", message, "styles"),))


def _styled(member: str, text: str, added: Iterable[str]) -> str:
    """The text with others behind it, or put into the place that these have for it."""
    for each in added:
        grown = len(each) + len(text) * max(1, each.count(_PLACE))
        if grown > _LONGEST_CHARS:
            message = f"is {grown} characters with its styles, at most {_LONGEST_CHARS} are taken"
            raise ParametersInvalid((FieldError("value_error", message, member),))
        if _PLACE in each:
            text = each.replace(_PLACE, text)
        else:
            text = ", ".join(part for part in (text.strip(), each.strip()) if part)
    return text.strip()


def styles_of(models: ModelsFolder) -> Mapping[str, Style]:
    """Those of the styles file by their names; none where there is no such file."""
    path = models.at_top(STYLES_FILE)
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


def _with_named_checkpoints(
    parameters: DiffusionParameters, models: ModelsFolder
) -> DiffusionParameters:
    settings = parameters.override_settings
    named = {name: _named(getattr(parameters, name), models) for name in _CHECKPOINT_MEMBERS}
    changed: dict[str, Any] = {name: found for name, found in named.items() if found}
    if found := _named(settings.sd_model_checkpoint, models):
        changed["override_settings"] = settings.model_copy(update={"sd_model_checkpoint": found})
    return parameters.model_copy(update=changed) if changed else parameters


def _named(asked: str | None, models: ModelsFolder) -> str | None:
    """The checkpoint whose hash was asked for; None where that is a name, or nobody's hash."""
    if not asked:
        return None
    try:
        listed_name(asked, models.names(CHECKPOINTS))
    except ValueError:
        return named_by_hash(models, asked)
    return None
