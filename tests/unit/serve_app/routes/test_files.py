"""Files of results, by their URLs."""

from __future__ import annotations

import hashlib
import time

import pytest

from storage.file_names import JPEG, SAFETENSORS, WEBP
from storage.service_secret import file_token
from tests.support.edge import Client, Edge, lasting_headers, refusal, submit

PIXELS = b"pixels"
ETAG = f'"sha256:{hashlib.sha256(PIXELS).hexdigest()}"'


@pytest.fixture
async def job_id(edge: Edge, client: Client) -> str:
    """A job that has ended, with one image."""
    job_id = await submit(client)
    await edge.run(job_id)
    return job_id


@pytest.fixture
async def url(client: Client, job_id: str) -> str:
    return await url_of(client, job_id)


async def url_of(client: Client, job_id: str) -> str:
    result = await client.get(f"/v1/jobs/{job_id}/result")
    return str(result.json()["results"][0]["url"])


async def test_the_url_is_enough(edge: Edge, anyone: Client, url: str) -> None:
    before = await anyone.get(url)
    await edge.project()
    for answer in (before, await anyone.get(url)):
        assert (answer.status_code, answer.content) == (200, PIXELS)
        assert answer.headers["Content-Type"] == "image/png"
        assert answer.headers["ETag"] == ETAG
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert {"immutable", "private"} <= set(answer.headers["Cache-Control"].split(", "))


async def test_head_has_the_headers_of_get(anyone: Client, url: str) -> None:
    get, head = await anyone.get(url), await anyone.head(url)
    assert head.status_code == 200
    assert lasting_headers(head) == lasting_headers(get)
    assert head.content == b""


@pytest.mark.parametrize(
    ("media_type", "suffix", "is_shown"),
    [
        (SAFETENSORS, "latent", False),
        (WEBP, "webp", True),
        (JPEG, "jpg", True),
        ("video/mp4", "mp4", True),
        ("text/plain", "txt", True),
        ("text/html", "bin", False),
        ("image/svg+xml", "bin", False),
    ],
)
async def test_a_file_of_another_kind_is_named_and_sent_as_that(
    edge: Edge, client: Client, anyone: Client, media_type: str, suffix: str, is_shown: bool
) -> None:
    job_id = await submit(client)
    await edge.run(job_id, media_type=media_type)
    url = await url_of(client, job_id)
    assert f"/0.{suffix}?token=" in url
    for method in ("GET", "HEAD"):
        found = await anyone.request(method, url)
        assert found.status_code == 200
        assert found.headers["Content-Type"].partition(";")[0] == media_type
        assert ("Content-Disposition" not in found.headers) is is_shown
    part = await anyone.get(url, headers={"Range": "bytes=0-1"})
    assert part.status_code == 206
    assert part.headers["Content-Type"].partition(";")[0] == media_type
    assert (await anyone.get(path_of(edge, job_id))).status_code == 404


async def test_a_poster_has_a_url_of_its_own(edge: Edge, client: Client, anyone: Client) -> None:
    job_id = await submit(client)
    await edge.run(job_id, media_type="video/mp4", duration_s=2.5, poster=b"a poster")
    [item] = (await client.get(f"/v1/jobs/{job_id}/result")).json()["results"]
    assert (item["kind"], item["duration_s"]) == ("video", 2.5)
    found = await anyone.get(item["poster_url"])
    assert (found.status_code, found.content) == (200, b"a poster")
    assert found.headers["Content-Type"] == JPEG
    assert (await anyone.get(item["url"])).content == PIXELS
    token = item["poster_url"].partition("?")[2]
    assert (await anyone.get(f"/files/{job_id}/0.mp4?{token}")).status_code == 404
    assert (await edge.job(job_id)).result_bytes == len(PIXELS) + len(b"a poster")


async def test_a_file_without_a_poster_has_none(edge: Edge, anyone: Client, job_id: str) -> None:
    name = "0-poster.jpg"
    token = file_token(edge.services.secret, job_id, name)
    assert (await anyone.get(f"/files/{job_id}/{name}?token={token}")).status_code == 404


async def test_a_poster_goes_with_its_job(edge: Edge, client: Client, anyone: Client) -> None:
    job_id = await submit(client)
    members = {"poster": b"a poster", "text": "a cat"}
    await edge.run(job_id, media_type="video/mp4", **members)
    await edge.project()
    [item] = (await client.get(f"/v1/jobs/{job_id}/result")).json()["results"]
    assert item["text"] == "a cat"
    assert (await client.delete(f"/v1/jobs/{job_id}")).is_success
    assert (await anyone.get(item["poster_url"])).status_code == 404
    files = [file.key async for page in edge.services.images.files(job_id) for file in page]
    assert not [key for key in files if "history" not in key]
    state = await edge.services.read_model.job(job_id)
    assert state is not None
    assert "a cat" not in repr(state)
    assert "a cat" not in repr(await edge.log.read(job_id))


async def test_an_image_that_the_caller_has_is_not_sent_again(anyone: Client, url: str) -> None:
    for method in ("GET", "HEAD"):
        for tag in (ETAG, f"W/{ETAG}", f'"other", {ETAG}', "*"):
            answer = await anyone.request(method, url, headers={"If-None-Match": tag})
            assert (answer.status_code, answer.content) == (304, b""), (method, tag)
            assert answer.headers["ETag"] == ETAG


