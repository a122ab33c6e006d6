"""Reads weights from safetensors files into modules, a few tensors at a time to save memory.

Some files have weights of eight bits with a scale, in one of the two formats of ComfyUI. Reading
multiplies these weights by their scale.
"""

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
from engine.errors import CheckpointUnavailable, is_machine_error, is_out_of_memory
from engine.graph.safetensors_header import Header, read_header

_WEIGHT = ".weight"
_SCALES = (".scale_weight", ".weight_scale")
_FORMAT = ".comfy_quant"
_MOST_FORMAT_BYTES = 4096
_SHOWN_FORMAT_CHARS = 40
_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
_FORMATS = {"float8_e4m3fn", "float8_e5m2"}


def scaled_tensor(
    key: str, shapes: Mapping[str, tuple[int, ...]], read: Callable[[str], Tensor]
) -> Tensor:
    """Return the tensor of that key, multiplied by its scale if there is a scale.

    Raises CheckpointUnavailable if the format or the scale is not supported.
    """
    stem = key.removesuffix(_WEIGHT)
    if stem == key:
        return read(key)
    if f"{stem}{_FORMAT}" in shapes:
        _require_format(read(f"{stem}{_FORMAT}"), key)
    tensor = read(key)
    scales = [f"{stem}{each}" for each in _SCALES if f"{stem}{each}" in shapes]
    if not scales:
        return tensor
    scale = read(scales[0]).float()
    if tensor.dtype not in _EIGHT_BITS or scale.numel() != 1:
        raise CheckpointUnavailable(
            f"{key} is {tensor.dtype} with {scale.numel()} scales: only fp8 with one scale is "
            "supported"
        )
    return tensor.float() * scale.reshape(())


def _require_format(content: Tensor, key: str) -> None:
    try:
        described = content.flatten()[:_MOST_FORMAT_BYTES].to(torch.uint8).tolist()
        found = str(json.loads(bytes(described))["format"])
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointUnavailable(f"{key} has no readable format of its weight") from error
    if found not in _FORMATS:
        raise CheckpointUnavailable(
            f"{key} is stored as {found[:_SHOWN_FORMAT_CHARS]}: only fp8 with one scale is "
            "supported"
        )


