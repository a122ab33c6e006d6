"""Results that are inputs of other jobs: their copies go with the jobs that they are from."""

from __future__ import annotations

import httpx
import pytest

from events.errors import DatabaseUnavailable
from events.log import utc_now
from events.store.uploads import Uploads
from tests.support.edge import Edge
from tests.support.uploads import png
from tests.unit.serve_app.adapters.comfy_v2.test_assets import code
from tests.unit.serve_app.adapters.comfy_v2.test_jobs import JOBS, reference, submit, with_image


async def test_a_copy_of_a_result_goes_with_its_job(edge: Edge, client: httpx.AsyncClient) -> None:
    first, other = await submit(client), await submit(client)
    for job in (first, other):
        await edge.start(job["id"])
        await edge.store_image(job["id"], data=png(size=(64, 64)))
        await edge.complete(job["id"])
        await submit(client, with_image(reference(f"{job['id']}-0")))
    async with await edge.client("bob") as bob:  # whatever it is named for
        names = {"image": (f"output-{first['id']}-0.png", png())}
        assert (await bob.post("/v1/uploads", files=names)).status_code == 200
        assert (await client.delete(f"/v1/jobs/{first['id']}")).is_success
        assert len((await bob.get("/v1/uploads")).json()["uploads"]) == 1
    [copy] = (await client.get("/v1/uploads")).json()["uploads"]
    assert copy["name"] == f"output-{other['id']}-0.png"
    gone = await client.post(JOBS, json=with_image(f"output-{first['id']}-0.png"))
    assert code(gone) == (422, "invalid_workflow")


async def test_a_copy_that_an_outage_left_goes_when_the_erasure_is_finished(
    edge: Edge, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submit(client)
    await edge.start(job["id"])
    await edge.store_image(job["id"], data=png(size=(64, 64)))
    await edge.complete(job["id"])
    await submit(client, with_image(reference(f"{job['id']}-0")))

    async def away(*_: object) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(Uploads, "remove_all", away)
        assert (await client.delete(f"/v1/jobs/{job['id']}")).status_code == 202
    assert len((await client.get("/v1/uploads")).json()["uploads"]) == 1
    now = utc_now()
    assert [id for id, _ in await edge.services.read_model.due_erasures(now, limit=9)] == [
        job["id"]
    ]
    assert await edge.services.removal.erase(job["id"])
    assert (await client.get("/v1/uploads")).json()["uploads"] == []
