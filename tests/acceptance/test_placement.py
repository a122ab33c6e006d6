"""Where the actors run: on the worker's placement group, and within their memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
import ray
from ray.util.placement_group import placement_group_table

from actors.location import Location
from tests.support.polling import eventually
from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)

MB = 2**20
SECRET = "the secret of a test of placement"


@pytest.fixture(scope="module")
def with_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose settings claim one GPU. The machine has none, so no engine starts."""
    data = tmp_path_factory.mktemp("gpu") / "data"
    settings = {"DARKROOM_RAY_NUM_GPUS": "1", "DARKROOM_JOBS_PER_WORKER": "2"}
    with Service(data, DARKROOM_SECRET=SECRET, **settings) as service:
        yield service


async def test_an_engine_without_its_gpu_is_in_the_bundle_and_says_why(with_gpu: Service) -> None:
    with_gpu.submit("diffusion", diffusion())

    def engine() -> Location | None:
        with suppress(ray.exceptions.RayActorError, ValueError):  # its worker is replaced
            for name in with_gpu.actors(":engine"):
                found: Location = ray.get(ray.get_actor(*name).location.remote(), timeout=30)
                return found
        return None

    with with_gpu.cluster():
        where = await eventually(engine)
        assert where.resources["GPU"] == 1
        group = placement_group_table()[where.placement_group]
        assert group["bundles"] == {0: {"CPU": 1.0, "GPU": 1.0}}

    def says_why() -> bool:
        workers = with_gpu.http.get("/v1/endpoints/default").json().get("workers", [])
        return any("torch sees none" in each.get("trouble", "") for each in workers)

    await eventually(says_why)


def test_no_process_inherits_a_secret(with_gpu: Service) -> None:
    environments = []
    for process in with_gpu.processes(""):
        with suppress(psutil.Error):  # it ended, or is another user's
            environments.append(process.environ())
    assert len(environments) > 5
    assert [each for each in environments if SECRET in each.values()] == []


def groups_of(service: Service, part: str) -> list[str]:
    """The placement groups of the actors with `part` in their name."""
    found = []
    for actor in service.actors(part):
        where = ray.get(ray.get_actor(*actor).location.remote(), timeout=30)
        found.append(str(where.placement_group))
    return found


def test_without_gpus_the_bundle_is_cpu(service: Service) -> None:
    with service.cluster():
        (group,) = (g for g in placement_group_table().values() if g["state"] == "CREATED")
        assert group["bundles"] == {0: {"CPU": 1.0}}
        assert groups_of(service, ":engine") == [group["placement_group_id"]]
        assert set(groups_of(service, ":job:")) == {group["placement_group_id"]}


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


async def test_workers_come_with_the_jobs_and_go_when_idle(endpoints: Service) -> None:
    members = {"min_workers": 0, "max_workers": 2, "jobs_per_worker": 1, "idle_timeout_s": 2}
    elastic = {"id": "elastic", "gpus": 0, "cpus": 0.5} | members
    endpoints.http.post("/v1/endpoints", json=elastic).raise_for_status()

    def groups() -> int:
        return sum(
            group["state"] == "CREATED" and group["name"].startswith("worker:elastic:")
            for group in placement_group_table().values()
        )

    def submitted(**changes: int) -> str:
        return endpoints.submit("diffusion", diffusion(**changes), endpoint="elastic")

    with endpoints.cluster():
        assert groups() == 0
        ids = [submitted(steps=40, seed=seed) for seed in range(4)]
        await eventually(lambda: groups() == 2)
        for job_id in ids:
            assert endpoints.ended(job_id)["status"] == 1
        await eventually(lambda: groups() == 0)
        assert endpoints.ended(submitted())["status"] == 1
