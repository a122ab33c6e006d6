"""What an owner is told of their limits."""

from __future__ import annotations

import pytest

from tests.support.edge import Client, Edge, submit
from tests.support.generate_bodies import diffusion_body
from tests.support.uploads import upload


async def test_usage_is_that_of_all_keys_of_the_owner_alone(edge: Edge, bob: Client) -> None:
    async with await edge.client() as one, await edge.client() as two:
        done, *still_open, _ = [
            (await each.post("/diffusion/v1/generate", json=diffusion_body())).json()
            for each in (one, two, two, bob)
        ]
        await edge.run(done["request_id"])
        await edge.project()
        assert (await upload(one, "cat.png")).status_code == 200
    async with await edge.another_replica().client() as client:
        usage = (await client.get("/v1/usage")).json()
    assert usage.pop("log_bytes")["used"] > 3 * 300
    assert len(usage.pop("key_id")) == 12
    may_come = sum(job["cost"]["result_bytes"] for job in still_open)
    assert usage == {
        "owner": "alice",
        "scopes": ["cancel", "generate", "read"],
        "open_jobs": {"used": 2, "limit": 2000},
        "result_bytes": {"used": len(b"pixels") + may_come, "limit": 20 * 2**30},
        "upload_bytes": {"used": 65_536, "limit": 2 * 2**30},
    }


@pytest.mark.edge(
    owner_max_open_jobs=0,
    owner_max_log_bytes=0,
    owner_max_result_bytes=0,
    owner_max_upload_bytes=0,
)
async def test_a_limit_that_is_off_is_null(client: Client) -> None:
    usage = (await client.get("/v1/usage")).json()
    for name in ("open_jobs", "log_bytes", "result_bytes", "upload_bytes"):
        assert usage[name] == {"used": 0, "limit": None}


async def test_what_this_replica_took_counts_before_it_is_projected(client: Client) -> None:
    await submit(client)
    usage = (await client.get("/v1/usage")).json()
    assert usage["open_jobs"]["used"] == 1
    assert usage["log_bytes"]["used"] > 300
