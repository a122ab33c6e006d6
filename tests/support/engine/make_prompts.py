"""Makes `tests/golden/prompts.json`: tokens and multipliers of 100 prompts, chunk by chunk.

    pip install --no-deps --target FOLDER diffusion-prompt-embedder==0.4.2
    PYTHONPATH=FOLDER:. python -m tests.support.engine.make_prompts

The weights are those of that package, which has the WebUI's grammar without what changes by step;
tokens are of transformers' tokenizer; chunks follow the rule of the WebUI's documentation.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from engine.diffusion.text.encoding import load_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"
OUT = GOLDEN / "prompts.json"
COUNT = 100
_SEED = 20_261_122
_CHUNK, _BACKTRACK = 75, 20
_CHANGES_BY_STEP = re.compile(r"\[[^\[\]]*[:|]|\||\bAND\b|<[a-z]+:")
_ODD = (
    "",
    " ",
    "a",
    "(a)",
    "((a))",
    "[a]",
    "[[a]]",
    "([a])",
    "(a:0)",
    "(a:-1)",
    "(a:.5)",
    "(a:1.)",
    "(a: 1.5 )",
    "(a)(b)",
    "(a b:1.2)(c:1.2) d",
    "((a:1.2) b:1.3)",
    "(((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
    r"\(a\) \[b\] \\",
    r"(a \(b\):1.4)",
    "a) b] c",
    "(a, [b, (c",
    "a BREAK b",
    "BREAK a BREAK  BREAK b",
    "(a:1.1) BREAK (b:1.2)",
    "a:1.5",
    "a (b:c:1.5)",
    "line one\nline two, (line three:1.2)",
    "a cat's 3.14 dogs & don't",
    "1girl, 2boys, 3d, 4k, 8k",
    "()",
    "(:1.2)",
    "tab\tand  spaces",
)
_WORDS = [
    "red",
    "blue",
    "dog",
    "cat",
    "house,",
    "tree,",
    "sky,",
    "(sea:1.2)",
    "[fog]",
    "((sun))",
    "photograph",
    "lighthouse",
]


def _prompts() -> list[str]:
    found = json.loads((GOLDEN / "infotexts.json").read_text())["found"]
    texts = [re.sub(r"\s*<[^>]*>", "", text.split("\nSteps:")[0]) for text in found]
    real = [part.strip() for text in texts for part in text.split("Negative prompt:")]
    draw = random.Random(_SEED)
    long = [" ".join(draw.choices(_WORDS, k=length)) for length in range(60, 240, 5)]
    kept = dict.fromkeys((*_ODD, *real, *long))
    return [each for each in kept if not _CHANGES_BY_STEP.search(each)][:COUNT]


def _words(prompt: str) -> Iterator[tuple[int, float] | None]:
    """Tokens with their weights; None for a BREAK."""
    from diffusion_prompt_embedder import parse_prompt_attention  # type: ignore[import-not-found]

    for text, weight in parse_prompt_attention(prompt):
        if (text, weight) == ("BREAK", -1.0):
            yield None
        else:
            for token in load_tokenizer()(text, add_special_tokens=False).input_ids:
                yield token, weight


def _chunks(prompt: str, comma: int) -> list[list[tuple[int, float]]]:
    """Return chunks of 75 tokens; text after a comma among the last 20 moves to the next one."""
    done: list[list[tuple[int, float]]] = []
    rest: list[tuple[int, float]] = []
    for word in (*_words(prompt), None):
        if word is not None:
            rest.append(word)
        while len(rest) > _CHUNK:
            cut = _CHUNK
            commas = [at + 1 for at, (token, _) in enumerate(rest[:_CHUNK]) if token == comma]
            if commas and _CHUNK - commas[-1] < _BACKTRACK and rest[_CHUNK][0] != comma:
                cut = commas[-1]
            done.append(rest[:cut])
            rest = rest[cut:]
        if word is None:
            done.append(rest)
            rest = []
    return done[:-1] if len(done) > 1 and not done[-1] else done


def main() -> None:
    (comma,) = load_tokenizer()(",", add_special_tokens=False).input_ids
    prompts = _prompts()
    assert len(prompts) == COUNT
    lines = []
    for prompt in prompts:
        chunks = _chunks(prompt, comma)
        tokens = [[token for token, _ in chunk] for chunk in chunks]
        weights = [[round(weight, 9) for _, weight in chunk] for chunk in chunks]
        lines.append(json.dumps([prompt, tokens, weights], ensure_ascii=False))
    OUT.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
