from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.diffusion.text.encoding import chunks_of, load_tokenizer
from engine.diffusion.text.text_encoders import END, START
from engine.diffusion.text.weighting import weighted_segments


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a cat", [("a cat", 1.0)]),
        ("", [("", 1.0)]),
        ("a (cat) b", [("a ", 1.0), ("cat", 1.1), (" b", 1.0)]),
        ("((cat))", [("cat", 1.1 * 1.1)]),
        ("(cat:1.3)", [("cat", 1.3)]),
        ("((cat:1.3))", [("cat", 1.3)]),
        ("((cat):1.5)", [("cat", 1.5 * 1.1)]),
        ("(a:b)", [("a:b", 1.1)]),
        (r"\(cat\)", [("(cat)", 1.0)]),
        ("[cat] BREAK", [("[cat] BREAK", 1.0)]),
        ("(never closed", [("(never closed", 1.0)]),
        ("((a) b)", [("a", 1.1 * 1.1), (" b", 1.1)]),
        ("a) (b) (c)", [("a) (b) (c)", 1.0)]),
        ("((a)", [("(a", 1.1)]),
        ("(a:" + "1" * 41 + ")", [("a:" + "1" * 41, 1.1)]),
    ],
)
def test_weights(prompt: str, expected: list[tuple[str, float]]) -> None:
    found = weighted_segments(prompt)
    assert [text for text, _ in found] == [text for text, _ in expected]
    assert [weight for _, weight in found] == pytest.approx([weight for _, weight in expected])


@given(st.text(st.sampled_from("a(): 1.\\"), max_size=60))
def test_any_text_has_weights(prompt: str) -> None:
    assert all(isinstance(text, str) for text, _ in weighted_segments(prompt))


def test_deep_nesting_neither_fails_nor_takes_long() -> None:
    assert weighted_segments("(" * 50_000 + "a" + ")" * 50_000)


def test_chunks_have_77_tokens_and_split_no_short_word() -> None:
    tokenizer = load_tokenizer()
    (empty,) = chunks_of("", tokenizer)
    assert [token for token, _ in empty] == [START, *[END] * 76]
    chunks = chunks_of("cat " * 74 + "photorealistically dog", tokenizer)
    assert [len(chunk) for chunk in chunks] == [77, 77]
    cat = chunks[0][1][0]
    assert [token for token, _ in chunks[0]] == [START, *[cat] * 74, END, END]
    long_word = "x1y2z3w4v5u6" * 20
    assert [len(chunk) for chunk in chunks_of(long_word, tokenizer)] == [77] * 4
