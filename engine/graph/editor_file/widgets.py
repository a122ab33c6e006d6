"""Names the values that ComfyUI's editor stores for the widgets of a node.

A file has the values of a node as a list in the order of the widgets, or by name. If it has both,
the editor uses the list. The widgets are the inputs with a value, in the order of the declaration.
After a seed, the list has one more value, which states how the editor changes the seed after each
run. A file of another version may have more or fewer values. The editor ignores the surplus, and a
widget without a value keeps its default.

Declarations are in the shape of ComfyUI's `GET /object_info`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.graph.graph import SEED_INPUTS

Declaration: TypeAlias = Mapping[str, Any]
"""A node type in the shape of an entry of `object_info`."""

CONTROL_AFTER_GENERATE = ("fixed", "increment", "increment-wrap", "decrement", "randomize")
"""The values of the widget `control_after_generate`, which follows a seed."""
_DEFAULTS = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}
_CHOICE = "COMBO"
_SHOWN_BY_EDITOR = {"AUDIO_UI", "AUDIOUPLOAD", "COLOR", "IMAGEUPLOAD", "LOAD_3D", "PREVIEW_3D"}
"""Further types of inputs for which the editor has a widget with a value."""
_NUMBERS = {"INT", "FLOAT", "BOOLEAN"}


@dataclass(frozen=True, slots=True)
class Widget:
    name: str
    type: str
    """The name of the type; `COMBO` for a list of choices."""
    is_required: bool
    choices: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def default(self) -> Any:
        """The value of a new widget, or None if it is not known."""
        first = self.choices[0] if self.choices else None
        if isinstance(first, dict):
            first = first.get("key")
        return self.options.get("default", _DEFAULTS.get(self.type, first))

    def parts(self, value: Any) -> list[Widget]:
        """Return the widgets that the editor adds below a dynamic choice with this value."""
        for choice in self.choices:
            if isinstance(choice, dict) and choice.get("key") == value:
                parts = _inputs(choice.get("inputs"), f"{self.name}.")
                return [widget for _, widget in parts if widget is not None]
        return []


def inputs_of(declaration: Declaration) -> dict[str, Widget | None]:
    """Return the inputs of a node type. Those that take only links have no widget."""
    return dict(_inputs(declaration.get("input")))


def _inputs(groups: object, prefix: str = "") -> Generator[tuple[str, Widget | None]]:
    for group in ("required", "optional"):
        inputs = groups.get(group) if isinstance(groups, Mapping) else None
        for name, config in inputs.items() if isinstance(inputs, Mapping) else ():
            if isinstance(config, list) and config:
                is_required = group == "required"
                yield prefix + name, _widget(prefix + name, config, is_required=is_required)


def _widget(name: str, config: Sequence[Any], *, is_required: bool) -> Widget | None:
    """Return the widget of an input, or None if only a link gives its value."""
    kind = config[0]
    options = config[1] if len(config) > 1 and isinstance(config[1], Mapping) else {}
    if options.get("forceInput") or options.get("defaultInput"):
        return None
    if isinstance(kind, list):
        return Widget(name, _CHOICE, is_required, kind, options)
    kind = str(options.get("widgetType") or kind)
    is_choice = kind == _CHOICE or (kind.startswith("COMFY_") and _CHOICE in kind)
    is_shown = kind in _DEFAULTS or kind in _SHOWN_BY_EDITOR or options.get("socketless")
    if not is_choice and not is_shown:
        return None
    listed = options.get("options") if is_choice else ()
    return Widget(name, kind, is_required, listed if isinstance(listed, list) else (), options)


def named_values(
    values: Sequence[Any] | Mapping[str, Any], widgets: Sequence[Widget]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the values by the names of their inputs, and the values that are left.

    A required input without a value gets its default.
    """
    by_name = values if isinstance(values, Mapping) else {}
    left = [] if isinstance(values, Mapping) else list(reversed(values))
    # The editor also stores states of its own in objects, such as a preview.
    named = {name: value for name, value in by_name.items() if not isinstance(value, dict)}
    pending = list(reversed(widgets))
    while pending:
        widget = pending.pop()
        if widget.name in by_name:
            value = by_name[widget.name]
        elif left and not _is_of_next(widget, left[-1], pending[-1] if pending else None):
            value = left.pop()
        else:
            value = widget.default if widget.is_required else None
        if value is not None:
            named[widget.name] = value
        pending += reversed(widget.parts(value))
        if left and _is_control_of(widget, left[-1], pending[-1] if pending else None):
            left.pop()
    return named, left[::-1]


def _is_of_next(widget: Widget, value: object, following: Widget | None) -> bool:
    """Whether the value belongs to the choice that follows a number. The version of ComfyUI that
    wrote the file did not have the number.
    """
    is_number = widget.type in ("INT", "FLOAT")
    return is_number and following is not None and value in following.choices


def _is_control_of(widget: Widget, value: object, following: Widget | None) -> bool:
    """Whether the value after that of `widget` belongs to its `control_after_generate`, and not to
    `following`. In old files, it is a boolean.
    """
    if isinstance(value, bool):
        is_boolean = following is not None and following.type == "BOOLEAN"
        return widget.type == "INT" and not is_boolean
    if value not in CONTROL_AFTER_GENERATE:
        return False
    if widget.options.get("control_after_generate") or widget.name in SEED_INPUTS:
        return True
    if widget.type != "INT" or following is None:
        return widget.type == "INT"
    is_choice = bool(following.choices) and value not in following.choices
    return following.type in _NUMBERS or is_choice
