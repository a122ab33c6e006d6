"""Files of results, by their URLs."""

from __future__ import annotations

import hashlib
import time

import pytest

from storage.file_names import JPEG, SAFETENSORS, WEBP
from storage.service_secret import file_token
from tests.support.edge import Client, Edge, lasting_headers, refusal, submit
from tests.support.generate_bodies import diffusion_body

PIXELS = b"pixels"
ETAG = f'"sha256:{hashlib.sha256(PIXELS).hexdigest()}"'


@pytest.fixture
async def url(edge: Edge, client: Client) -> str:
    """The URL of the one image of a job that has ended."""
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    await edge.run(answer.json()["request_id"])
    result = await client.get(answer.headers["Location"])
    return str(result.json()["results"][0]["url"])


@pytest.mark.parametrize("projected", [False, True])
async def test_the_url_is_enough(edge: Edge, anyone: Client, url: str, projected: bool) -> None:
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


async def test_head_has_the_headers_of_get(anyone: Client, url: str) -> None:
    get, head = await anyone.get(url), await anyone.head(url)
    assert head.status_code == 200
    assert lasting_headers(head) == lasting_headers(get)
    assert head.content == b""


async def test_a_latent_is_a_file_of_its_own_kind(
    edge: Edge, client: Client, anyone: Client
) -> None:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    job_id = answer.json()["request_id"]
    await edge.start(job_id)
    await edge.store_image(job_id, media_type=SAFETENSORS)
    await edge.complete(job_id)
    result = await client.get(answer.headers["Location"])
    url = str(result.json()["results"][0]["url"])
    assert "/0.latent?token=" in url
    for method in ("GET", "HEAD"):
        found = await anyone.request(method, url)
        assert (found.status_code, found.headers["Content-Type"]) == (200, SAFETENSORS)
    part = await anyone.get(url, headers={"Range": "bytes=0-1"})
    assert (part.status_code, part.headers["Content-Type"]) == (206, SAFETENSORS)
    token = file_token(edge.services.secret, job_id, "0.png")
    assert (await anyone.get(f"/files/{job_id}/0.png?token={token}")).status_code == 404


@pytest.mark.parametrize(("media_type", "suffix"), [(WEBP, "webp"), (JPEG, "jpg")])
async def test_an_image_of_another_format_is_named_and_sent_as_that(
    edge: Edge, client: Client, anyone: Client, media_type: str, suffix: str
) -> None:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    job_id = answer.json()["request_id"]
    await edge.start(job_id)
    await edge.store_image(job_id, media_type=media_type)
    await edge.complete(job_id)
    url = str((await client.get(answer.headers["Location"])).json()["results"][0]["url"])
    assert f"/0.{suffix}?token=" in url
    found = await anyone.get(url)
    assert (found.status_code, found.headers["Content-Type"]) == (200, media_type)


