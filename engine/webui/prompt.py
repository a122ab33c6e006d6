r"""Parses the WebUI's prompt syntax, without a model, so that bad prompts are rejected early.

    A :1.2 AND B             texts side by side, each with its weight
    [a:b:0.5] [a:b:12]       a up to that share of the steps, or up to that step, then b
    [b:0.5] [a::0.5]         nothing, then b; a, then nothing
    [a|b]                    a and b in turn, step by step
    (x) [x] (x:1.2)          the weight of x times 1.1, 1 / 1.1 or 1.2; nesting multiplies
    BREAK                    the next text starts a new chunk
    <lora:name:weight>       a LoRA, which the WebUI calls an extra network
    \( \) \[ \] \\           the character itself

Brackets in any other form are plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

from engine.reports import Note

_MAX_WEIGHT = 1000.0
_MAX_NUMBER_CHARS = 40

# Possessive quantifiers (`++`) prevent backtracking, which could take very long.
_NUMBER = re.compile(r"[+-]?+(?>\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?+\d++)?+")


class PromptInvalid(ValueError):
    """The prompt cannot be parsed, or it is too long or too complex."""


def is_number(text: str) -> bool:
    """Whether the text is a decimal number of any length. Spaces at its ends are ignored."""
    return _NUMBER.fullmatch(text.strip()) is not None


def number_of(text: str) -> float:
    """Return the number in a text. Raises PromptInvalid if the text is too long or not a number."""
    shown = text.strip()
    if len(shown) > _MAX_NUMBER_CHARS:
        raise PromptInvalid(
            f"a number has {len(shown)} characters, but at most {_MAX_NUMBER_CHARS} are allowed"
        )
    try:
        return float(shown)
    except ValueError:
        raise PromptInvalid(f"{shown!r} is not a weight") from None


def weight_of(text: str) -> float:
    """Return the weight in a text. Raises PromptInvalid for anything but a number in range."""
    return in_range(number_of(text))


def in_range(weight: float) -> float:
    if not abs(weight) <= _MAX_WEIGHT:
        raise PromptInvalid(f"a weight is beyond {_MAX_WEIGHT:g}")
    return weight


OPENING = {"]": "[", ")": "("}
"""The opening bracket for each closing bracket."""
_FACTORS = {"]": 1 / 1.1, ")": 1.1}

_BREAK = re.compile(r"\bBREAK\b")
_TOKEN = re.compile(
    r"\\(?P<escaped>[()\[\]\\])|\\|(?P<bracket>[()\[\]])"
    r"|:\s*+(?P<weight>[+-]?+[.\d]++)\s*+\)|[^\\()\[\]:]++|:"
)

Segment: TypeAlias = tuple[str, float]
Section: TypeAlias = tuple[Segment, ...]
"""The text between two BREAKs."""


def sections_of(text: str) -> tuple[Section, ...]:
    """Return the sections of a text without prompt editing. Raises PromptInvalid."""
    sections: list[list[Segment]] = [[]]
    # Adjacent segments with the same weight are joined to one text.
    for weight, segments in groupby(_weighted(text), key=itemgetter(1)):
        first, *others = _BREAK.split("".join(words for words, _ in segments))
        sections[-1].append((first, weight))
        sections += ([(other, weight)] for other in others)
    return tuple(tuple(each for each in section if each[0]) for section in sections)


def _weighted(text: str) -> Iterator[Segment]:
    segments: list[list[str]] = []
    """The words between two brackets. All words of a segment have the same weight."""
    weights: list[float] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}
    is_new = True

    def weigh(start: int, factor: float) -> None:
        weights[start:] = [in_range(weight * factor) for weight in weights[start:]]

    for match in _TOKEN.finditer(text):
        token = match[0]
        starts = opened[OPENING.get(token, "(")]
        if token in opened:
            opened[token].append(len(segments))
            is_new = True
        elif starts and (match["weight"] or token in OPENING):
            factor = weight_of(match["weight"]) if match["weight"] else _FACTORS[token]
            weigh(starts.pop(), factor)
            is_new = True
        else:
            if is_new:
                segments.append([])
                weights.append(1.0)
                is_new = False
            segments[-1].append(match["escaped"] or ("" if token == "\\" else token))
    for closing, opening in OPENING.items():
        for start in opened[opening]:
            weigh(start, _FACTORS[closing])
    return zip(map("".join, segments), weights, strict=True)


_MAX_PARTS = 16
"""The largest number of texts that are joined by AND. Each text is a row in the calls of the
model."""
_MAX_PROMPT_CHARS = 2**15
_MAX_STRETCHES = 256
_MAX_TEXT_CHARS = 2**18
"""The largest sum of the lengths of all texts that a prompt has in its steps."""
_MAX_TEXTS = 64
"""The largest number of different texts that a prompt has in its steps. Each text is encoded."""
_MAX_WEIGHED_CHARS = 2**16
"""The largest sum of the lengths of these different texts."""
_MAX_DEPTH = 64

_REMEMBERED = 4
"""The number of parsed prompts in the cache. A request needs each prompt twice: for the check of
its parameters and for the check of its graph.
"""

_AND = re.compile(r"\bAND\b")
_EDIT_TOKEN = re.compile(r"\\.|[\[\]():|]|[^\\\[\]():|]++|\\", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A text and the last step with this text, counted from 0."""

    last_step: int
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the texts that are joined by AND."""

    weight: float
    stretches: tuple[Stretch, ...]


@lru_cache(maxsize=_REMEMBERED)
def read_prompt(prompt: str, *, steps: int, steps_before: int = 0) -> tuple[Part, ...]:
    """Parse a prompt into the texts that are joined by AND. Raises PromptInvalid.

    `steps_before` is the number of steps of an earlier pass. Prompt editing counts these steps too.
    """
    _require_length(prompt)
    sides = _AND.split(prompt)
    if len(sides) > _MAX_PARTS:
        raise PromptInvalid(f"AND joins {len(sides)} texts, but at most {_MAX_PARTS} are allowed")
    parts = [_split_weight(side) for side in sides]
    counted, most = _Steps(steps, steps_before), _MAX_TEXT_CHARS // len(sides)
    stretches = _weighed([_changes(text, counted, most) for text, _ in parts])
    return tuple(Part(weight, found) for (_, weight), found in zip(parts, stretches, strict=True))


@lru_cache(maxsize=_REMEMBERED)
def read_negative_prompt(prompt: str, *, steps: int, steps_before: int = 0) -> tuple[Part, ...]:
    """Parse a negative prompt, in which AND and a weight at the end are plain text."""
    _require_length(prompt)
    counted = _Steps(steps, steps_before)
    (stretches,) = _weighed([_changes(prompt, counted, _MAX_TEXT_CHARS)])
    return (Part(1.0, stretches),)


def _require_length(prompt: str) -> None:
    if len(prompt) > _MAX_PROMPT_CHARS:
        raise PromptInvalid(
            f"it has {len(prompt)} characters, but at most {_MAX_PROMPT_CHARS} are allowed"
        )


def _split_weight(side: str) -> tuple[str, float]:
    text, _, number = side.rpartition(":")
    if text and is_number(number):
        return text, weight_of(number)
    return side, 1.0


@dataclass(frozen=True, slots=True)
class _Scheduled:
    before: Sequence[_Element]
    after: Sequence[_Element]
    last_step: int
    """The last step with the text `before`, counted from 1."""


@dataclass(frozen=True, slots=True)
class _Alternation:
    options: Sequence[Sequence[_Element]]


_Element: TypeAlias = str | _Scheduled | _Alternation


@dataclass(slots=True)
class _Bracket:
    """An open bracket with its pieces so far, and the separators between the pieces."""

    opening: str
    pieces: list[list[_Element]] = field(default_factory=lambda: [[]])
    separators: list[str] = field(default_factory=list)

    def literal(self, closing: str = "") -> list[_Element]:
        """Return the bracket and its content as plain text."""
        elements: list[_Element] = [self.opening, *self.pieces[0]]
        for separator, piece in zip(self.separators, self.pieces[1:], strict=True):
            elements += [separator, *piece]
        return [*elements, closing]

    def closed(self, steps: _Steps) -> list[_Element]:
        """Return the edit or the alternation in square brackets, or else the plain text."""
        colons = self.separators.count(":")
        last = self.pieces[-1]
        if colons == len(self.separators) and colons in (1, 2) and len(last) == 1:
            until = last[0].strip() if isinstance(last[0], str) else ""
            if is_number(until):
                before = self.pieces[0] if colons == 2 else []
                return [_Scheduled(before, self.pieces[-2], steps.of(until))]
        if self.separators and not colons:
            return [_Alternation(self.pieces)]
        return self.literal("]")


def _parse(text: str, steps: _Steps) -> list[_Element]:
    stack = [_Bracket("")]
    for match in _EDIT_TOKEN.finditer(text):
        token, top = match[0], stack[-1]
        if token in ("[", "("):
            if len(stack) > _MAX_DEPTH:
                raise PromptInvalid(f"brackets are nested more than {_MAX_DEPTH} deep")
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
        """Return the step for a number in brackets. A number with a point is a share of steps."""
        number = number_of(until)
        if "." in until:
            number = (number - bool(self.before)) * self.count
        else:
            number -= self.before
        return int(min(max(number, 0), self.count))


_Changes: TypeAlias = Sequence[tuple[int, str]]
"""The texts of a prompt in the order of the steps, each with its last step, counted from 1."""


def _changes(text: str, steps: _Steps, most: int) -> _Changes:
    elements = _parse(text, steps)
    ends = _ends(elements, steps)
    if len(ends) > _MAX_STRETCHES:
        raise PromptInvalid(
            f"it changes {len(ends)} times, but at most {_MAX_STRETCHES} changes are allowed"
        )
    if len(ends) * len(text) > most:
        raise PromptInvalid(
            f"the texts of all its steps have more than {_MAX_TEXT_CHARS} characters"
        )
    found: list[tuple[int, str]] = []
    for end in ends:
        written = "".join(_at(elements, end))
        if found and found[-1][1] == written:
            found.pop()
        found.append((end, written))
    return found


def _ends(elements: Sequence[_Element], steps: _Steps) -> list[int]:
    """Return the steps after which the text may change, and the last step. Steps count from 1."""
    step_dependent = list(_step_dependent(elements))
    ends = {each.last_step for each in step_dependent if isinstance(each, _Scheduled)}
    if any(isinstance(each, _Alternation) for each in step_dependent):
        ends |= set(range(steps.count))
    return sorted(ends - {0} | {steps.count})


def _step_dependent(elements: Sequence[_Element]) -> Iterator[_Scheduled | _Alternation]:
    """Yield the edits and alternations, at any depth."""
    for element in elements:
        match element:
            case _Scheduled(before, after, _):
                yield element
                yield from _step_dependent(before)
                yield from _step_dependent(after)
            case _Alternation(options):
                yield element
                for option in options:
                    yield from _step_dependent(option)


def _at(elements: Sequence[_Element], step: int) -> list[str]:
    """Return the text of a step in pieces. Steps are counted from 1."""
    pieces: list[str] = []
    for element in elements:
        match element:
            case str():
                pieces.append(element)
            case _Scheduled(before, after, last_step):
                pieces += _at(before if step <= last_step else after, step)
            case _Alternation(options):
                pieces += _at(options[(step - 1) % len(options)], step)
    return pieces


def _weighed(parts: Sequence[_Changes]) -> list[tuple[Stretch, ...]]:
    texts = [{text for _, text in changes} for changes in parts]
    if (count := sum(map(len, texts))) > _MAX_TEXTS:
        raise PromptInvalid(
            f"its steps have {count} different texts, but at most {_MAX_TEXTS} are allowed"
        )
    distinct = set().union(*texts)
    if (count := sum(map(len, distinct))) > _MAX_WEIGHED_CHARS:
        raise PromptInvalid(
            f"the texts of its steps have {count} characters, but at most {_MAX_WEIGHED_CHARS} are "
            "allowed"
        )
    sections = {text: sections_of(text) for text in distinct}
    return [tuple(Stretch(end, sections[text]) for end, text in changes) for changes in parts]


_NETWORK = re.compile(r"<(\w++):([^<>]++)>")
_MAX_LORAS = 16
_MAX_STRENGTH = 100.0
_STRENGTH_NAMES = ("te", "unet")
_LORA_KINDS = ("lora", "lyco")


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA by its listed name, and its strengths for the model and for the text encoder."""

    name: str
    strength_model: float
    strength_clip: float


