"""Keeps all loaded models within one memory limit and drops the least recently used models first.

A node can load a model of its own kind with a function that reads the model:

    def read_upscaler(path: Path, device: torch.device) -> Upscaler: ...

    upscaler: Upscaler = yield from context.model("upscale_models", name, read_upscaler)

The function returns a module, a tensor, or a dataclass of these with `weakref_slot=True`. The store
does not drop this object while there are other references to it. So every user must keep a
reference to the object itself, not to a copy.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from engine.activity import ActivityKind, ModelUse
from engine.batcher import Request
from engine.diffusion.device_error import memory_checked
from engine.diffusion.loading.streaming import FreeMemory, pinned_bytes, stream, streamed
from engine.diffusion.loading.weights import SUFFIX, damage_reported
from engine.diffusion.text.text_encoders import EncodingCache
from engine.errors import ModelsUnavailable
from engine.families.family import Preview
from engine.graph.models_folder import CONFIG_SUFFIX, ModelsFolder
from engine.options import UnetOptions
from engine.stages import Stage


@dataclass(slots=True, eq=False)
class Entry:
    value: Any
    label: str
    sizes: dict[int, int] = field(init=False)
    """Bytes on the device, by the address of each tensor. A streamed model has one number."""

    def __post_init__(self) -> None:
        self.measure()

    def measure(self) -> None:
        if (mark := streamed(self.value)) is not None:
            self.sizes = {id(self.value): mark.resident_bytes}
        else:
            self.sizes = {each.data_ptr(): each.nbytes for each in tensors_of(self.value)}

    @property
    def is_streamable(self) -> bool:
        """Whether the model can be streamed and is not streamed yet."""
        return streamed(self.value) is None and bool(getattr(self.value, "is_streamable", False))

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())

    def drop(self) -> bool:
        """Drop the value if there are no other references to it. Returns whether it was dropped."""
        # Without this entry's reference, the weak reference becomes invalid at once unless a job
        # refers to the model.
        weak = weakref.ref(self.value)
        is_cyclic = streamed(self.value) is not None
        self.value = None
        # The hooks in the layers of a streamed model refer to the model. Only the garbage collector
        # can then free the model.
        if is_cyclic:
            gc.collect()
        self.value = weak()
        return self.value is None


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in a module, a dataclass, a mapping or a sequence."""
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


T = TypeVar("T")
Read: TypeAlias = Callable[[Path, torch.device], T]
"""Reads a model from a file or folder onto a device. Raises CheckpointUnavailable."""
Identity: TypeAlias = tuple[str, int, int]
"""The path, the size in bytes and the time of the last change in nanoseconds.

Size and time include the files of a folder, or of a file's configuration folder. A replaced file
has another identity and thus counts as another model.
"""

_log = logging.getLogger(__name__)
_TEXT_CACHE_BYTES = 128 * 2**20
"""The largest size of all cached encodings of texts together."""
_MOST_INSPECTED = 128
"""The largest number of kept results of `inspect_once`. A result may take a megabyte of memory."""


