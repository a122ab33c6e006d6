from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.diffusion.text.encoding import chunks_of, load_tokenizer, split_at_embeddings
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
        ("a (b", [("a ", 1.0), ("(b", 1.0)]),
        ("a) (b (c", [("a) (b ", 1.0), ("(c", 1.0)]),
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


TOKENIZER = load_tokenizer()


def ids_of(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False).input_ids  # type: ignore[no-any-return]


def chunked(prompt: str) -> list[list[int]]:
    """The tokens of each chunk, without the start, the end and the padding."""
    chunks = [[token for token, _ in chunk] for chunk in chunks_of(prompt, TOKENIZER)]
    assert all(len(chunk) == 77 and chunk[0] == START for chunk in chunks)
    return [[int(str(token)) for token in chunk[1 : chunk.index(END)]] for chunk in chunks]


def test_an_empty_prompt_has_one_empty_chunk() -> None:
    assert chunked("") == [[]]


@pytest.mark.parametrize("last", ["photorealistically dog", "x1y2z3w4v5u6" * 20, "dog\ncat " * 90])
def test_a_run_of_one_weight_is_split_after_75_tokens(last: str) -> None:
    prompt = "cat " * 74 + last
    ids = ids_of(prompt)
    assert chunked(prompt) == [ids[at : at + 75] for at in range(0, len(ids), 75)]


def test_a_short_run_begins_the_next_chunk() -> None:
    before, short, after = "cat " * 73, "a red dog", " in the sun"
    found = chunked(f"{before}({short}:1.2){after}")
    assert found == [ids_of(before), ids_of(short + after)]


def test_a_run_of_eight_tokens_is_split() -> None:
    before, long = "cat " * 73, "a red dog with a blue hat on"
    assert len(ids_of(long)) == 8
    ids = ids_of(before + long)
    assert chunked(f"{before}({long}:1.2)") == [ids[:75], ids[75:]]
    assert chunked(f"{before}(a red dog with a blue hat:1.2)")[0] == ids[:73]


def test_the_rest_of_a_split_run_is_not_a_short_run() -> None:
    """The run has 76 tokens, so its rest is alone in a chunk that the next short run joins."""
    found = chunked("cat " * 76 + "(red dog:1.2)")
    assert [len(each) for each in found] == [75, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", [(None, "a cat")]),
        ("embedding:a", [("a", "")]),
        ("a embedding:b c", [(None, "a"), ("b", "c")]),
        ("a\nembedding:b", [(None, "a"), ("b", "")]),
        ("a,embedding:b", [(None, "a,embedding:b")]),
        ("embedding:a, b  c\nd", [("a", ", b c d")]),
        ("embedding:a,, embedding:b", [("a", ",, "), ("b", "")]),
        ("embedding: a b", [("a", "b")]),
        ("x embedding:", [(None, "x"), ("", "")]),
    ],
)
def test_a_text_is_split_before_embeddings(
    text: str, expected: list[tuple[str | None, str]]
) -> None:
    assert list(split_at_embeddings(text)) == expected