@dataclass(frozen=True, slots=True)
class SplitPrompt:
    """A prompt without its extra networks, and the LoRAs among these networks."""

    text: str
    loras: tuple[Lora, ...]
    notes: tuple[str, ...] = ()
    """A note for each network that was left out."""


def split_networks(
    prompt: str, find: Callable[[str], str], *, skips_unknown: bool = False
) -> SplitPrompt:
    """Separate a prompt and its extra networks.

    `find` returns the listed name of a LoRA. Raises PromptInvalid if a network is malformed. Also
    raises PromptInvalid if a network is unknown or not a LoRA. If `skips_unknown` is true, such a
    network is left out instead.
    """
    found = list(_NETWORK.finditer(prompt))
    if len(found) > _MAX_LORAS:
        raise PromptInvalid(f"it names {len(found)} LoRAs, but at most {_MAX_LORAS} are allowed")
    loras: list[Lora] = []
    notes: list[str] = []
    for match in found:
        try:
            loras.append(_lora(match, find))
        except _Unknown:
            if not skips_unknown:
                raise
            notes.append(_left_out_note(*match.groups()))
    return SplitPrompt(_NETWORK.sub("", prompt), tuple(loras), tuple(notes))


def _left_out_note(kind: str, content: str) -> str:
    name = content.partition(":")[0]
    if kind in _LORA_KINDS:
        return Note.LORA_LEFT_OUT.about(name)
    return Note.NETWORK_LEFT_OUT.about(f"{kind}:{name}")


