"""The table of settings in the documentation; `python -m settings` prints it."""

from __future__ import annotations

import sys

from settings.settings import Settings


def markdown() -> str:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for group in Settings.groups().values():
        for variable, name in group.variables().items():
            field = group.model_fields[name]
            default = field.default
            if isinstance(default, tuple):
                default = ",".join(map(str, default))
            shown = "" if default is None or default == "" else f"`{default}`"
            meaning = " ".join((field.description or "").split())
            lines.append(f"| `{variable}` | {shown} | {meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
