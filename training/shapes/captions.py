"""Captions of scenes, in many wordings that a user might write.

A caption may omit the background, the size, the place or a colour. Size and place are omitted only
if the scene was drawn without them. Background and colour are rarely omitted, at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from training.shapes.scenes import (
    ANYWHERE,
    COLOUR_NAMES,
    SHAPE_NAMES,
    Relation,
    Scenes,
    Size,
    Texture,
)

NOUNS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "circle", "circle", "disc", "dot"),
    "square": ("square", "square", "square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
    "cross": ("cross", "cross", "cross", "plus sign"),
    "heart": ("heart",),
    "crescent": ("crescent", "crescent", "moon", "crescent moon"),
    "ring": ("ring", "ring", "ring", "hoop"),
}
HUES: dict[str, tuple[str, ...]] = {name: (name,) for name in COLOUR_NAMES} | {
    "gray": ("gray", "grey"),
    "purple": ("purple", "purple", "violet"),
    "cyan": ("cyan", "cyan", "turquoise"),
}
_SIZES: dict[Size, tuple[str, ...]] = {
    Size.SMALL: ("small", "small", "tiny", "little"),
    Size.MEDIUM: ("medium", "medium-sized", "middle-sized"),
    Size.LARGE: ("large", "large", "big", "huge"),
    Size.ANY: ("",),
}
_ROWS = (("top", "upper"), ("middle",), ("bottom", "lower"))
_COLUMNS = (("left",), ("center",), ("right",))
_PREFIXES = (
    "a picture of",
    "a drawing of",
    "an image of",
    "draw",
    "a photo of",
    "simple drawing of",
)
_BARE = 0.05
"""The share of captions that name only a colour or a shape."""
_COLOURLESS = 0.05
_NO_BACKGROUND = 0.10
_PREFIXED = 0.12


def caption(scenes: Scenes, row: int, rng: Random) -> str:
    alone = scenes.count[row] == 1
    chance = rng.random()
    if alone and chance < _BARE:
        return _bare(scenes, row, rng)
    has_colour = not (alone and chance < _BARE + _COLOURLESS)
    subject = _subject(scenes, row, rng, has_colour=has_colour)
    if rng.random() < _NO_BACKGROUND:
        return subject
    return _on_background(subject, _background(scenes, row, rng), rng)


def full_caption(scenes: Scenes, row: int, rng: Random) -> str:
    """Return a random caption that omits neither background nor colour."""
    subject = _subject(scenes, row, rng, has_colour=True)
    return _on_background(subject, _background(scenes, row, rng), rng)


def _subject(scenes: Scenes, row: int, rng: Random, *, has_colour: bool) -> str:
    count = int(scenes.count[row])
    things = [_thing(scenes, row, slot, rng, has_colour=has_colour) for slot in range(count)]
    if count == 1:
        subject = _placed(scenes, row, things[0], rng)
    else:
        subject = _arranged(scenes, row, things, rng)
    return f"{rng.choice(_PREFIXES)} {subject}" if rng.random() < _PREFIXED else subject


def _bare(scenes: Scenes, row: int, rng: Random) -> str:
    hue, noun = _hue(scenes.colours[row, 0], rng), _noun(scenes.shapes[row, 0], rng)
    return rng.choice((hue, f"a {hue} shape", f"something {hue}", noun, _article(noun)))


def _hue(colour: int, rng: Random) -> str:
    return rng.choice(HUES[COLOUR_NAMES[colour]])


def _noun(shape: int, rng: Random) -> str:
    return rng.choice(NOUNS[SHAPE_NAMES[shape]])


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _joined(*words: str) -> str:
    return " ".join(word for word in words if word)


def _thing(scenes: Scenes, row: int, slot: int, rng: Random, *, has_colour: bool) -> str:
    size = rng.choice(_SIZES[Size(scenes.size[row])])
    hue = _hue(scenes.colours[row, slot], rng) if has_colour else ""
    noun = _noun(scenes.shapes[row, slot], rng)
    forms = [_joined(size, hue, noun)]
    if hue and scenes.count[row] == 1:
        forms += [f"{_joined(size, noun)}, {hue}", f"{_joined(size, noun)} in {hue}"]
        forms += [f"{_joined(hue, noun)}, {size}" if size else _joined(hue, noun)]
    words = rng.choice((forms[0], forms[0], *forms))
    return _article(words) if rng.random() < 0.8 else words


def _placed(scenes: Scenes, row: int, thing: str, rng: Random) -> str:
    if scenes.place[row] == ANYWHERE:
        return thing
    where = _place(int(scenes.place[row]), rng)
    return rng.choice(
        (f"{thing} {where}", f"{thing} {where}", f"{thing}, {where}", f"{where}, {thing}")
    )


def _place(place: int, rng: Random) -> str:
    vertical, horizontal = divmod(place, 3)
    row, column = rng.choice(_ROWS[vertical]), rng.choice(_COLUMNS[horizontal])
    if vertical == 1 and horizontal == 1:
        return rng.choice(("in the center", "in the middle", "centered", "at the center"))
    if vertical == 1:
        return rng.choice(
            (f"on the {column}", f"at the {column}", f"{column} side", f"middle {column}")
        )
    if horizontal == 1:
        row = _ROWS[vertical][0]
        return rng.choice(
            (f"at the {row}", f"on the {row}", f"{row} center", f"in the {row} middle")
        )
    return rng.choice((
        f"in the {row} {column}", f"at the {row} {column}", f"{row} {column}",
        f"in the {row} {column} corner",
    ))  # fmt: skip


def _arranged(scenes: Scenes, row: int, things: Sequence[str], rng: Random) -> str:
    sideways = scenes.relation[row] == Relation.LEFT_OF
    if len(things) > 2:
        return _listed(things, rng, sideways=sideways)
    one, other = things
    if sideways:
        return rng.choice((
            f"{one} left of {other}", f"{one} to the left of {other}",
            f"{one} on the left of {other}", f"{other} right of {one}",
            f"{other} to the right of {one}", f"{one} on the left, {other} on the right",
            f"{one} next to {other}", f"{one} and {other}", f"{one} beside {other}",
        ))  # fmt: skip
    return rng.choice((
        f"{one} above {other}", f"{one} above {other}", f"{one} on top of {other}",
        f"{other} below {one}", f"{other} under {one}", f"{other} beneath {one}",
        f"{one} at the top, {other} at the bottom",
    ))  # fmt: skip


def _listed(things: Sequence[str], rng: Random, *, sideways: bool) -> str:
    one, two, three = things
    if sideways:
        return rng.choice((
            f"{one}, {two} and {three}", f"{one}, {two} and {three} in a row",
            f"from left to right {one}, {two}, {three}", f"{one} left of {two} left of {three}",
        ))  # fmt: skip
    return rng.choice((
        f"{one} above {two} above {three}", f"from top to bottom {one}, {two}, {three}",
        f"{one}, {two} and {three} in a column",
    ))  # fmt: skip


def _background(scenes: Scenes, row: int, rng: Random) -> str:
    """Return a description of the background, without a preposition."""
    one, two = _hue(scenes.background[row], rng), _hue(scenes.second[row], rng)
    match scenes.texture[row]:
        case Texture.PLAIN:
            return rng.choice((f"{_article(one)} background", f"{_article(one)} background", one))
        case Texture.HORIZONTAL_STRIPES:
            return rng.choice((f"{one} and {two} stripes", f"{one} and {two} horizontal stripes"))
        case Texture.VERTICAL_STRIPES:
            return f"{one} and {two} vertical stripes"
        case Texture.GRADIENT_DOWN:
            return f"a gradient from {one} at the top to {two} at the bottom"
    return rng.choice((f"a gradient from {one} to {two}", f"{_article(one)} to {two} gradient"))


def _on_background(subject: str, background: str, rng: Random) -> str:
    on = rng.choice(("on", "on", "on", "over", "against"))
    plain = background.removeprefix("a ").removeprefix("an ")
    forms = [f"{subject} {on} {background}"] * 4 + [f"{subject}, {on} {background}"] * 2
    forms += [f"{on} {background}, {subject}"] * 2
    if background.endswith("background"):
        forms += [f"{subject}, {plain}", f"{plain}, {subject}", f"{subject} with {background}"]
    return rng.choice(forms)


def wordings() -> Iterator[str]:
    """Yield texts that together contain all words of captions."""
    yield from (noun for nouns in NOUNS.values() for noun in nouns)
    yield from (hue for hues in HUES.values() for hue in hues)
    yield from (size for sizes in _SIZES.values() for size in sizes)
    yield from (word for words in (*_ROWS, *_COLUMNS) for word in words)
    yield from _PREFIXES
    yield "a an something shape , and in on over against with at of the to from"
    yield "center middle centered side corner left right above below under beneath top bottom"
    yield "next beside row column background stripes horizontal vertical gradient"
