"""The README names every call."""

from __future__ import annotations

from docs.generate.routes import openapi_document
from examples.service import ROOT


def test_every_call_is_in_its_table() -> None:
    text = (ROOT / "README.md").read_text()
    calls = [
        f"`{method.upper()} {path}`"
        for path, methods in openapi_document()["paths"].items()
        for method, operation in methods.items()
        if "x-twin-of" not in operation
    ]
    assert [call for call in calls if call not in text] == []
