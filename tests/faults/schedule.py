"""The schedule of faults, which is derived only from a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

ROLES = ("router", "dispatcher", "projection", "callbacks")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: the part that it harms and the action."""

    name: str
    shortest_s: float = 0.0
    longest_s: float = 0.0
    """Its maximum duration; 0 for a fault that is over at once."""
    needs_cluster: bool = False
    """Whether it needs more than one machine has: three NATS servers, a second node, Postgres."""


@dataclass(frozen=True, slots=True)
class Planned:
    at_s: float
    """The seconds since the load began."""
    kind: Kind
    lasts_s: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:6.1f} s  {self.kind.name}{lasts}"


def _killed_and_stopped(part: str, *, longest_s: float = 8.0) -> tuple[Kind, Kind]:
    return Kind(f"{part}_kill"), Kind(f"{part}_stop", 1.0, longest_s)


KINDS: tuple[Kind, ...] = (
    *_killed_and_stopped("replica"),
    *_killed_and_stopped("haproxy", longest_s=4.0),
    *_killed_and_stopped("controller"),
    *(kind for role in ROLES for kind in _killed_and_stopped(role)),
    # This is longer than the lease, so the process is replaced and continues beside its successor.
    *_killed_and_stopped("job", longest_s=10.0),
    *_killed_and_stopped("engine"),
    Kind("nats_kill", 0.0, 4.0),
    Kind("nats_stop", 1.0, 6.0),
    Kind("log_cut", 1.0, 5.0),
    Kind("answers_lost", 1.0, 4.0),
    Kind("acks_lost", 1.0, 4.0),
    Kind("redelivery"),
    Kind("log_full", 3.0, 8.0),
    Kind("projection_stop", 10.0, 15.0),
    Kind("database_locked", 2.0, 6.0),
    # This is longer than the time-out of a statement.
    Kind("database_dead", 11.0, 13.0),
    Kind("models_hang", 2.0, 8.0),
    Kind("engine_memory", 2.0, 5.0),
    Kind("clock_ahead", 5.0, 10.0),
    Kind("clock_behind", 5.0, 10.0),
    Kind("leader_kill", 1.0, 5.0, needs_cluster=True),
    Kind("leader_stop", 1.0, 6.0, needs_cluster=True),
    Kind("follower_kill", 1.0, 5.0, needs_cluster=True),
    Kind("database_stop", 2.0, 8.0, needs_cluster=True),
    Kind("node_kill", 2.0, 6.0, needs_cluster=True),
)


def kinds_for(*, only: Collection[str] = ()) -> list[Kind]:
    """Return the kinds that can be injected on one machine; with `only` just the named ones."""
    return [kind for kind in KINDS if not kind.needs_cluster and (not only or kind.name in only)]


def schedule(
    seed: int,
    duration_s: float,
    *,
    kinds: Sequence[Kind],
    shortest_gap_s: float = 5.0,
    longest_gap_s: float = 15.0,
) -> list[Planned]:
    """Return each kind once in a random order before any repeats; the last one ends in time."""
    chance = random.Random(f"faults {seed}")
    dealt = _dealt(chance, kinds)
    planned: list[Planned] = []
    at_s = chance.uniform(shortest_gap_s, longest_gap_s)
    while True:
        kind = next(dealt)
        lasts_s = round(chance.uniform(kind.shortest_s, kind.longest_s), 1)
        if at_s + lasts_s > duration_s:
            return planned
        planned.append(Planned(round(at_s, 1), kind, lasts_s))
        at_s += chance.uniform(shortest_gap_s, longest_gap_s)


def _dealt(chance: random.Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    while True:
        yield from chance.sample(kinds, len(kinds))