class ModelStore:
    """Models in memory, with a limit of `cache_bytes`. Shared tensors count once.

    A model in use is never dropped: the drop would free no memory, and the next user would load a
    second copy.
    """

    def __init__(
        self,
        models: ModelsFolder,
        device: torch.device,
        cache_bytes: int,
        *,
        unets: UnetOptions = UnetOptions(),  # noqa: B008 - the default is frozen
        free_memory_of: FreeMemory | None = None,
    ) -> None:
        self.models = models
        self.device = device
        self.unets = unets
        self.free_memory_of = free_memory_of
        """The free memory of device and machine. None: no model is streamed."""
        self.encoding_cache = EncodingCache(_TEXT_CACHE_BYTES)
        """The results of the loaded text encoders, by text."""
        self.previews: dict[int, Preview] = {}
        """Maps from latents to preview colours, fitted to VAEs, by number of latent channels."""
        self.use = ModelUse()
        """Statistics of loads, evictions and hits. Any thread may read this attribute."""
        self._cache_bytes = cache_bytes
        self._inspected: OrderedDict[Hashable, Identity] = OrderedDict()
        """The identity of the path when `inspect_once` last called `read`, by (`read`, path). The
        most recently used item is last.
        """
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the models in memory, without duplicates."""
        labels = (entry.label for entry in list(self._entries.values()))
        return tuple(dict.fromkeys(label for label in labels if label))

    @property
    def size_bytes(self) -> int:
        """The device memory that all models use together, in bytes."""
        sizes: dict[int, int] = {}
        for entry in list(self._entries.values()):
            sizes |= entry.sizes
        return sum(sizes.values())

    def get(self, kind: str, name: str, read: Read[T]) -> T:
        """Return a model in the folder `kind`. `read` reads the model if it is not in memory."""
        path = self.models.path(kind, name)
        identity = self.identity(path)

        def create() -> T:
            self.free_for(identity[1])
            return read(path, self.device)

        return self.get_or_create((kind, identity, read), create)

    def identity(self, path: Path) -> Identity:
        """Return the identity of a file, or of a folder with all files in it."""
        return self.inspect(_identity_of, path)

    def inspect(self, read: Callable[[Path], T], path: Path) -> T:
        """Return the result of `read` for a path.

        While the models folder does not respond, the previous result is returned, so that models in
        memory can still be used. Raises ModelsUnavailable if there is no previous result, or an
        error of `read`.
        """
        return self.models.reads.read((read, path), partial(read, path), ttl_s=0)

    def inspect_once(self, read: Callable[[Path], T], path: Path, identity: Identity) -> T:
        """Like `inspect`, but the result is kept as long as the path has the same identity.

        Without this, reading the names of all tensors would take each job a millisecond or more.
        """
        key, reads = (read, path), self.models.reads
        if self._inspected.get(key) == identity:
            self._inspected.move_to_end(key)
            return cast(T, reads.last(key))
        try:
            found = reads.read_now(key, partial(read, path), ttl_s=0)
        except ModelsUnavailable:
            # The folder does not answer. `inspect` returns the last known result, if there is one.
            return self.inspect(read, path)
        self._inspected[key] = identity
        self._inspected.move_to_end(key)
        if len(self._inspected) > _MOST_INSPECTED:
            eldest, _ = self._inspected.popitem(last=False)
            reads.forget(eldest)
        return found

    def get_or_create(self, key: Hashable, create: Callable[[], T], *, label: str = "") -> T:
        """Return the object under `key`. If there is no such object, `create` makes the object.

        `create` should call `free_for` before it allocates memory for the object.
        """
        if key not in self._entries:
            # This raises ModelsUnavailable if the folder does not answer. A slow read would block
            # the device thread, which other runs need.
            self.models.require_answer()
            self._entries[key] = entry = Entry(create(), label)
            self._note(loaded=1, loaded_bytes=entry.size_bytes)
            self._evict(0, spared=1)
            self._warn_if_full()
        else:
            self._note(hits=1)
        self._entries.move_to_end(key)
        value: T = self._entries[key].value
        return value

    def free_for(self, size_bytes: int) -> None:
        """Drop unused models until `size_bytes` more are within the limit."""
        self._evict(size_bytes, spared=0)

    def free_unused(self) -> bool:
        """Drop all unused models and all encoded texts. Returns whether anything was dropped."""
        count = len(self._entries)
        self._evict(self._cache_bytes, spared=0)
        return self.encoding_cache.clear() or len(self._entries) < count

    def fits(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` fit on the device. Unused models are dropped if needed."""
        if self.free_memory_of is None or self.free_memory_of.fits(size_bytes):
            return True
        self.free_unused()
        return self.free_memory_of.fits(size_bytes)

    def free_memory(self, *, may_stream: bool = True) -> bool:
        """Drop unused models after memory ran out. Returns whether any memory was freed.

        If nothing could be dropped and `may_stream` is true, the largest streamable model is
        streamed from now on.
        """
        freed = self.free_unused()
        for key, entry in list(self._entries.items()):
            if streamed(entry.value):  # An interrupted call may have left layers on the device.
                self._stream(key, entry)
        return freed or (
            may_stream
            and self.free_memory_of is not None
            and self._stream_largest(self.free_memory_of)
        )

    def _stream_largest(self, free_memory_of: FreeMemory) -> bool:
        entries = [each for each in self._entries.items() if each[1].is_streamable]
        fitting = [each for each in entries if pinned_bytes(each[1].value) <= free_memory_of.host()]
        if not fitting:
            return False
        key, largest = max(fitting, key=lambda each: each[1].size_bytes)
        if not self._stream(key, largest):
            return False
        self._note()
        _log.warning(
            "memory ran out, so a model is streamed from now on",
            extra={"action": "stream", "model": largest.label, "held_bytes": self.size_bytes},
        )
        return True

    def _stream(self, key: Hashable, entry: Entry) -> bool:
        """Stream the model's weights from now on. Returns whether this succeeded.

        After a failure, the model is removed from the store, because only some of its weights are
        streamed.
        """
        try:
            stream(entry.value, self.device)
        except Exception:  # noqa: BLE001 - torch raises many kinds of errors, and all runs need this thread
            _log.exception(
                "a model cannot be streamed", extra={"action": "stream", "model": entry.label}
            )
            del self._entries[key]
            self._note()
            return False
        entry.measure()
        return True

    def _evict(self, more_bytes: int, *, spared: int) -> None:
        # The entries are in the order of their last use. Weights that several models share count
        # once, so the total size is computed again after each drop.
        for key in list(self._entries)[: len(self._entries) - spared]:
            if self.size_bytes + more_bytes <= self._cache_bytes:
                return
            if (entry := self._entries[key]).drop():
                del self._entries[key]
                self._note(evicted=1, evicted_bytes=entry.size_bytes)

    def _note(self, **more: int) -> None:
        sums = {name: getattr(self.use, name) + by for name, by in more.items()}
        held_bytes = self.use.held_bytes if "hits" in more else self.size_bytes
        self.use = replace(self.use, **sums, held_bytes=held_bytes)

    def _warn_if_full(self) -> None:
        size_bytes = self.size_bytes
        if size_bytes > self._cache_bytes:
            _log.warning(
                "the models in use take more than the cache",
                extra={
                    "action": "evict",
                    "size_bytes": size_bytes,
                    "cache_bytes": self._cache_bytes,
                },
            )


