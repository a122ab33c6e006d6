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


@pytest.mark.parametrize(
    "text",
    [
        node("PrimitiveString", value="a" * 32_000),
        node("ComfySwitchNode", switch=True, on_true="a" * 32_000, on_false=""),
    ],
    ids=["primitive", "switch"],
)
async def test_a_text_that_links_bring_counts_wherever_it_is_used(
    client: httpx.AsyncClient, text: dict[str, object]
) -> None:
    image = {"0": node("EmptyImage", width=1, height=1, batch_size=1, color=0), "t": text}
    saved = {
        f"{n}": node("SaveImage", images=["0", 0], filename_prefix=["t", 0]) for n in range(1, 41)
    }
    answer = await client.post("/workflow/v1/generate", json={"prompt": image | saved})
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == "1280000 characters, at most 131072 are taken"
    few = image | {name: saved[name] for name in ("1", "2", "3", "4")}
    assert (await client.post("/workflow/v1/generate", json={"prompt": few})).status_code == 202


async def test_ids_that_links_bring_count_wherever_they_are_used(client: httpx.AsyncClient) -> None:
    size = "\x01" * 128
    prompt = {
        "0": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        size: node("GetImageSize", image=["0", 0]),
        "m": node("SolidMask", value=1.0, width=8, height=8),
        "s": node("ComfySwitchNode", switch=True, on_true=[size, 0], on_false=0),
        "i": node("MaskToImage", mask=["900", 0]),
        "o": node("SaveImage", images=["i", 0], filename_prefix=""),
    }
    sides = {side: ["s", 0] for side in ("left", "top", "right", "bottom")}
    prompt |= {
        f"{n}": node("FeatherMask", mask=[f"{n - 1}" if n > 1 else "m", 0], **sides)
        for n in range(1, 901)
    }
    answer = await client.post("/workflow/v1/generate", json={"prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "too_large"
