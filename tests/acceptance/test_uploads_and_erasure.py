"""Input images and erasure, as a caller sees them."""

from __future__ import annotations

import asyncio
import io

import pytest
from PIL import Image

from tests.support.polling import eventually
from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)


def test_an_upload_is_listed_and_removed(service: Service) -> None:
    out = io.BytesIO()
    Image.new("RGBA", (3, 2), (255, 0, 0, 128)).save(out, "WEBP", lossless=True)
    answer = service.http.post("/v1/uploads", files={"image": ("../cat.webp", out.getvalue())})
    assert answer.status_code == 200
    item = answer.json()
    assert (item["name"], item["width"], item["height"]) == ("cat.webp", 3, 2)
    assert service.http.get("/v1/uploads").json() == {"uploads": [item]}
    assert service.http.delete("/v1/uploads/cat.webp").status_code == 204
    assert service.http.get("/v1/uploads").json() == {"uploads": []}


def test_a_job_that_has_ended_is_erased(service: Service) -> None:
    job_id = service.submit("diffusion", diffusion(), idempotency_key="erase-1")
    [image] = service.ended(job_id)["results"]
    whole = service.http.get(image["url"])
    part = service.http.get(image["url"], headers={"Range": "bytes=0-7"})
    assert (part.status_code, part.content) == (206, whole.content[:8])

    assert service.http.delete(f"/v1/jobs/{job_id}").json() == {"erased": True}
    result = {"request_id": job_id}
    assert service.http.get("/diffusion/v1/result", params=result).status_code == 404
    assert service.http.get(f"/v1/jobs/{job_id}").status_code == 404
    assert service.http.get(image["url"]).status_code == 404
    assert service.event_names(job_id) == ["erased"]
    assert not (service.data_dir / "images" / job_id).exists()
    again = service.http.post(
        "/diffusion/v1/generate", json=diffusion(), headers={"Idempotency-Key": "erase-1"}
    )
    assert again.status_code == 409
    assert service.http.delete(f"/v1/jobs/{job_id}").json() == {"erased": True}


def test_a_job_that_runs_is_erased_and_makes_room(service: Service) -> None:
    ids = [service.submit("diffusion", diffusion(steps=150, seed=seed)) for seed in range(3)]
    asyncio.run(eventually(lambda: "started_at" in service.result(ids[0])))
    for job_id in ids:
        assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 200
        assert service.event_names(job_id) == ["erased"]
    assert service.ended(service.submit("diffusion", diffusion()))["status"] == 1
    assert [service.event_names(job_id) for job_id in ids] == [["erased"]] * 3
