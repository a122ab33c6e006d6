"""The samples of a page of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

ABOUT_PROCESSES = ("role", "process")


class Samples:
    """Values by name and labels; those of several processes are added."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families:
            for sample in family.samples:
                key = (sample.name, _key(sample.labels))
                self._values[key] = self._values.get(key, 0.0) + sample.value

    @classmethod
    def of_page(cls, text: str) -> Samples:
        return cls(text_string_to_metric_families(text))

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Samples:
        return cls(registry.collect())

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return the value; None if there is no such sample."""
        return self._values.get((f"darkroom_{name}", _key(labels)))

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self._values}


def _key(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in labels.items() if item[0] not in ABOUT_PROCESSES)
