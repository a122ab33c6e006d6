"""Keeps all loaded models within one memory limit and drops the least recently used ones first.

A node loads a model of another kind with a function that reads it:

    def read_upscaler(path: Path, device: torch.device) -> Upscaler: ...

    upscaler: Upscaler = yield from context.model("upscale_models", name, read_upscaler)

The function must return the very object that users will hold: a module, a tensor, or a dataclass of
them with `weakref_slot=True`. The store looks at the references to it to see whether it is in use.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast

import torch

from engine.activity import ActivityKind, ModelUse
from engine.batcher import Request
from engine.diffusion.loading.memory.entries import Entry
from engine.diffusion.loading.memory.streaming import Room, pinned_bytes, stream, streamed
from engine.diffusion.loading.weights import SUFFIX, damage_told
from engine.diffusion.out_of_memory import memory_checked
from engine.diffusion.text.text_encoders import EncodingCache
from engine.errors import ModelsUnavailable
from engine.families.family import Preview
from engine.graph.models_folder import CONFIG_SUFFIX, ModelsFolder
from engine.options import UnetOptions
from engine.stages import Stage

T = TypeVar("T")
Read: TypeAlias = Callable[[Path, torch.device], T]
"""Reads a file or folder onto a device; raises CheckpointUnavailable."""
Identity: TypeAlias = tuple[str, int, int]
"""Path, size and time of the last change, so that a file that was replaced is another model. What
lies in the folder of its configuration counts, too."""

_log = logging.getLogger(__name__)
_MOST_INSPECTED = 128
"""What is known of a file of many tensors takes a megabyte."""


class ModelStore:
    """Models in memory, which take up to `cache_bytes`; shared tensors count once.

    A model in use is never dropped: that would free no memory, and the next user would load a
    second copy. Neither is the newest one.
    """

    def __init__(
        self,
        models: ModelsFolder,
        device: torch.device,
        cache_bytes: int,
        *,
        text_cache_bytes: int = 128 * 2**20,
        unets: UnetOptions = UnetOptions(),  # noqa: B008 - frozen
        room: Room | None = None,
    ) -> None:
        self.models = models
        self.device = device
        self.unets = unets
        self.room = room
        """What is free, where weights are streamed that do not fit; None streams nothing."""
        self.encoding_cache = EncodingCache(text_cache_bytes)
        """The texts that the loaded text encoders have encoded."""
        self.previews: dict[int, Preview] = {}
        """Maps that were fitted to VAEs, by the channels of their latents."""
        self.use = ModelUse()
        """Any thread may read it."""
        self._cache_bytes = cache_bytes
        self._inspected: OrderedDict[Hashable, Identity] = OrderedDict()
        """What each path was when it was inspected last, by function and path, latest last."""
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the models in memory, each once."""
        labels = (entry.label for entry in list(self._entries.values()))
        return tuple(dict.fromkeys(label for label in labels if label))

    @property
    def size_bytes(self) -> int:
        """The memory of the device that all models take together."""
        sizes: dict[int, int] = {}
        for entry in list(self._entries.values()):
            sizes |= entry.sizes
        return sum(sizes.values())

    def get(self, kind: str, name: str, read: Read[T]) -> T:
        """The model of that name in the folder of that kind, from memory or read by `read`."""
        path = self.models.path(kind, name)
        identity = self.identity(path)

        def create() -> T:
            self.make_room(identity[1])
            return read(path, self.device)

        return self.get_or_create((kind, identity, read), create)

    def identity(self, path: Path) -> Identity:
        """The identity of a file, or of a folder with all files in it."""
        return self.inspect(_identity_of, path)

    def inspect(self, read: Callable[[Path], T], path: Path) -> T:
        """What `read` finds at a path; while the models folder is silent, what it found before.

        So what is in memory can be used meanwhile. Raises ModelsUnavailable, and what `read` does.
        """
        return self.models.reads.read((read, path), partial(read, path), ttl_s=0)

    def inspect_once(self, read: Callable[[Path], T], path: Path, identity: Identity) -> T:
        """The same, but it is not looked for again as long as the identity of the path is the same.

        To go through the names of all tensors takes a millisecond or more of every job's start.
        """
        key, reads = (read, path), self.models.reads
        if self._inspected.get(key) == identity:
            self._inspected.move_to_end(key)
            return cast(T, reads.last(key))
        try:
            found = reads.read_now(key, partial(read, path), ttl_s=0)
        except ModelsUnavailable:
            return self.inspect(read, path)  # what was found of another identity
        self._inspected[key] = identity
        self._inspected.move_to_end(key)
        if len(self._inspected) > _MOST_INSPECTED:
            eldest, _ = self._inspected.popitem(last=False)
            reads.forget(eldest)
        return found

    def get_or_create(self, key: Hashable, create: Callable[[], T], *, label: str = "") -> T:
        """The object under `key`. `create` calls `make_room` as soon as it knows the size."""
        if key not in self._entries:
            self.models.require_answer()  # it is read on the device thread, which others need
            self._entries[key] = entry = Entry(create(), label)
            self._note(loaded=1, loaded_bytes=entry.size_bytes)
            self._evict(0, spared=1)
            self._warn_if_full()
        else:
            self._note(hits=1)
        self._entries.move_to_end(key)
        value: T = self._entries[key].value
        return value

    def make_room(self, size_bytes: int) -> None:
        """Drop models until there is room for `size_bytes`, or until all others are in use."""
        self._evict(size_bytes, spared=0)

    def free_unused(self) -> bool:
        """Drop every model that is not in use, and all encoded texts. Returns whether any was."""
        count = len(self._entries)
        self._evict(self._cache_bytes, spared=0)
        return self.encoding_cache.clear() or len(self._entries) < count

    def fits(self, size_bytes: int) -> bool:
        """Whether so much fits on the device; what no run uses is dropped if it does not else."""
        if self.room is None or self.room.fits(size_bytes):
            return True
        self.free_unused()
        return self.room.fits(size_bytes)

    def free_memory(self, *, may_stream: bool = True) -> bool:
        """Make more memory free after it ran out. Returns whether there was any to be had.

        Models that no run uses are dropped. Where there are none, the largest one that can be is
        streamed from now on.
        """
        freed = self.free_unused()
        for key, entry in list(self._entries.items()):
            if streamed(entry.value):  # the call that broke off may have left layers there
                self._stream(key, entry)
        return freed or (may_stream and self.room is not None and self._stream_largest(self.room))

    def _stream_largest(self, room: Room) -> bool:
        entries = [each for each in self._entries.items() if each[1].is_streamable]
        fitting = [each for each in entries if pinned_bytes(each[1].value) <= room.host()]
        if not fitting:
            return False
        key, largest = max(fitting, key=lambda each: each[1].size_bytes)
        if not self._stream(key, largest):
            return False
        self._note()
        _log.warning(
            "a model is streamed from now on, because memory ran out",
            extra={"action": "stream", "model": largest.label, "held_bytes": self.size_bytes},
        )
        return True

    def _stream(self, key: Hashable, entry: Entry) -> bool:
        """Stream its weights from now on. Returns whether that could be done.

        Where it could not, a part of them is streamed, so no other run gets the model.
        """
        try:
            stream(entry.value, self.device)
        except Exception:  # noqa: BLE001 - torch raises whatever it ran out of, and all runs wait
            _log.exception(
                "a model cannot be streamed", extra={"action": "stream", "model": entry.label}
            )
            del self._entries[key]
            self._note()
            return False
        entry.measure()
        return True

    def _evict(self, room_bytes: int, *, spared: int) -> None:
        for key in list(self._entries)[: len(self._entries) - spared]:
            if self.size_bytes + room_bytes <= self._cache_bytes:
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
                "models in use take more than the cache",
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
    """Loads models into memory; one call serves all runs that wait for the same ones."""

    activity: ClassVar[ActivityKind] = ActivityKind.LOAD
    stage: ClassVar[Stage | None] = Stage.LOAD
    what: Hashable
    load: Callable[[], Any]
    rows: int = 1
    goes_ahead: bool = True

    @property
    def key(self) -> Hashable:
        return "load", self.what

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Any]:
        with memory_checked(), damage_told(_named(requests[0].what)):
            loaded = requests[0].load()
            return [loaded for _ in requests]


def _named(what: Hashable) -> str:
    """The files that are loaded, as far as they say it."""
    parts = [each for each in _flat(what) if isinstance(each, str) and each.endswith(SUFFIX)]
    return " and ".join(parts) or "the model"


def _flat(what: Any) -> Iterator[Any]:
    if isinstance(what, tuple):
        for each in what:
            yield from _flat(each)
    else:
        yield what
