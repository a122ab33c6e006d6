r"""Parses the WebUI's prompt syntax. This needs no model, so bad prompts are found early.

    A :1.2 AND B             texts side by side, each with its weight
    [a:b:0.5] [a:b:12]       a up to that share of the steps, or up to that step, then b
    [b:0.5] [a::0.5]         nothing, then b; a, then nothing
    [a|b]                    a and b in turn, step by step
    (x) [x] (x:1.2)          x weighs 1.1, 1 / 1.1, 1.2 times as much; nesting multiplies
    BREAK                    what follows starts a new chunk
    \( \) \[ \] \\           the character itself

Brackets that match none of these are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from engine.webui.prompt_numbers import PromptInvalid, is_number, number_of, weight_of
from engine.webui.prompt_weights import OPENING, Section, sections_of

_MAX_PARTS = 16
"""Texts that AND joins. Each one is a row in the calls of the model."""
_MAX_PROMPT_CHARS = 2**15
_MAX_STRETCHES = 256
_MAX_TEXT_CHARS = 2**18
"""The sum of the lengths of all texts that a prompt has in its steps."""
_MAX_TEXTS = 64
"""Different texts that a prompt has in its steps. Each of them is encoded."""
_MAX_WEIGHED_CHARS = 2**16
"""The sum of the lengths of these."""
_MAX_DEPTH = 64

_REMEMBERED = 4
"""Prompts of a request. Each is read with its parameters, and again with the graph."""

_AND = re.compile(r"\bAND\b")
_EDIT_TOKEN = re.compile(r"\\.|[\[\]():|]|[^\\\[\]():|]++|\\", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A text, and the last step that has it, counted from 0. The next stretch follows it."""

    last_step: int
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the texts that AND joins."""

    weight: float
    stretches: tuple[Stretch, ...]


@lru_cache(maxsize=_REMEMBERED)
def read_prompt(prompt: str, *, steps: int, steps_before: int = 0) -> tuple[Part, ...]:
    """Parse a prompt into the texts that AND joins. Raises PromptInvalid.

    `steps_before` is the number of steps of an earlier pass: prompt editing counts on from them.
    """
    _require_length(prompt)
    sides = _AND.split(prompt)
    if len(sides) > _MAX_PARTS:
        raise PromptInvalid(f"AND joins {len(sides)} texts, at most {_MAX_PARTS}")
    parts = [_split_weight(side) for side in sides]
    counted, most = _Steps(steps, steps_before), _MAX_TEXT_CHARS // len(sides)
    stretches = _weighed([_changes(text, counted, most) for text, _ in parts])
    return tuple(Part(weight, found) for (_, weight), found in zip(parts, stretches, strict=True))


@lru_cache(maxsize=_REMEMBERED)
def read_negative_prompt(prompt: str, *, steps: int, steps_before: int = 0) -> tuple[Part, ...]:
    """Parse a negative prompt, where AND and a weight at the end have no meaning."""
    _require_length(prompt)
    counted = _Steps(steps, steps_before)
    (stretches,) = _weighed([_changes(prompt, counted, _MAX_TEXT_CHARS)])
    return (Part(1.0, stretches),)


def _require_length(prompt: str) -> None:
    if len(prompt) > _MAX_PROMPT_CHARS:
        raise PromptInvalid(
            f"it has {len(prompt)} characters, at most {_MAX_PROMPT_CHARS} are taken"
        )


def _split_weight(side: str) -> tuple[str, float]:
    text, _, number = side.rpartition(":")
    if text and is_number(number):
        return text, weight_of(number)
    return side, 1.0


# Prompt editing.


@dataclass(frozen=True, slots=True)
class _Edit:
    before: Sequence[_Node]
    after: Sequence[_Node]
    last_step: int
    """The last step that has `before`, counted from 1."""


@dataclass(frozen=True, slots=True)
class _Alternation:
    options: Sequence[Sequence[_Node]]


_Node: TypeAlias = str | _Edit | _Alternation


@dataclass(slots=True)
class _Bracket:
    """An open bracket with its pieces so far and the separators between them."""

    opening: str
    pieces: list[list[_Node]] = field(default_factory=lambda: [[]])
    separators: list[str] = field(default_factory=list)

    def literal(self, closing: str = "") -> list[_Node]:
        """The bracket as plain text."""
        nodes: list[_Node] = [self.opening, *self.pieces[0]]
        for separator, piece in zip(self.separators, self.pieces[1:], strict=True):
            nodes += [separator, *piece]
        return [*nodes, closing]

    def closed(self, steps: _Steps) -> list[_Node]:
        """The meaning of a pair of square brackets."""
        colons = self.separators.count(":")
        last = self.pieces[-1]
        if colons == len(self.separators) and colons in (1, 2) and len(last) == 1:
            until = last[0].strip() if isinstance(last[0], str) else ""
            if is_number(until):
                before = self.pieces[0] if colons == 2 else []
                return [_Edit(before, self.pieces[-2], steps.of(until))]
        if self.separators and not colons:
            return [_Alternation(self.pieces)]
        return self.literal("]")


def _parse(text: str, steps: _Steps) -> list[_Node]:
    stack = [_Bracket("")]
    for match in _EDIT_TOKEN.finditer(text):
        token, top = match[0], stack[-1]
        if token in ("[", "("):
            if len(stack) > _MAX_DEPTH:
                raise PromptInvalid(f"brackets lie in one another more than {_MAX_DEPTH} deep")
            stack.append(_Bracket(token))
        elif OPENING.get(token) == top.opening:
            stack.pop()
            stack[-1].pieces[-1] += top.closed(steps) if token == "]" else top.literal(")")
        elif token in (":", "|") and top.opening:
            top.separators.append(token)
            top.pieces.append([])
        else:
            top.pieces[-1].append(token)
    while len(stack) > 1:
        unclosed = stack.pop()
        stack[-1].pieces[-1] += unclosed.literal()
    return stack[0].pieces[0]


@dataclass(frozen=True, slots=True)
class _Steps:
    """The number of steps of this pass, and of the passes before it."""

    count: int
    before: int

    def of(self, until: str) -> int:
        """The step that a number in brackets means. With a point, it is a share of the steps."""
        number = number_of(until)
        if "." in until:
            number = (number - bool(self.before)) * self.count
        else:
            number -= self.before
        return int(min(max(number, 0), self.count))


_Changes: TypeAlias = Sequence[tuple[int, str]]
"""The texts that follow one another, each with the last step that has it, counted from 1."""


def _changes(text: str, steps: _Steps, most: int) -> _Changes:
    nodes = _parse(text, steps)
    ends = _ends(nodes, steps)
    if len(ends) > _MAX_STRETCHES:
        raise PromptInvalid(f"it changes {len(ends)} times, at most {_MAX_STRETCHES}")
    if len(ends) * len(text) > most:
        raise PromptInvalid(f"its steps come to more than {_MAX_TEXT_CHARS} characters of text")
    found: list[tuple[int, str]] = []
    for end in ends:
        written = "".join(_at(nodes, end))
        if found and found[-1][1] == written:
            found.pop()
        found.append((end, written))
    return found


def _ends(nodes: Sequence[_Node], steps: _Steps) -> list[int]:
    """The steps after which the text may change, and the last step."""
    changing = list(_changing(nodes))
    ends = {each.last_step for each in changing if isinstance(each, _Edit)}
    if any(isinstance(each, _Alternation) for each in changing):
        ends |= set(range(steps.count))
    return sorted(ends - {0} | {steps.count})


def _changing(nodes: Sequence[_Node]) -> Iterator[_Edit | _Alternation]:
    """The nodes that change from step to step, at any depth."""
    for node in nodes:
        match node:
            case _Edit(before, after, _):
                yield node
                yield from _changing(before)
                yield from _changing(after)
            case _Alternation(options):
                yield node
                for option in options:
                    yield from _changing(option)


def _at(nodes: Sequence[_Node], step: int) -> list[str]:
    """The pieces of the text of one step, counted from 1."""
    pieces: list[str] = []
    for node in nodes:
        match node:
            case str():
                pieces.append(node)
            case _Edit(before, after, last_step):
                pieces += _at(before if step <= last_step else after, step)
            case _Alternation(options):
                pieces += _at(options[(step - 1) % len(options)], step)
    return pieces


def _weighed(parts: Sequence[_Changes]) -> list[tuple[Stretch, ...]]:
    """The stretches of each part."""
    texts = [{text for _, text in changes} for changes in parts]
    if (count := sum(map(len, texts))) > _MAX_TEXTS:
        raise PromptInvalid(f"its steps have {count} different texts, at most {_MAX_TEXTS}")
    distinct = set().union(*texts)
    if (count := sum(map(len, distinct))) > _MAX_WEIGHED_CHARS:
        raise PromptInvalid(
            f"the texts of its steps have {count} characters, at most {_MAX_WEIGHED_CHARS}"
        )
    sections = {text: sections_of(text) for text in distinct}
    return [tuple(Stretch(end, sections[text]) for end, text in changes) for changes in parts]
