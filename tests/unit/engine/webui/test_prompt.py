from __future__ import annotations

import math
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.webui.prompt import PromptInvalid, Section, read_negative_prompt, read_prompt
from tests.support.patience import FACTOR


def texts(prompt: str, steps: int = 10, steps_before: int = 0) -> list[tuple[int, str]]:
    """What a prompt says up to which step, weights left out."""
    (part,) = read_prompt(prompt, steps=steps, steps_before=steps_before)
    return [
        (each.last_step, "".join(words for section in each.sections for words, _ in section))
        for each in part.stretches
    ]


def sections(prompt: str) -> tuple[Section, ...]:
    (part,) = read_negative_prompt(prompt, steps=1)
    return part.stretches[0].sections


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a dog", [(10, "a dog")]),
        ("a [dog:cat:4]", [(4, "a dog"), (10, "a cat")]),
        ("a [dog : cat : .5 ]!", [(5, "a dog !"), (10, "a  cat !")]),
        ("a [dog:0.25]", [(2, "a "), (10, "a dog")]),
        ("a [dog::3]", [(3, "a dog"), (10, "a ")]),
        ("a [:dog:3]", [(3, "a "), (10, "a dog")]),
        ("[a:[b:c:6]:2]", [(2, "a"), (6, "b"), (10, "c")]),
        ("[(red:1.5) dog:cat:2]", [(2, "red dog"), (10, "cat")]),
        ("[[[deep]]:2]", [(2, ""), (10, "deep")]),
        ("[a:b:0]", [(10, "b")]),
        ("[a:b:-1]", [(10, "b")]),
        ("[a:b:99]", [(10, "a")]),
        ("[a:b:1e999]", [(10, "a")]),
        ("[a:b:2] [c:d:2]", [(2, "a c"), (10, "b d")]),
        (r"\[a:b:2\]", [(10, "[a:b:2]")]),
        ("[a:b:c:2]", [(10, "a:b:c:2")]),
        ("[a:b:two]", [(10, "a:b:two")]),
        ("[a:b", [(10, "a:b")]),
        ("(a][:b [c:3]", [(3, "a]:b "), (10, "a]:b c")]),
    ],
)
def test_prompt_editing(prompt: str, expected: list[tuple[int, str]]) -> None:
    assert texts(prompt) == expected


def test_alternation_takes_turns_and_an_empty_turn_is_one() -> None:
    assert texts("[a|b|c]", 4) == [(1, "a"), (2, "b"), (3, "c"), (4, "a")]
    assert texts("[fe|]male", 3) == [(1, "female"), (2, "male"), (3, "female")]
    assert texts("[a|[b:c:2]]", 4) == [(1, "a"), (2, "b"), (3, "a"), (4, "c")]


def test_a_second_pass_counts_on_from_the_first() -> None:
    prompt = "[a:b:14] [c:d:1.5] [e:f:0.5]"
    assert texts(prompt, 10, 10) == [(4, "a c f"), (5, "b c f"), (10, "b d f")]
    assert texts(prompt, 10) == [(5, "a c e"), (10, "a c f")]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", [[]]),
        ("a cat", [[("a cat", 1.0)]]),
        ("a (cat) b", [[("a ", 1.0), ("cat", 1.1), (" b", 1.0)]]),
        ("[cat]", [[("cat", 1 / 1.1)]]),
        ("((cat:1.5))", [[("cat", 1.65)]]),
        ("(a [b] c:2)", [[("a ", 2.0), ("b", 2 / 1.1), (" c", 2.0)]]),
        ("(cat:-.5)", [[("cat", -0.5)]]),
        ("(cat", [[("cat", 1.1)]]),
        ("cat:1.2)", [[("cat:1.2)", 1.0)]]),
        ("(a:b)", [[("a:b", 1.1)]]),
        (r"\(a\) \[b\] \\", [[("(a) [b] \\", 1.0)]]),
        ("a BREAK b", [[("a ", 1.0)], [(" b", 1.0)]]),
        ("(a BREAK b:2) BREAK", [[("a ", 2.0)], [(" b", 2.0), (" ", 1.0)], []]),
        ("BREAKFAST", [[("BREAKFAST", 1.0)]]),
    ],
)
def test_weights_and_breaks(prompt: str, expected: list[list[tuple[str, float]]]) -> None:
    found = sections(prompt)
    assert [[words for words, _ in each] for each in found] == [
        [words for words, _ in each] for each in expected
    ]
    weights = [weight for each in found for _, weight in each]
    assert weights == pytest.approx([weight for each in expected for _, weight in each])


