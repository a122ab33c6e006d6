"""Replaces placeholders in texts, as ComfyUI's editor does when it queues a workflow.

A `filename_prefix` may contain the time (`%date:yyyy-MM-dd%`) and values of widgets
(`%KSampler.seed%`). A prompt may contain choices (`{red|blue}`). One option of a choice is taken at
random.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any

_MAX_CHARS = 1000
"""The largest number of characters of a prefix with placeholders, and of its replaced form."""
_MAX_CHOICE_DEPTH = 50
_PLACEHOLDER = re.compile("%([^%]+)%")
_PARTS_OF_TIME = re.compile("d{1,2}|M{1,2}|h{1,2}|m{1,2}|s{1,2}|y{2,4}")
_NOT_IN_FILE_NAMES = re.compile(r'[/?<>\\:*|"\x00-\x1f\x7f]')
_COMMENT = re.compile(r"/\*|//")
_LINE_COMMENT = re.compile("//")
"""The start of the only comments after a `/*` that is not closed."""
_LINE_END = re.compile(r"[\n\r\u2028\u2029]|\Z")
_TOKEN = re.compile(r"\\.|[^\\{|}]+|.", re.DOTALL)
_ESCAPED = re.compile(r"\\([{|}])")


def filled_prefix(prefix: str, value_of: Callable[[str, str], Any], now: datetime) -> str:
    """Return a `filename_prefix` with its placeholders replaced.

    `value_of` returns the value of a widget by the names of its node and of the widget, or None.
    Unknown placeholders stay, because ComfyUI replaces some when it saves, such as `%width%`.
    """

    def replaced(found: re.Match[str]) -> str:
        first, *more = found[1].split(".")
        if len(more) == 1:
            text = _text_of(value_of(first, more[0]))
            return found[0] if text is None else _NOT_IN_FILE_NAMES.sub("_", text[:_MAX_CHARS])
        if first.startswith("date:"):
            return _PARTS_OF_TIME.sub(lambda part: _time_part(part[0], now), first[5:])
        return found[0]

    return prefix if len(prefix) > _MAX_CHARS else _PLACEHOLDER.sub(replaced, prefix)[:_MAX_CHARS]


def _text_of(value: Any) -> str | None:
    """Return the text of a value as JavaScript writes it."""
    match value:
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case str() | int() | float():
            return str(value)
        case _:
            return None


def _time_part(part: str, now: datetime) -> str:
    if part == "yyy":
        return part
    values = {
        "d": now.day,
        "M": now.month,
        "h": now.hour,
        "m": now.minute,
        "s": now.second,
        "y": now.year if part == "yyyy" else now.year % 100,
    }
    return str(values[part[0]]).zfill(len(part))


def chosen_text(text: str, choose: Callable[[Sequence[str]], str]) -> str:
    """Return the text without comments, and with one option of each choice.

    Choices may be nested, and a choice that is not closed ends with the text. A backslash before a
    brace or a bar makes it a character of the text. Raises ValueError for choices that are nested
    too deeply.
    """
    # The open choices, the text itself at first. Each has its options, as parts of a text.
    open_choices: list[list[list[str]]] = [[[]]]

    def close() -> None:
        option = choose(["".join(parts) for parts in open_choices.pop()])
        open_choices[-1][-1].append(option)

    for token in _TOKEN.findall("".join(_without_comments(text))):
        is_in_choice = len(open_choices) > 1
        if token == "{":
            if len(open_choices) > _MAX_CHOICE_DEPTH:
                raise ValueError("the choices in a text are nested too deeply")
            open_choices.append([[]])
        elif token == "|" and is_in_choice:
            open_choices[-1].append([])
        elif token == "}" and is_in_choice:
            close()
        else:
            open_choices[-1][-1].append(token)
    while len(open_choices) > 1:
        close()
    return _ESCAPED.sub(r"\1", "".join(open_choices[0][0]))


def _without_comments(text: str) -> Generator[str]:
    """Yield the parts between comments: `/* … */` and `// …`."""
    at, pattern = 0, _COMMENT
    while (start := pattern.search(text, at)) is not None:
        if start[0] == "//":
            end = _LINE_END.search(text, start.end())
            assert end is not None
            after = end.start()
        else:
            closed = text.find("*/", start.end())
            if closed < 0:
                pattern = _LINE_COMMENT
                continue
            after = closed + 2
        yield text[at : start.start()]
        at = after
    yield text[at:]