_log = logging.getLogger(__name__)
M = TypeVar("M", bound=nn.Module)
SUFFIX = ".safetensors"
_SHOWN_CHARS = 300
_DAMAGE_ERRORS = (
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
"""A disk reaches its full speed only with several concurrent reads."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The device and the data type for loaded weights."""

    device: torch.device
    dtype: torch.dtype
    rounded_to: torch.dtype | None = None
    """If set, values are rounded to this type before they are converted to `dtype`."""
    is_streamed: bool = False
    """Whether the weights stay in the machine's memory and are streamed to the device."""

    def convert(self, tensor: Tensor) -> Tensor:
        """Return a converted copy of the tensor, which may be a memory map of a file."""
        if self.is_streamed:
            rounded = tensor if self.rounded_to is None else tensor.to(self.rounded_to)
            kept = rounded.to(dtype=self.dtype, copy=True)
            return kept.pin_memory() if self.device.type == "cuda" else kept
        # A GPU can copy from pinned memory while the next tensors are read.
        staged = (
            tensor.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else tensor
        )
        rounded = staged if self.rounded_to is None else staged.to(self.rounded_to)
        return rounded.to(device=self.device, dtype=self.dtype, copy=rounded is tensor)


class Weights:
    """The tensors of one file, or of all shards of one model, by name."""

    def __init__(self, *paths: Path) -> None:
        self.name = paths[0].name
        self._headers: dict[Path, Header] = {path: read_header(path) for path in paths}

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {k: s for header in self._headers.values() for k, s in header.shapes.items()}

    @contextmanager
    def opened(self) -> Iterator[Callable[[str], Tensor]]:
        """Yield a function that reads a tensor by its name. Raises CheckpointUnavailable."""
        try:
            with ExitStack() as stack:
                files: dict[str, Any] = {}
                for path, header in self._headers.items():
                    # The file is memory-mapped, so only tensors that are read use memory.
                    file = stack.enter_context(safe_open(path, framework="pt"))
                    files |= dict.fromkeys(header.shapes, file)
                yield lambda key: files[key].get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise CheckpointUnavailable(
                f"{self.name} cannot be read: {first_line(error)}"
            ) from error

    def dtype_of(self, key: str) -> torch.dtype:
        with self.opened() as read:
            return read(key).dtype

    def require(self, wanted: Mapping[str, Tensor], key_map: KeyMap) -> None:
        """Raise CheckpointUnavailable unless there are tensors for all weights in `wanted`."""
        for name, tensor in wanted.items():
            self._require(key_map.get(name, StoredTensor(name)), tuple(tensor.shape))

    def load_into(self, module: M, key_map: KeyMap, target: LoadTarget) -> M:
        """Load the weights of a module that is on the meta device. Returns the module."""
        wanted = module.state_dict()
        self.require(wanted, key_map)
        with self.opened() as read, ThreadPoolExecutor(_READS_AT_ONCE) as threads:

            def weight(name: str, shape: torch.Size) -> Tensor:
                stored = key_map[name]
                whole = scaled_tensor(stored.key, self.shapes, read)
                if not whole.is_floating_point():
                    raise CheckpointUnavailable(
                        f"{self.name}: {stored.key} is stored as {whole.dtype}, which is not a "
                        "supported type of weights"
                    )
                return target.convert(_extracted(whole, stored).view(shape))

            shapes = [tensor.shape for tensor in wanted.values()]
            state = dict(zip(wanted, threads.map(weight, wanted, shapes), strict=True))
        module.load_state_dict(state, strict=True, assign=True)
        return module.eval().requires_grad_(False)

    def _require(self, stored: StoredTensor, wanted: tuple[int, ...]) -> None:
        """Raise CheckpointUnavailable unless the tensor exists and yields the `wanted` shape."""
        shape = self.shapes.get(stored.key)
        if shape is None:
            raise CheckpointUnavailable(
                f"{self.name} has no {stored.key}: the file is incomplete, or its sizes differ "
                "from its configuration"
            )
        found = stored.extracted_shape(shape)
        # A 1x1 convolution has the same weight as a linear layer, but with two more axes.
        if found is None or (wanted not in {found, (*found, 1, 1)} and found != (*wanted, 1, 1)):
            raise CheckpointUnavailable(
                f"{self.name}: {stored.key} has the shape {_dimensions(shape)}, but its "
                f"configuration needs {_dimensions(wanted)}"
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
    """Return the file or the shards of a diffusers component. Raises CheckpointUnavailable."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if not found:
        is_pickled = any(folder.glob("*.bin"))
        why = "only pickled weights, which can run code: save them as safetensors"
        raise CheckpointUnavailable(
            f"{folder.parent.name} has {why if is_pickled else 'no weights'} in {folder.name}/"
        )
    # A variant such as `.fp16` is used only if there is no other file.
    plain = [path for path in found if "." not in path.stem] or found
    whole = [path for path in plain if "-of-" not in path.stem]
    return tuple(whole[:1] or plain)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file. Raises CheckpointUnavailable."""
    weights = Weights(path)
    with weights.opened() as read:
        return {key: read(key).clone() for key in weights.shapes}


@contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Raise CheckpointUnavailable instead of a library's error about a damaged file.

    Errors of memory, device or machine are not replaced.
    """
    try:
        yield
    except _DAMAGE_ERRORS as error:
        if is_out_of_memory(error) or is_device_error(error) or is_machine_error(error):
            raise
        _log.warning("a model cannot be used", extra={"action": "load"}, exc_info=True)
        what = f"{type(error).__name__}: {first_line(error)}"
        raise CheckpointUnavailable(f"{name} cannot be used: {what[:_SHOWN_CHARS]}") from error


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
