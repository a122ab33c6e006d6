"""Weights from safetensors files into modules, tensor by tensor: never a whole file in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine.diffusion.loading.layout import Source, Sources
from engine.errors import CheckpointUnavailable
from engine.graph.safetensors_header import Header, read_header

M = TypeVar("M", bound=nn.Module)
SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Place:
    """The device and the type that weights are to have, rounded `through` another on the way."""

    device: torch.device
    dtype: torch.dtype
    through: torch.dtype | None = None

    def put(self, tensor: Tensor) -> Tensor:
        """A copy, for the file may change."""
        rounded = tensor if self.through is None else tensor.to(self.through)
        return rounded.to(device=self.device, dtype=self.dtype, copy=True)


class Weights:
    """One file, or the shards of one model, by names."""

    def __init__(self, *paths: Path) -> None:
        self.name = paths[0].name
        self._headers: dict[Path, Header] = {path: read_header(path) for path in paths}

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The tensors' shapes."""
        return {k: s for header in self._headers.values() for k, s in header.shapes.items()}

    @contextmanager
    def opened(self) -> Iterator[Callable[[str], Tensor]]:
        """Reads tensors by name; raises CheckpointUnavailable where they cannot be read."""
        try:
            with ExitStack() as stack:
                files: dict[str, Any] = {}
                for path, header in self._headers.items():
                    # Mapped into memory: pages come as tensors are read.
                    file = stack.enter_context(safe_open(path, framework="pt"))
                    files |= dict.fromkeys(header.shapes, file)
                yield lambda key: files[key].get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise CheckpointUnavailable(
                f"{self.name} cannot be read: {first_line(error)}"
            ) from error

    def fill(self, module: M, sources: Sources, place: Place) -> M:
        """Put every weight of a module made on the meta device in place, ready to be used."""
        wanted = module.state_dict()
        for name, tensor in wanted.items():
            self._require(sources.get(name, Source(name)), tuple(tensor.shape))
        with self.opened() as read:
            state = {
                name: place.put(_taken(read(sources[name].key), sources[name]).view(tensor.shape))
                for name, tensor in wanted.items()
            }
        module.load_state_dict(state, strict=True, assign=True)
        return module.eval().requires_grad_(False)

    def _require(self, source: Source, wanted: tuple[int, ...]) -> None:
        shape = self.shapes.get(source.key)
        if shape is None:
            raise CheckpointUnavailable(
                f"{self.name} has no {source.key}: it is incomplete, or its sizes are not those of "
                "its configuration"
            )
        found = shape
        if source.third is not None:
            found = (shape[0] // 3, *shape[1:])
        if source.transposed:
            found = shape[::-1]
        # A 1x1 convolution is a linear layer with two axes more.
        if wanted not in {found, (*found, 1, 1)} and found != (*wanted, 1, 1):
            raise CheckpointUnavailable(
                f"{self.name}: {source.key} is {_shape(shape)} and should be {_shape(wanted)} "
                "by its configuration"
            )


def _taken(tensor: Tensor, source: Source) -> Tensor:
    if source.third is not None:
        tensor = tensor.chunk(3)[source.third]
    return tensor.T.contiguous() if source.transposed else tensor


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a number"


def part_files(folder: Path) -> tuple[Path, ...]:
    """A part of a diffusers folder: its file, or all its shards."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        is_pickled = any(folder.glob("*.bin"))
        why = "only pickled weights, which can run code: save them as safetensors"
        raise CheckpointUnavailable(
            f"{folder.parent.name} has {why if is_pickled else 'no weights'} in {folder.name}/"
        )
    # A variant (`.fp16`) where there is nothing else.
    plain = [path for path in found if "." not in path.stem] or found
    whole = [path for path in plain if "-of-" not in path.stem]
    return tuple(whole[:1] or plain)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a small file; raises CheckpointUnavailable."""
    weights = Weights(path)
    with weights.opened() as read:
        return {key: read(key).clone() for key in weights.shapes}


def read_json(path: Path) -> dict[str, Any]:
    """A configuration."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        place = "/".join(path.parts[-3:])
        raise CheckpointUnavailable(f"{place} cannot be read: {first_line(error)}") from error
    return found


def first_line(error: Exception) -> str:
    """What an error of a library says before it goes into detail."""
    return str(error).strip().split("\n")[0]