class _Unknown(PromptInvalid):
    """There is no network of that kind or name."""


def _lora(match: re.Match[str], find: Callable[[str], str]) -> Lora:
    """Parse `name`, `name:strength` or `name:text encoder strength:model strength`.

    A number with the prefix `te=` is the strength for the text encoder, and a number with the
    prefix `unet=` is the strength for the model.
    """
    kind, content = match.groups()
    shown = match[0][:80]
    if kind not in _LORA_KINDS:
        raise _Unknown(f"{shown} is not supported; only <lora:name:weight> is supported")
    asked, *strengths = content.split(":")
    try:
        name = _found(asked, find)
    except ValueError as error:
        raise _Unknown(f"{shown}: the LoRA {error}") from None
    given: dict[str, float] = {}
    for index, strength in enumerate(strengths):
        key, is_named, number = strength.rpartition("=")
        key = key.strip() if is_named else next(iter(_STRENGTH_NAMES[index : index + 1]), "")
        if key not in _STRENGTH_NAMES:
            raise PromptInvalid(f"{shown}: {strength[:40]!r} is not a valid weight")
        given[key] = _strength(number, shown)
    clip = given.get("te", 1.0)
    return Lora(name, given.get("unet", clip), clip)


def _found(asked: str, find: Callable[[str], str]) -> str:
    """Return the listed name of a LoRA. Spaces at the ends may belong to the name of the file."""
    try:
        return find(asked)
    except ValueError:
        if asked == asked.strip():
            raise
        return find(asked.strip())


def _strength(number: str, shown: str) -> float:
    try:
        strength = number_of(number)
    except PromptInvalid as error:
        raise PromptInvalid(f"{shown}: {error}") from None
    if not abs(strength) <= _MAX_STRENGTH:
        raise PromptInvalid(f"{shown}: a weight is beyond {_MAX_STRENGTH:g}")
    return strength