def _identity_of(path: Path) -> Identity:
    folder = path if path.is_dir() else path.with_suffix(CONFIG_SUFFIX)
    states = [each.stat() for each in (path, *(folder.rglob("*") if folder.is_dir() else ()))]
    return str(path), sum(s.st_size for s in states), max(s.st_mtime_ns for s in states)


@dataclass(slots=True, eq=False)
class Load(Request):
    """Loads models into memory. One call serves all runs that need the same models."""

    activity: ClassVar[ActivityKind] = ActivityKind.LOAD
    stage: ClassVar[Stage | None] = Stage.LOAD
    what: Hashable
    load: Callable[[], Any]
    rows: int = 1
    is_urgent: bool = True

    @property
    def key(self) -> Hashable:
        return "load", self.what

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        with memory_checked(), damage_reported(_named(requests[0].what)):
            loaded = requests[0].load()
            return [loaded for _ in requests]


def _named(what: Hashable) -> str:
    """Return the names of the loaded files, or "the model" if no name is known."""
    parts = [each for each in _flat(what) if isinstance(each, str) and each.endswith(SUFFIX)]
    return " and ".join(parts) or "the model"


def _flat(what: Any) -> Iterator[Any]:
    if isinstance(what, tuple):
        for each in what:
            yield from _flat(each)
    else:
        yield what
