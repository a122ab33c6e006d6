"""Every node with its inputs and outputs, from the declarations."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generate.tables import table
from engine.graph.declarations import (
    Boolean,
    Choice,
    Float,
    Input,
    InputFile,
    Int,
    Link,
    NodeType,
    String,
    type_name,
)
from engine.nodes import NODE_TYPES

_COLUMNS = ("input", "type", "default", "meaning")
_SHOWN_VALUES = 8


def nodes() -> str:
    """Return a section for each category, a heading and a table for each node in it."""
    sections: dict[str, list[NodeType]] = {}
    for declared in NODE_TYPES:
        sections.setdefault(declared.category.partition("/")[0].strip("_"), []).append(declared)
    return "\n\n".join(
        f"## {name.replace('_', ' ').capitalize()}\n\n" + "\n\n".join(map(_node, sections[name]))
        for name in sorted(sections)
    )


def _node(declared: NodeType) -> str:
    parts = [f"### {declared.class_type}", declared.description]
    if declared.all_inputs:
        parts.append(table(_COLUMNS, _rows(declared)))
    if declared.outputs:
        parts.append(f"Outputs: {', '.join(_outputs(declared))}")
    return "\n\n".join(parts)


def _rows(declared: NodeType) -> Iterator[tuple[str, str, str, str]]:
    for name, each in declared.all_inputs.items():
        shown = f"`{name}`" + (" (optional)" if name in declared.optional else "")
        yield shown, _type(each), _default(each), each.tooltip


def _type(declared: Input) -> str:
    match declared:
        case Int() | Float():
            return f"{type_name(declared)}, {declared.min:g} to {declared.max:g}"
        case Choice(folder=str() as folder):
            return f"a model in `{folder}/`"
        case Choice():
            values = [f"`{value}`" for value in declared.values[:_SHOWN_VALUES]]
            more = len(declared.values) - len(values)
            return ", ".join(values) + (f" and {more} more" if more else "")
        case InputFile(is_text=True):
            return "base64, or the name of an uploaded image"
        case InputFile():
            return f"the name of an uploaded {declared.kind}"
        case _:
            return type_name(declared)


def _default(declared: Input) -> str:
    match declared:
        case Int() | Float() | Boolean():
            return f"`{declared.default}`"
        case String(default=str() as text) if text:
            return f"`{text}`"
        case Link() | _:
            return ""


def _outputs(declared: NodeType) -> Iterator[str]:
    names = declared.output_names or declared.outputs
    for name, kind in zip(names, declared.outputs, strict=True):
        yield kind if name == kind else f"`{name}` ({kind})"
