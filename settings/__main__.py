"""The README's table of settings."""

from __future__ import annotations

import sys

from settings import Settings


def markdown() -> str:
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        shown = "" if default is None or default == "" else f"`{default}`"
        lines.append(f"| `DARKROOM_{name.upper()}` | {shown} | {field.description} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
