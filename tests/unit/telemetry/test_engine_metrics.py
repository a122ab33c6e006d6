"""What engines say of their models, added up over their processes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from engine.activity import ModelUse
from telemetry.engine_metrics import EngineMetrics
from telemetry.labels import EndpointLabels
from tests.support.telemetry.samples import Samples

ENDPOINT = {"endpoint": "default"}


class Bench:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0
        self.metrics = EngineMetrics(
            self.registry, endpoints=EndpointLabels(9), clock=lambda: self.now
        )

    def starts(self, *workers: str) -> None:
        """Their engines are asked before they get a job."""
        for worker in workers:
            self.says(worker, ModelUse())

    def says(self, worker: str, models: ModelUse, *, memory_bytes: int = 0) -> None:
        self.metrics.note(worker, "default", models, memory_bytes)

    @property
    def samples(self) -> Samples:
        return Samples.of(self.registry)

    async def looked_up(self) -> Samples:
        return Samples(await self.metrics.look())


def test_what_an_engine_says_twice_counts_once() -> None:
    bench = Bench()
    bench.starts("w1")
    use = ModelUse(loaded=2, loaded_bytes=900, evicted=1, evicted_bytes=400, hits=5)
    for _ in range(3):
        bench.says("w1", use)
    samples = bench.samples
    assert samples("models_loaded_total", **ENDPOINT) == 2
    assert samples("models_loaded_bytes_total", **ENDPOINT) == 900
    assert samples("models_evicted_total", **ENDPOINT) == 1
    assert samples("models_evicted_bytes_total", **ENDPOINT) == 400
    assert samples("model_cache_hits_total", **ENDPOINT) == 5


def test_a_new_process_takes_nothing_away() -> None:
    bench = Bench()
    bench.starts("w1", "w2")
    bench.says("w1", ModelUse(loaded=3, hits=9))
    bench.says("w2", ModelUse(loaded=1))
    bench.says("w1", ModelUse(loaded=1, hits=2))
    bench.says("w1", ModelUse(loaded=2, hits=2))
    assert bench.samples("models_loaded_total", **ENDPOINT) == 6
    assert bench.samples("model_cache_hits_total", **ENDPOINT) == 11


def test_a_new_process_that_says_less_of_one_thing_alone_takes_nothing_away() -> None:
    bench = Bench()
    bench.starts("w1")
    bench.says("w1", ModelUse(loaded=3, loaded_bytes=900))
    bench.says("w1", ModelUse(loaded=3, loaded_bytes=200))
    assert bench.samples("models_loaded_bytes_total", **ENDPOINT) == 1100


async def test_memory_is_that_of_all_engines_that_were_heard_of_lately() -> None:
    bench = Bench()
    bench.says("w1", ModelUse(held_bytes=500), memory_bytes=1000)
    bench.now = 20
    bench.says("w2", ModelUse(held_bytes=300), memory_bytes=800)
    samples = await bench.looked_up()
    assert samples("models_bytes", **ENDPOINT) == 800
    assert samples("engine_resident_memory_bytes", **ENDPOINT) == 1800
    bench.now = 40
    samples = await bench.looked_up()
    assert samples("models_bytes", **ENDPOINT) == 300
    assert samples("engine_resident_memory_bytes", **ENDPOINT) == 800


async def test_an_engine_that_was_silent_for_minutes_is_not_counted_again() -> None:
    bench = Bench()
    bench.starts("w1")
    bench.says("w1", ModelUse(loaded=2, hits=5))
    bench.now = 600
    assert (await bench.looked_up())("models_bytes", **ENDPOINT) is None
    bench.says("w1", ModelUse(loaded=3, hits=5))
    assert bench.samples("models_loaded_total", **ENDPOINT) == 3


def test_what_an_engine_did_before_it_was_found_was_counted_elsewhere() -> None:
    bench = Bench()
    bench.says("w1", ModelUse(loaded=7, hits=20))
    bench.says("w1", ModelUse(loaded=8, hits=21))
    assert bench.samples("models_loaded_total", **ENDPOINT) == 1
    assert bench.samples("model_cache_hits_total", **ENDPOINT) == 1


async def test_the_engines_of_an_endpoint_that_is_elsewhere_are_neither_told_nor_counted() -> None:
    bench = Bench()
    bench.starts("w1")
    bench.metrics.note("w9", "other", ModelUse(held_bytes=10), 30)
    bench.says("w1", ModelUse(loaded=2, held_bytes=500), memory_bytes=1000)
    bench.metrics.forget("default")
    samples = await bench.looked_up()
    assert samples("models_bytes", **ENDPOINT) is None
    assert samples("models_bytes", endpoint="other") == 10
    bench.says("w1", ModelUse(loaded=5, held_bytes=500), memory_bytes=1000)
    bench.says("w1", ModelUse(loaded=6, held_bytes=500), memory_bytes=1000)
    assert bench.samples("models_loaded_total", **ENDPOINT) == 3
    assert (await bench.looked_up())("models_bytes", **ENDPOINT) == 500