@pytest.mark.parametrize("tag", [ETAG, f"W/{ETAG}", f'"other", {ETAG}', "*"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_image_that_the_caller_has_is_not_sent_again(
    anyone: Client, url: str, tag: str, method: str
) -> None:
    answer = await anyone.request(method, url, headers={"If-None-Match": tag})
    assert answer.status_code == 304
    assert answer.content == b""
    assert answer.headers["ETag"] == ETAG


@pytest.mark.parametrize(
    ("sent", "part", "said"),
    [
        ("bytes=0-1", b"pi", "0-1"),
        ("bytes=2-", b"xels", "2-5"),
        ("bytes=-2", b"ls", "4-5"),
        ("bytes=-99", PIXELS, "0-5"),
        ("bytes=5-5", b"s", "5-5"),
        ("bytes=0-99", PIXELS, "0-5"),
        (f"bytes=0-{'9' * 18}", PIXELS, "0-5"),
    ],
)
async def test_a_range_is_answered_in_part(
    anyone: Client, url: str, sent: str, part: bytes, said: str
) -> None:
    answer = await anyone.get(url, headers={"Range": sent})
    assert answer.status_code == 206
    assert answer.content == part
    assert answer.headers["Content-Range"] == f"bytes {said}/6"
    assert answer.headers["Content-Length"] == str(len(part))
    assert answer.headers["ETag"] == ETAG


@pytest.mark.parametrize(
    "sent", ["bytes=6-", "bytes=7-", "bytes=8000-", "bytes=99-100", "bytes=-0"]
)
async def test_a_range_behind_the_end_is_refused(anyone: Client, url: str, sent: str) -> None:
    answer = await anyone.get(url, headers={"Range": sent})
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == "bytes */6"
    assert answer.json()["error"]["type"] == "range_not_satisfiable"


@pytest.mark.parametrize(
    "sent", ["bytes=", "bytes=-", "bytes=3-1", "bytes=0-1,3-4", "lines=0-1", "bytes=a-b", "0-1"]
)
async def test_what_is_no_single_range_is_answered_whole(
    anyone: Client, url: str, sent: str
) -> None:
    answer = await anyone.get(url, headers={"Range": sent})
    assert (answer.status_code, answer.content) == (200, PIXELS)
    assert answer.headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("tag", "status"), [(ETAG, 206), ('"other"', 200), (f"W/{ETAG}", 200), ("Sun, 01 Mar", 200)]
)
async def test_a_range_of_another_image_is_answered_whole(
    anyone: Client, url: str, tag: str, status: int
) -> None:
    headers = {"Range": "bytes=0-1", "If-Range": tag}
    assert (await anyone.get(url, headers=headers)).status_code == status


async def test_an_image_that_the_caller_has_is_not_sent_in_part_either(
    anyone: Client, url: str
) -> None:
    headers = {"Range": "bytes=0-1", "If-None-Match": ETAG}
    assert (await anyone.get(url, headers=headers)).status_code == 304


async def test_another_tag_is_sent_the_image(anyone: Client, url: str) -> None:
    assert (await anyone.get(url, headers={"If-None-Match": '"other"'})).content == PIXELS


@pytest.mark.parametrize("change", ["no token", "other token", "cut token", "other file", "odd id"])
async def test_what_the_token_does_not_open_is_not_found(
    anyone: Client, url: str, change: str
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


@pytest.mark.parametrize(
    "name", ["1.png", "00.png", "0.jpg", "0.latent", "0", "-1.png", "9999999.png"]
)
async def test_a_right_token_opens_only_what_is_stored(
    edge: Edge, anyone: Client, url: str, name: str
) -> None:
    job_id = url.split("/")[-2]
    token = file_token(edge.services.secret, job_id, name)
    assert (await anyone.get(f"/files/{job_id}/{name}?token={token}")).status_code == 404


async def test_an_image_that_was_removed_is_not_found(edge: Edge, anyone: Client, url: str) -> None:
    job_id = url.split("/")[-2]
    await edge.services.images.delete(f"{job_id}/1/0.png")
    assert refusal(await anyone.get(url)) == (404, "not_found")


async def ended_job(edge: Edge, client: Client) -> str:
    job_id = await submit(client)
    await edge.run(job_id)
    return job_id


def path_of(edge: Edge, job_id: str, expires: int | None) -> str:
    token = file_token(edge.services.secret, job_id, "0.png", expires=expires)
    end = "" if expires is None else f"&expires={expires}"
    return f"/files/{job_id}/0.png?token={token}{end}"


async def test_a_url_works_until_its_end_and_is_then_gone(edge: Edge, client: Client) -> None:
    job_id = await ended_job(edge, client)
    now = int(time.time())
    answer = await client.get(path_of(edge, job_id, now + 100))
    assert answer.status_code == 200
    max_age_s = int(answer.headers["Cache-Control"].split("max-age=")[1].split(",")[0])
    assert 90 < max_age_s <= 100
    assert refusal(await client.get(path_of(edge, job_id, now - 1))) == (410, "url_expired")


@pytest.mark.parametrize("change", ["&expires={later}", "", "&expires=x", "&expires=-1"])
async def test_nobody_can_change_the_end(edge: Edge, client: Client, change: str) -> None:
    job_id = await ended_job(edge, client)
    now = int(time.time())
    path = path_of(edge, job_id, now - 1).partition("&expires=")[0]
    assert (await client.get(path + change.format(later=now + 100))).status_code in {400, 404}


@pytest.mark.edge(image_url_ttl_s=60)
async def test_where_urls_have_an_end_one_without_is_gone(edge: Edge, client: Client) -> None:
    job_id = await ended_job(edge, client)
    assert (await client.get(path_of(edge, job_id, None))).status_code == 410
    assert (await client.get(path_of(edge, job_id, int(time.time()) + 9))).status_code == 200
    wrong = await client.get(f"/files/{job_id}/0.png?token=x")
    assert wrong.status_code == 404, "a wrong token tells nothing of the file"
