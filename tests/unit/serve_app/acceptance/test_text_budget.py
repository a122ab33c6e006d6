import httpx
import pytest

from engine.errors import GraphInvalid
from serve_app.acceptance.text_budget import require_text_budget
from tests.support.engine.workflows import node


def prompt_of(*texts: object) -> dict[str, object]:
    return {str(n): {"inputs": {"text": text, "steps": 20}} for n, text in enumerate(texts)}


def test_the_texts_of_all_nodes_share_one_budget() -> None:
    require_text_budget(prompt_of("abc", "de"), 5)
    with pytest.raises(GraphInvalid, match="6 characters, at most 5"):
        require_text_budget(prompt_of("abc", "def"), 5)


@pytest.mark.parametrize("prompt", [None, [], {"1": None}, {"1": {"inputs": 5}}, prompt_of(None)])
def test_what_is_no_prompt_has_no_text(prompt: object) -> None:
    require_text_budget(prompt, 1)


async def test_what_all_images_say_of_themselves_has_a_bound(client: httpx.AsyncClient) -> None:
    images = {"0": node("EmptyImage", width=1, height=1, batch_size=16, color=0)}
    saved = {
        str(n): node("SaveImage", images=["0", 0], filename_prefix=chr(0x1F600) * 7500)
        for n in range(1, 17)
    }
    answer = await client.post("/workflow/v1/generate", json={"prompt": images | saved})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "too_much_metadata"
    assert error["details"].startswith("256 images have 36")
    few = images | {"1": saved["1"]}
    assert (await client.post("/workflow/v1/generate", json={"prompt": few})).status_code == 202
