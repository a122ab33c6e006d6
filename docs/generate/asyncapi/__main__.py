"""`python -m docs.generate.asyncapi` writes docs/asyncapi.json."""

from __future__ import annotations

from pathlib import Path

from docs.generate.asyncapi.document import text

DOCUMENT = Path(__file__).parents[2] / "asyncapi.json"

if __name__ == "__main__":
    DOCUMENT.write_text(text(), encoding="utf-8")
