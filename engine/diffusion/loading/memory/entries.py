"""Models that are kept in memory, with what they take of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from engine.diffusion.loading.memory.streaming import streamed


@dataclass(slots=True, eq=False)
class Entry:
    """A model in memory."""

    value: Any
    label: str
    sizes: dict[int, int] = field(init=False)
    """The bytes on the device by their address; those of streamed weights have none."""

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> None:
        if (mark := streamed(self.value)) is not None:
            self.sizes = {id(self.value): mark.resident_bytes}
        else:
            self.sizes = {each.data_ptr(): each.nbytes for each in tensors_of(self.value)}

    @property
    def is_streamable(self) -> bool:
        """Whether its weights can be streamed, and are not yet."""
        return streamed(self.value) is None and bool(getattr(self.value, "is_streamable", False))

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())

    def drop(self) -> bool:
        """Drop the value if nothing else holds it; returns whether it was dropped."""
        held = weakref.ref(self.value)
        holds_itself = streamed(self.value) is not None
        self.value = None
        if holds_itself:  # by the hooks of its layers
            gc.collect()
        self.value = held()
        return self.value is None


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in a module, a dataclass, a mapping or a sequence."""
    match value:
        case Tensor():
            yield value
        case nn.Module():
            yield from value.parameters()
            yield from value.buffers()
        case Mapping():
            for each in value.values():
                yield from tensors_of(each)
        case list() | tuple():
            for each in value:
                yield from tensors_of(each)
        case _ if is_dataclass(value):
            for each in fields(value):
                yield from tensors_of(getattr(value, each.name))
