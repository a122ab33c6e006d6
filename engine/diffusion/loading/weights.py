"""Reads weights from safetensors files into modules, a few tensors at a time, to save memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine.diffusion.device_error import is_device_error
from engine.diffusion.loading.layout import KeyMap, StoredTensor
from engine.diffusion.loading.scaled import unscaled
from engine.errors import CheckpointUnavailable, is_out_of_memory
from engine.graph.safetensors_header import Header, read_header
from engine.machine_error import is_machine_error

_log = logging.getLogger(__name__)
M = TypeVar("M", bound=nn.Module)
SUFFIX = ".safetensors"
_SHOWN_CHARS = 300
_OF_CONTENT = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    SafetensorError,
    StopIteration,
    TypeError,
    ValueError,
)
_READS_AT_ONCE = 8
"""A disk is as fast as it can be only if several reads are under way."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The device and the type that weights get."""

    device: torch.device
    dtype: torch.dtype
    rounded_to: torch.dtype | None = None
    """A type that the values are rounded to before they get `dtype`."""
    is_streamed: bool = False
    """Whether they stay in the machine's memory, from where they are streamed to the device."""

    def convert(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor, which stays the same when the file changes."""
        if self.is_streamed:
            rounded = tensor if self.rounded_to is None else tensor.to(self.rounded_to)
            kept = rounded.to(dtype=self.dtype, copy=True)
            return kept.pin_memory() if self.device.type == "cuda" else kept
        # From pinned memory a GPU copies by itself, while the next tensors are read.
        staged = (
            tensor.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else tensor
        )
        rounded = staged if self.rounded_to is None else staged.to(self.rounded_to)
        return rounded.to(device=self.device, dtype=self.dtype, copy=rounded is tensor)


class Weights:
    """The tensors of one file, or of all shards of one model, by their names."""

    def __init__(self, *paths: Path) -> None:
        self.name = paths[0].name
        self._headers: dict[Path, Header] = {path: read_header(path) for path in paths}

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors by name."""
        return {k: s for header in self._headers.values() for k, s in header.shapes.items()}

    @contextmanager
    def opened(self) -> Iterator[Callable[[str], Tensor]]:
        """Gives a function that reads a tensor by its name; raises CheckpointUnavailable."""
        try:
            with ExitStack() as stack:
                files: dict[str, Any] = {}
                for path, header in self._headers.items():
                    # The file is memory-mapped: only the tensors that are read are loaded.
                    file = stack.enter_context(safe_open(path, framework="pt"))
                    files |= dict.fromkeys(header.shapes, file)
                yield lambda key: files[key].get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise CheckpointUnavailable(
                f"{self.name} cannot be read: {first_line(error)}"
            ) from error

    def require(self, wanted: Mapping[str, Tensor], key_map: KeyMap) -> None:
        """Raises CheckpointUnavailable unless there are tensors for all these weights."""
        for name, tensor in wanted.items():
            self._require(key_map.get(name, StoredTensor(name)), tuple(tensor.shape))

    def load_into(self, module: M, key_map: KeyMap, target: LoadTarget) -> M:
        """Give a module that was made on the meta device its weights; returns it, ready to use."""
        wanted = module.state_dict()
        self.require(wanted, key_map)
        with self.opened() as read, ThreadPoolExecutor(_READS_AT_ONCE) as threads:

            def weight(name: str, shape: torch.Size) -> Tensor:
                stored = key_map[name]
                whole = unscaled(stored.key, self.shapes, read)
                if not whole.is_floating_point():
                    raise CheckpointUnavailable(
                        f"{self.name}: {stored.key} is stored as {whole.dtype}, which is no type "
                        "that weights are read in"
                    )
                return target.convert(_extracted(whole, stored).view(shape))

            shapes = [tensor.shape for tensor in wanted.values()]
            state = dict(zip(wanted, threads.map(weight, wanted, shapes), strict=True))
        module.load_state_dict(state, strict=True, assign=True)
        return module.eval().requires_grad_(False)

    def _require(self, stored: StoredTensor, wanted: tuple[int, ...]) -> None:
        """Raises CheckpointUnavailable unless the tensor is there and gives a weight that shape."""
        shape = self.shapes.get(stored.key)
        if shape is None:
            raise CheckpointUnavailable(
                f"{self.name} has no {stored.key}: it is incomplete, or its sizes are not those of "
                "its configuration"
            )
        found = stored.extracted_shape(shape)
        # A 1x1 convolution has the weights of a linear layer, with two more axes.
        if found is None or (wanted not in {found, (*found, 1, 1)} and found != (*wanted, 1, 1)):
            raise CheckpointUnavailable(
                f"{self.name}: {stored.key} is {_dimensions(shape)} and should be "
                f"{_dimensions(wanted)} by its configuration"
            )


def _extracted(tensor: Tensor, stored: StoredTensor) -> Tensor:
    if stored.third is not None:
        tensor = tensor.chunk(3)[stored.third]
    if stored.rows is not None:
        tensor = tensor[slice(*stored.rows)]
    if stored.swapped:
        tensor = torch.cat(tensor.chunk(2)[::-1])
    return tensor.T.contiguous() if stored.transposed else tensor


def _dimensions(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"


def component_files(folder: Path) -> tuple[Path, ...]:
    """The weights in the folder of a diffusers component: one file, or all shards."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        is_pickled = any(folder.glob("*.bin"))
        why = "only pickled weights, which can run code: save them as safetensors"
        raise CheckpointUnavailable(
            f"{folder.parent.name} has {why if is_pickled else 'no weights'} in {folder.name}/"
        )
    # A variant (`.fp16`) only if there is nothing else.
    plain = [path for path in found if "." not in path.stem] or found
    whole = [path for path in plain if "-of-" not in path.stem]
    return tuple(whole[:1] or plain)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file; raises CheckpointUnavailable."""
    weights = Weights(path)
    with weights.opened() as read:
        return {key: read(key).clone() for key in weights.shapes}


def read_json(path: Path) -> dict[str, Any]:
    """A configuration; raises CheckpointUnavailable."""
    name = "/".join(path.parts[-3:])
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, RecursionError, ValueError) as error:
        raise CheckpointUnavailable(f"{name} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise CheckpointUnavailable(f"{name} is no configuration: it is not an object")
    return found


@contextmanager
def damage_told(name: str) -> Iterator[None]:
    """Raises CheckpointUnavailable for what a library makes of a file that is not as it should be.

    What is wrong with the memory, the device or the machine stays what it is.
    """
    try:
        yield
    except _OF_CONTENT as error:
        if is_out_of_memory(error) or is_device_error(error) or is_machine_error(error):
            raise
        _log.warning("a model cannot be used", extra={"action": "load"}, exc_info=True)
        what = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointUnavailable(f"{name} cannot be used: {what[:_SHOWN_CHARS]}") from error


def first_line(error: Exception) -> str:
    """The first line of a library's error, without its details."""
    return str(error).strip().split("\n")[0]
