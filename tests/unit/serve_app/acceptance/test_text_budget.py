import pytest

from engine.errors import GraphInvalid
from serve_app.acceptance.text_budget import require_text_budget


def prompt_of(*texts: object) -> dict[str, object]:
    return {str(n): {"inputs": {"text": text, "steps": 20}} for n, text in enumerate(texts)}


def test_the_texts_of_all_nodes_share_one_budget() -> None:
    require_text_budget(prompt_of("abc", "de"), 5)
    with pytest.raises(GraphInvalid, match="6 characters, at most 5"):
        require_text_budget(prompt_of("abc", "def"), 5)


@pytest.mark.parametrize("prompt", [None, [], {"1": None}, {"1": {"inputs": 5}}, prompt_of(None)])
def test_what_is_no_prompt_has_no_text(prompt: object) -> None:
    require_text_budget(prompt, 1)
