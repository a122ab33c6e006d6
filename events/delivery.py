"""The state of a callback's delivery, folded from its own events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    Event,
    RedeliveryRequested,
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the delivery events of one job say so far."""

    version: int = 0
    position: int = 0
    tries: int = 0
    """Tries since the delivery was last asked for."""
    retry_at: datetime | None = None
    withheld_at: datetime | None = None
    """When a breaker first kept it from its receiver since it was last asked for."""
    delivered: bool = False
    exhausted: bool = False

    @property
    def ended(self) -> bool:
        return self.delivered or self.exhausted


def fold_delivery(events: Iterable[Event], delivery: Delivery | None = None) -> Delivery:
    delivery = delivery or Delivery()
    for event in events:
        if event.version > delivery.version:
            delivery = _next(delivery, event)
    return delivery


def request_redelivery(delivery: Delivery) -> tuple[RedeliveryRequested, ...]:
    """Nothing where no try was made since it was last asked for: it is due already."""
    return (RedeliveryRequested(),) if delivery.ended or delivery.tries else ()


def _next(delivery: Delivery, event: Event) -> Delivery:
    delivery = replace(delivery, version=event.version, position=event.position)
    match event.data:
        case CallbackAttempted(retry_at=retry_at):
            return replace(delivery, tries=delivery.tries + 1, retry_at=retry_at)
        case CallbackDelivered():
            return replace(delivery, delivered=True, retry_at=None)
        case CallbackExhausted():
            return replace(delivery, exhausted=True, retry_at=None)
        case CallbackWithheld():
            return replace(delivery, withheld_at=delivery.withheld_at or event.time)
        case RedeliveryRequested():
            return Delivery(version=delivery.version, position=delivery.position)
        case _:
            return delivery
