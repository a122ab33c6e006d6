"""Gauges that are made when somebody asks: what cannot be looked up then is absent, and not old."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.metrics_core import GaugeMetricFamily


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"darkroom_{name}", text, value=value)


def gauge_by(label: str, name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One with a label, of which `values` has each value."""
    family = GaugeMetricFamily(f"darkroom_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