def test_composition_has_a_weight_for_each_text() -> None:
    parts = read_prompt("a :1.2 AND (b:1.3) AND c:-.5 AND ANDROID", steps=5)
    assert [part.weight for part in parts] == [1.2, 1.0, -0.5, 1.0]
    words = [part.stretches[0].sections[0] for part in parts]
    assert words == [
        (("a ", 1.0),),
        ((" ", 1.0), ("b", 1.3), (" ", 1.0)),
        ((" c", 1.0),),
        ((" ANDROID", 1.0),),
    ]


def test_a_negative_prompt_is_never_composed() -> None:
    (part,) = read_negative_prompt("a AND b :2", steps=5)
    assert part.weight == 1.0
    assert part.stretches[0].sections == ((("a AND b :2", 1.0),),)


@pytest.mark.parametrize(
    "prompt",
    [
        "(a:1.2.3)",
        "(a:" + "9" * 400 + ")",
        "(a:1000) :1001",
        "((a:900):2)",
        "a:1e999",
        " AND ".join("a" * 17),
        "(" * 65 + "a",
        "x" * (2**15 + 1),
        "[a|b]" + "x" * 2**12,
        "a:0." + "1" * 400,
        "(a:0." + "1" * 400 + ")",
        "[a:b:0." + "1" * 400 + "]",
    ],
)
def test_what_cannot_be_is_refused(prompt: str) -> None:
    with pytest.raises(PromptInvalid):
        read_prompt(prompt, steps=150)


_pieces = st.sampled_from([*"ab []()|:.1-\\\n", " AND ", " BREAK ", ":1.5)", "[a:b:0.5]"])
_syntax = st.lists(_pieces, max_size=60).map("".join)


@given(_syntax | st.text(max_size=60), st.integers(1, 30), st.integers(0, 30))
def test_any_text_is_read_or_refused_cleanly(text: str, steps: int, steps_before: int) -> None:
    try:
        parts = read_prompt(text, steps=steps, steps_before=steps_before)
    except PromptInvalid:
        return
    for part in parts:
        assert math.isfinite(part.weight)
        ends = [stretch.last_step for stretch in part.stretches]
        assert ends == sorted(set(ends))
        assert ends[-1] == steps
        for stretch in part.stretches:
            assert all(math.isfinite(w) for section in stretch.sections for _, w in section)


@given(st.text(st.characters(exclude_characters="()[]\\:|", exclude_categories=["Cs"])))
def test_text_without_syntax_stays_as_it_is(text: str) -> None:
    if "AND" in text or "BREAK" in text:
        return
    (part,) = read_prompt(text, steps=7)
    (stretch,) = part.stretches
    assert (part.weight, stretch.last_step) == (1.0, 7)
    assert stretch.sections == (((text, 1.0),) if text else (),)


def test_a_prompt_changes_so_often_at_most() -> None:
    assert len(texts("[a|b]", 256)) == 256
    with pytest.raises(PromptInvalid, match="257"):
        read_prompt("[a|b]", steps=257)


def test_a_prompt_has_so_many_different_texts_at_most() -> None:
    edits = "".join(f"[a{step}:b:{step}]" for step in range(1, 96))
    with pytest.raises(PromptInvalid, match="96 different texts, but at most 64"):
        read_prompt(edits, steps=150)
    parts = " AND ".join(
        "[" + "|".join(side * n for n in range(1, 9)) + "]" for side in "abcdefghi"
    )
    with pytest.raises(PromptInvalid, match="72 different texts"):
        read_prompt(parts, steps=8)
    assert len(texts("[" + "|".join(str(n) for n in range(64)) + "]", 64)) == 64


def test_the_texts_of_all_steps_have_a_length() -> None:
    with pytest.raises(PromptInvalid, match="characters, but at most 65536"):
        read_prompt("[a|b|c]" + "x" * 30_000, steps=3)


def test_the_longest_prompts_are_read_in_no_time() -> None:
    begun = time.monotonic()
    for piece in ("[|]", "(a)", "[a]:", "\\", ": ", ")"):
        prompt = (piece * 2**15)[: 2**15]
        with suppress(PromptInvalid):
            read_prompt(prompt, steps=10_000)
    for prompt in ("a:" + "9" * 32_700 + "x", "(a:" + "9" * 32_700 + ")", "[a:" + "9" * 32_700):
        with suppress(PromptInvalid):
            read_prompt(prompt, steps=10_000)
    read_prompt("[a|b|c]" + "(x)" * 500, steps=150)
    read_prompt("(" * 60 + "(a)b" * 8_000 + ")" * 60, steps=20)
    turns = "[" + "|".join(str(n) for n in range(64)) + "]"
    read_prompt(turns + "(" * 60 + "(a)b" * 180 + ")" * 60, steps=64)
    assert time.monotonic() - begun < 30 * FACTOR
