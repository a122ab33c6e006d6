"""Where the actors run: on the worker's placement group, and within their memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group_table

from tests.support.service import Service, diffusion

MB = 2**20


@pytest.fixture
def with_gpu(tmp_path: Path) -> Iterator[Service]:
    """Ray is told of a GPU. There is none, so torch falls back to the CPU inside the bundle."""
    service = Service(tmp_path / "data", DARKROOM_RAY_NUM_GPUS="1", DARKROOM_JOBS_PER_WORKER="2")
    try:
        service.start()
        yield service
    finally:
        service.close()


def group_of(actor: str) -> str:
    handle = ray.get_actor(actor)
    return str(ray.get(handle.whereabouts.remote(), timeout=30).placement_group)


def test_engine_and_job_actors_are_inside_a_gpu_bundle_where_ray_has_gpus(
    with_gpu: Service,
) -> None:
    first = with_gpu.submit("diffusion", diffusion())
    assert with_gpu.ended(first)["status"] == 1
    second = with_gpu.submit("diffusion", diffusion())
    assert with_gpu.ended(second)["status"] == 1
    with with_gpu.cluster():
        engine = ray.get_actor("worker:default:0:engine")
        where = ray.get(engine.whereabouts.remote(), timeout=30)
        assert where.resources["GPU"] == 1
        (group,) = (g for g in placement_group_table().values() if g["state"] == "CREATED")
        assert group["bundles"] == {0: {"CPU": 1.0, "GPU": 1.0}}
        assert where.placement_group == group["placement_group_id"]
        for slot in range(2):
            assert group_of(f"worker:default:0:job:{slot}") == group["placement_group_id"]
    # With a GPU each job has an actor of its own.
    actors = {with_gpu.events(job_id)[1]["data"]["actor"] for job_id in (first, second)}
    assert len(actors) == 2


def test_without_gpus_the_bundle_is_cpu(service: Service) -> None:
    with service.cluster():
        (group,) = (g for g in placement_group_table().values() if g["state"] == "CREATED")
        assert group["bundles"] == {0: {"CPU": 1.0}}
        assert group_of("worker:default:0:engine") == group["placement_group_id"]
        assert group_of("worker:default:0:job:0") == group["placement_group_id"]


def test_replicas_and_job_actors_are_small_and_load_no_torch(service: Service) -> None:
    assert service.ended(service.submit("diffusion", diffusion(batch_size=2)))["status"] == 1
    replicas = service.processes("ray::ServeReplica:darkroom:Api")
    jobs = service.processes("ray::JobProcess")
    assert replicas
    assert jobs
    for processes, limit in ((replicas, 250 * MB), (jobs, 150 * MB)):
        for process in processes:
            assert process.memory_info().rss < limit
            assert not [m.path for m in process.memory_maps() if "libtorch" in m.path]
