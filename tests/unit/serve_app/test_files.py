import hashlib

import httpx
import pytest

from storage.tokens import file_token
from tests.support.services import Edge, diffusion_body

PIXELS = b"pixels"
ETAG = f'"sha256:{hashlib.sha256(PIXELS).hexdigest()}"'


@pytest.fixture
async def url(edge: Edge, client: httpx.AsyncClient) -> str:
    """The URL of the one image of a job that has ended."""
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    await edge.run(answer.json()["request_id"])
    result = await client.get(answer.headers["Location"])
    return str(result.json()["results"][0]["url"])


@pytest.fixture
def anyone(edge: Edge) -> httpx.AsyncClient:
    """Somebody without a key."""
    return edge.client_with(None)


@pytest.mark.parametrize("projected", [False, True])
async def test_the_url_is_enough(
    edge: Edge, anyone: httpx.AsyncClient, url: str, projected: bool
) -> None:
    if projected:
        await edge.project()
    answer = await anyone.get(url)
    assert answer.status_code == 200
    assert answer.content == PIXELS
    assert answer.headers["Content-Type"] == "image/png"
    assert answer.headers["ETag"] == ETAG
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "immutable" in answer.headers["Cache-Control"]
    assert "private" in answer.headers["Cache-Control"]


async def test_head_has_the_headers_of_get(anyone: httpx.AsyncClient, url: str) -> None:
    get, head = await anyone.get(url), await anyone.head(url)
    assert head.status_code == 200
    assert head.headers == get.headers
    assert head.content == b""


@pytest.mark.parametrize("tag", [ETAG, f"W/{ETAG}", f'"other", {ETAG}', "*"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_image_that_the_caller_has_is_not_sent_again(
    anyone: httpx.AsyncClient, url: str, tag: str, method: str
) -> None:
    answer = await anyone.request(method, url, headers={"If-None-Match": tag})
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["ETag"] == ETAG


async def test_another_tag_is_sent_the_image(anyone: httpx.AsyncClient, url: str) -> None:
    answer = await anyone.get(url, headers={"If-None-Match": '"other"'})
    assert answer.content == PIXELS


@pytest.mark.parametrize("change", ["no token", "other token", "cut token", "other file", "odd id"])
async def test_what_the_token_does_not_open_is_not_found(
    anyone: httpx.AsyncClient, url: str, change: str
) -> None:
    path, _, token = url.partition("?token=")
    changed = {
        "no token": path,
        "other token": f"{path}?token={token[::-1]}",
        "cut token": f"{path}?token={token[:-1]}",
        "other file": f"{path.replace('0.png', '1.png')}?token={token}",
        "odd id": f"{path.rpartition('/')[0].upper()}/0.png?token={token}",
    }[change]
    for method in ("GET", "HEAD"):
        assert (await anyone.request(method, changed)).status_code == 404


@pytest.mark.parametrize("name", ["1.png", "00.png", "0.jpg", "0", "-1.png", "9999999.png"])
async def test_a_right_token_opens_only_what_is_stored(
    edge: Edge, anyone: httpx.AsyncClient, url: str, name: str
) -> None:
    job_id = url.split("/")[-2]
    token = file_token(edge.services.settings.secret_bytes, job_id, name)
    assert (await anyone.get(f"/files/{job_id}/{name}?token={token}")).status_code == 404


async def test_an_image_that_was_removed_is_not_found(
    edge: Edge, anyone: httpx.AsyncClient, url: str
) -> None:
    job_id = url.split("/")[-2]
    await edge.services.images.delete(f"{job_id}/1/0.png")
    answer = await anyone.get(url)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found"
