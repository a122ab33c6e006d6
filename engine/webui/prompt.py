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
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

_MAX_PARTS = 16
"""Texts that AND joins. Each one is a row in the calls of the model."""
_MAX_PROMPT_CHARS = 2**15
_MAX_STRETCHES = 256
_MAX_TEXT_CHARS = 2**18
"""The sum of the lengths of all texts that a prompt has in its steps."""
_MAX_DEPTH = 64
_MAX_WEIGHT = 1000.0
_PAIRS = {"]": "[", ")": "("}
_FACTORS = {"]": 1 / 1.1, ")": 1.1}

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_AND = re.compile(r"\bAND\b")
_BREAK = re.compile(r"\bBREAK\b")
_EDIT_TOKEN = re.compile(r"\\.|[\[\]():|]|[^\\\[\]():|]+|\\", re.DOTALL)
_WEIGHT_TOKEN = re.compile(
    r"\\(?P<escaped>[()\[\]\\])|\\|(?P<bracket>[()\[\]])|:\s*(?P<weight>[+-]?[.\d]+)\s*\)"
    r"|[^\\()\[\]:]+|:"
)


class PromptInvalid(ValueError):
    """The prompt cannot be parsed, or it is too long or too complex."""


Segment: TypeAlias = tuple[str, float]
"""A text with its weight."""
Section: TypeAlias = tuple[Segment, ...]
"""The text between two BREAKs."""


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
    stretches = [_stretches(text, counted, most) for text, _ in parts]
    return tuple(Part(weight, found) for (_, weight), found in zip(parts, stretches, strict=True))


def read_negative_prompt(prompt: str, *, steps: int, steps_before: int = 0) -> tuple[Part, ...]:
    """Parse a negative prompt, where AND and a weight at the end have no meaning."""
    _require_length(prompt)
    return (Part(1.0, _stretches(prompt, _Steps(steps, steps_before), _MAX_TEXT_CHARS)),)


def _require_length(prompt: str) -> None:
    if len(prompt) > _MAX_PROMPT_CHARS:
        raise PromptInvalid(
            f"it has {len(prompt)} characters, at most {_MAX_PROMPT_CHARS} are taken"
        )


def _split_weight(side: str) -> tuple[str, float]:
    text, _, number = side.rpartition(":")
    if text and _NUMBER.fullmatch(number.strip()):
        return text, _weight(number)
    return side, 1.0


def _weight(number: str) -> float:
    try:
        weight = float(number)
    except ValueError:
        raise PromptInvalid(f"{number.strip()[:40]!r} is no weight") from None
    return _in_range(weight)


def _in_range(weight: float) -> float:
    if not abs(weight) <= _MAX_WEIGHT:
        raise PromptInvalid(f"a weight is beyond {_MAX_WEIGHT:g}")
    return weight


# Prompt editing.


@dataclass(frozen=True, slots=True)
class _Edit:
    before: Sequence[_Node]
    after: Sequence[_Node]
    until: str


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

    def closed(self) -> list[_Node]:
        """The meaning of a pair of square brackets."""
        colons = self.separators.count(":")
        last = self.pieces[-1]
        if colons == len(self.separators) and colons in (1, 2) and len(last) == 1:
            until = last[0].strip() if isinstance(last[0], str) else ""
            if _NUMBER.fullmatch(until):
                before = self.pieces[0] if colons == 2 else []
                return [_Edit(before, self.pieces[-2], until)]
        if self.separators and not colons:
            return [_Alternation(self.pieces)]
        return self.literal("]")


def _parse(text: str) -> list[_Node]:
    stack = [_Bracket("")]
    for match in _EDIT_TOKEN.finditer(text):
        token, top = match[0], stack[-1]
        if token in ("[", "("):
            if len(stack) > _MAX_DEPTH:
                raise PromptInvalid(f"brackets lie in one another more than {_MAX_DEPTH} deep")
            stack.append(_Bracket(token))
        elif _PAIRS.get(token) == top.opening:
            stack.pop()
            stack[-1].pieces[-1] += top.closed() if token == "]" else top.literal(")")
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
        number = float(until)
        if "." in until:
            number = (number - bool(self.before)) * self.count
        else:
            number -= self.before
        return int(min(max(number, 0), self.count))


def _stretches(text: str, steps: _Steps, most: int) -> tuple[Stretch, ...]:
    nodes = _parse(text)
    ends = _ends(nodes, steps)
    if len(ends) > _MAX_STRETCHES:
        raise PromptInvalid(f"it changes {len(ends)} times, at most {_MAX_STRETCHES}")
    if len(ends) * len(text) > most:
        raise PromptInvalid(f"its steps come to more than {_MAX_TEXT_CHARS} characters of text")
    found: list[tuple[int, str]] = []
    for end in ends:
        written = "".join(_at(nodes, end, steps))
        if found and found[-1][1] == written:
            found.pop()
        found.append((end, written))
    sections = {written: _sections(written) for _, written in found}
    return tuple(Stretch(end, sections[written]) for end, written in found)


def _ends(nodes: Sequence[_Node], steps: _Steps) -> list[int]:
    """The steps after which the text may change, and the last step."""
    changing = list(_changing(nodes))
    ends = {steps.of(each.until) for each in changing if isinstance(each, _Edit)}
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


def _at(nodes: Sequence[_Node], step: int, steps: _Steps) -> Iterator[str]:
    """The pieces of the text of one step, counted from 1."""
    for node in nodes:
        match node:
            case str():
                yield node
            case _Edit(before, after, until):
                yield from _at(before if step <= steps.of(until) else after, step, steps)
            case _Alternation(options):
                yield from _at(options[(step - 1) % len(options)], step, steps)


# Weights.


def _sections(text: str) -> tuple[Section, ...]:
    sections: list[list[Segment]] = [[]]
    # Neighbours of equal weight become one text.
    for weight, segments in groupby(_weighted(text), key=itemgetter(1)):
        first, *others = _BREAK.split("".join(words for words, _ in segments))
        sections[-1].append((first, weight))
        sections += ([(other, weight)] for other in others)
    return tuple(tuple(each for each in section if each[0]) for section in sections)


def _weighted(text: str) -> list[Segment]:
    segments: list[Segment] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}

    def weigh(start: int, factor: float) -> None:
        for place in range(start, len(segments)):
            words, weight = segments[place]
            segments[place] = (words, _in_range(weight * factor))

    for match in _WEIGHT_TOKEN.finditer(text):
        token = match[0]
        if token in opened:
            opened[token].append(len(segments))
        elif match["weight"] and opened["("]:
            weigh(opened["("].pop(), _weight(match["weight"]))
        elif token in _PAIRS and opened[_PAIRS[token]]:
            weigh(opened[_PAIRS[token]].pop(), _FACTORS[token])
        else:
            segments.append((match["escaped"] or ("" if token == "\\" else token), 1.0))
    for closing, opening in _PAIRS.items():
        for start in opened[opening]:
            weigh(start, _FACTORS[closing])
    return segments