async def test_a_range_is_answered_in_part(anyone: Client, url: str) -> None:
    for sent, part, said in (
        ("bytes=0-1", b"pi", "0-1"),
        ("bytes=2-", b"xels", "2-5"),
        ("bytes=-2", b"ls", "4-5"),
        ("bytes=-99", PIXELS, "0-5"),
        ("bytes=5-5", b"s", "5-5"),
        ("bytes=0-99", PIXELS, "0-5"),
        (f"bytes=0-{'9' * 18}", PIXELS, "0-5"),
    ):
        answer = await anyone.get(url, headers={"Range": sent})
        assert (answer.status_code, answer.content) == (206, part), sent
        assert answer.headers["Content-Range"] == f"bytes {said}/6"
        assert answer.headers["Content-Length"] == str(len(part))
        assert answer.headers["ETag"] == ETAG


async def test_a_range_behind_the_end_is_refused(anyone: Client, url: str) -> None:
    for sent in ("bytes=6-", "bytes=7-", "bytes=8000-", "bytes=99-100", "bytes=-0"):
        answer = await anyone.get(url, headers={"Range": sent})
        assert refusal(answer) == (416, "range_not_satisfiable"), sent
        assert answer.headers["Content-Range"] == "bytes */6"


async def test_what_is_no_single_range_is_answered_whole(anyone: Client, url: str) -> None:
    ranges = ("=", "=-", "=3-1", "=0-1,3-4", "=a-b")
    for sent in (*(f"bytes{each}" for each in ranges), "lines=0-1", "0-1"):
        answer = await anyone.get(url, headers={"Range": sent})
        assert (answer.status_code, answer.content) == (200, PIXELS), sent
        assert answer.headers["Accept-Ranges"] == "bytes"


async def test_what_is_sent_depends_on_the_image_that_the_caller_has(
    anyone: Client, url: str
) -> None:
    for headers, status, content in (
        ({"If-None-Match": '"other"'}, 200, PIXELS),
        ({"Range": "bytes=0-1", "If-None-Match": ETAG}, 304, b""),
        ({"Range": "bytes=0-1", "If-Range": ETAG}, 206, b"pi"),
        ({"Range": "bytes=0-1", "If-Range": '"other"'}, 200, PIXELS),
        ({"Range": "bytes=0-1", "If-Range": f"W/{ETAG}"}, 200, PIXELS),
        ({"Range": "bytes=0-1", "If-Range": "Sun, 01 Mar"}, 200, PIXELS),
    ):
        answer = await anyone.get(url, headers=headers)
        assert (answer.status_code, answer.content) == (status, content), headers


async def test_what_the_token_does_not_open_is_not_found(anyone: Client, url: str) -> None:
    path, _, token = url.partition("?token=")
    for changed in (
        path,
        f"{path}?token={token[::-1]}",
        f"{path}?token={token[:-1]}",
        f"{path.replace('0.png', '1.png')}?token={token}",
        f"{path.rpartition('/')[0].upper()}/0.png?token={token}",
    ):
        for method in ("GET", "HEAD"):
            assert (await anyone.request(method, changed)).status_code == 404, changed


async def test_a_right_token_opens_only_what_is_stored(
    edge: Edge, anyone: Client, job_id: str
) -> None:
    for name in ("1.png", "00.png", "0.jpg", "0.latent", "0", "-1.png", "9999999.png"):
        assert (await anyone.get(path_of(edge, job_id, name=name))).status_code == 404, name


async def test_an_image_that_was_removed_is_not_found(
    edge: Edge, anyone: Client, job_id: str, url: str
) -> None:
    await edge.services.images.delete(f"{job_id}/1/0.png")
    assert refusal(await anyone.get(url)) == (404, "not_found")


def path_of(edge: Edge, job_id: str, expires: int | None = None, *, name: str = "0.png") -> str:
    token = file_token(edge.services.secret, job_id, name, expires=expires)
    end = "" if expires is None else f"&expires={expires}"
    return f"/files/{job_id}/{name}?token={token}{end}"


async def test_a_url_works_until_its_end_and_is_then_gone(
    edge: Edge, client: Client, job_id: str
) -> None:
    now = int(time.time())
    answer = await client.get(path_of(edge, job_id, now + 100))
    assert answer.status_code == 200
    max_age_s = int(answer.headers["Cache-Control"].split("max-age=")[1].split(",")[0])
    assert 90 < max_age_s <= 100
    assert refusal(await client.get(path_of(edge, job_id, now - 1))) == (410, "url_expired")


async def test_nobody_can_change_the_end(edge: Edge, client: Client, job_id: str) -> None:
    now = int(time.time())
    path = path_of(edge, job_id, now - 1).partition("&expires=")[0]
    for change in (f"&expires={now + 100}", "", "&expires=x", "&expires=-1"):
        assert (await client.get(path + change)).status_code in {400, 404}, change


@pytest.mark.edge(image_url_ttl_s=60)
async def test_where_urls_have_an_end_one_without_is_gone(
    edge: Edge, client: Client, job_id: str
) -> None:
    assert (await client.get(path_of(edge, job_id))).status_code == 410
    assert (await client.get(path_of(edge, job_id, int(time.time()) + 9))).status_code == 200
    wrong = await client.get(f"/files/{job_id}/0.png?token=x")
    assert wrong.status_code == 404, "a wrong token tells nothing of the file"
