"""A fake GPU: tensors that say that they are on `cuda:0`, and compute on the CPU.

A call with tensors of both devices raises, as on a real GPU. Work that a real GPU would do is
counted, and so is every wait of the host for the GPU. The time that work takes, and the bits of
its results, are those of the CPU.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
CARD_BYTES = 24 * 2**30
SYNC, COPY, KERNEL = "sync", "copy", "kernel outside networks"
"""The kinds of counts.

- sync: the host waits until the GPU has done all its work
- copy: the GPU reads pinned memory of the host, which does not wait
- kernel outside networks: work for the GPU that no module has started
"""
_aten: Any = torch.ops.aten
_INDEXING = (_aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default)
_VIEWS = set(
    """
    alias as_strided chunk detach diagonal empty empty_like empty_strided expand lift_fresh movedim
    narrow new_empty permute reshape _reshape_alias select slice split split_with_sizes squeeze t
    transpose unbind unfold _unsafe_view unsqueeze view view_as_complex view_as_real
    """.split()  # noqa: SIM905 - a literal would have a line for each name
)
"""Operations that start no kernel."""
_FACTORIES = set(
    """
    arange empty eye full linspace ones rand randn randperm tril triu zeros
    empty_like full_like ones_like rand_like randn_like zeros_like
    """.split()  # noqa: SIM905 - a literal would have a line for each name
)
_SCALARS = {"__bool__", "__float__", "__index__", "__int__", "item", "tolist"}


class GpuTensor(Tensor):
    """A tensor on the fake GPU. torch's C++ sees a tensor on the CPU, so it chooses code for it."""

    values: Tensor
    """The same numbers on the CPU."""

    @staticmethod
    def __new__(cls, values: Tensor) -> GpuTensor:
        make: Any = Tensor._make_wrapper_subclass
        # Weights are made in inference mode here, but torch cannot make them parameters then.
        with torch.inference_mode(False):
            found: GpuTensor = make(
                cls,
                values.shape,
                strides=values.stride(),
                storage_offset=values.storage_offset(),
                dtype=values.dtype,
                layout=values.layout,
                device=CPU,
            )
        found.values = values
        return found

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute of torch.Tensor
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self.values.nbytes

    def __repr__(self, **_options: Any) -> str:
        return f"GpuTensor({self.values!r})"

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def numpy(self, **_options: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __array__(self, *_options: Any) -> Any:
        self.numpy()

    def pin_memory(self, *_options: Any) -> Tensor:
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called on the fake GPU in a thread that has none")


class GpuGenerator(torch.Generator):
    """A generator on the fake GPU. It draws the numbers of a generator on the CPU."""

    device = GPU


_make_generator = torch.Generator


def _generator(device: Any = CPU) -> torch.Generator:
    return GpuGenerator() if _is_gpu(device) else _make_generator(device)


class FakeGpu:
    """The counts of one fake GPU. Threads that start while it is open can use it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        """The counts by kind and place in the code, to find out who causes them."""
        self._local = threading.local()

    def note(self, kind: str) -> None:
        self.counts[kind] += 1
        if kind != KERNEL:
            self.places[kind, _place()] += 1

    def note_kernel(self) -> None:
        if not self.is_in_network:
            self.note(KERNEL)

    @property
    def is_in_network(self) -> bool:
        return getattr(self._local, "depth", 0) > 0

    def _move(self, by: int) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + by

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        with _Dispatch(self), _Functions(self):
            yield

    @contextmanager
    def opened(self) -> Iterator[FakeGpu]:
        """Let torch use this GPU in this thread and in threads that start within this context."""
        run = threading.Thread.run

        def run_with_gpu(thread: threading.Thread) -> None:
            with self.in_this_thread():
                run(thread)

        with ExitStack() as stack:
            stack.enter_context(patch.object(threading.Thread, "run", run_with_gpu))
            stack.enter_context(patch.object(torch, "Generator", _generator))
            for name, function in _cuda(self).items():
                stack.enter_context(patch.object(torch.cuda, name, function))
            stack.enter_context(_watched_modules(self))
            stack.enter_context(self.in_this_thread())
            yield self


@contextmanager
def _watched_modules(gpu: FakeGpu) -> Iterator[None]:
    def enter(_module: nn.Module, _inputs: Any) -> None:
        gpu._move(1)

    def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        gpu._move(-1)

    handles = [
        modules.register_module_forward_pre_hook(enter),
        modules.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for each in handles:
            each.remove()


def _cuda(gpu: FakeGpu) -> dict[str, Callable[..., Any]]:
    """Return the functions of `torch.cuda` that the engine uses."""

    class Stream:
        def __init__(self, *_options: Any) -> None: ...
        def wait_event(self, _event: Any) -> None: ...

    class Event:
        def record(self) -> None: ...

    return {
        "is_available": lambda: True,
        "mem_get_info": lambda _device=None: (CARD_BYTES, CARD_BYTES),
        "memory_reserved": lambda _device=None: 0,
        "memory_allocated": lambda _device=None: 0,
        "max_memory_allocated": lambda _device=None: 0,
        "reset_peak_memory_stats": lambda _device=None: None,
        "synchronize": lambda _device=None: gpu.note(SYNC),
        "empty_cache": lambda: None,
        "Stream": Stream,
        "Event": Event,
        "stream": lambda _stream: ExitStack(),
    }


def _place() -> str:
    """Return the nearest line of the engine or of a library of models in this call."""
    frame = sys._getframe(2)
    while frame := frame.f_back:  # type: ignore[assignment]  # the loop ends at None
        path = frame.f_code.co_filename
        for part in ("/engine/diffusion/", "/engine/nodes/", "/diffusers/", "/transformers/"):
            if part in path:
                return f"{part}{path.rpartition(part)[2]}:{frame.f_lineno}"
    return "?"


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _plain(value: Any) -> Any:
    """Return the value with tensors of the CPU, also those in a list."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.values if isinstance(value, GpuTensor) else value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    match value:
        case Tensor():
            yield value
        case list() | tuple():
            for each in value:
                yield from _tensors_in(each)
        case dict():
            yield from _tensors_in(list(value.values()))


class _Dispatch(TorchDispatchMode):
    """Runs each operation on the CPU, after a check of its devices."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = list(_tensors_in((args, kwargs)))
        own = [each for each in tensors if isinstance(each, GpuTensor)]
        if self._mixes(func, args, tensors):
            where = ["cuda:0" if isinstance(each, GpuTensor) else "cpu" for each in tensors]
            raise RuntimeError(f"{func} got tensors on different devices: {', '.join(where)}")
        # `_Functions` handles what changes the device, so a device here is that of the arguments.
        is_gpu = isinstance(args[0], GpuTensor) if func is _aten.copy_.default else bool(own)
        if own and func in {_aten._local_scalar_dense.default, _aten.nonzero.default}:
            self._gpu.note(SYNC)
        name = func._schema.name.partition("::")[2]
        if is_gpu and name not in _VIEWS:
            self._gpu.note_kernel()
        found = func(*map(_plain, args), **{key: _plain(each) for key, each in kwargs.items()})
        if func is _aten._local_scalar_dense.default or not is_gpu:
            return found

        def on_gpu(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            # An operation in place returns its argument.
            same = [each for each in own if each.values is value]
            return same[0] if same else GpuTensor(value)

        return _mapped(on_gpu, found)

    def _mixes(self, func: Any, args: Any, tensors: list[Tensor]) -> bool:
        """Return whether torch would refuse the devices. Notes copies that it would make itself."""
        on_gpu = [isinstance(each, GpuTensor) for each in tensors]
        if all(on_gpu) or not any(on_gpu):
            return False
        if func is _aten.copy_.default or (func in _INDEXING and on_gpu[0]):
            self._gpu.note(SYNC)
            return False
        # A tensor with one number and no axis may be on the CPU.
        return any(each.dim() and not own for each, own in zip(tensors, on_gpu, strict=True))


def _mapped(function: Callable[[Any], Any], found: Any) -> Any:
    if isinstance(found, list | tuple):
        return type(found)(function(each) for each in found)
    return function(found)


class _Functions(TorchFunctionMode):
    """Handles functions with a device among their arguments, which torch's C++ would refuse."""

    def __init__(self, gpu: FakeGpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        for handle in (self._made, self._moved, self._read):
            found = handle(func, name, args, kwargs)
            if found is not NotImplemented:
                return found
        return func(*args, **kwargs)

    def _made(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle functions that make tensors."""
        is_own, is_gpu = args and isinstance(args[0], GpuTensor), _is_gpu(kwargs.get("device"))
        if func is Tensor.new_tensor and (is_own or is_gpu):
            dtype = kwargs.get("dtype") or args[0].dtype
            return self._copied(torch.tensor(args[1], dtype=dtype))
        if is_gpu and name in {"tensor", "as_tensor"}:
            return self._copied(func(*args, **{**kwargs, "device": CPU}))
        if is_gpu and name in _FACTORIES:
            self._gpu.note_kernel()
            return GpuTensor(_plain(func(*map(_plain, args), **{**kwargs, "device": CPU})))
        if is_own and name.startswith("new_"):
            return GpuTensor(_plain(func(*args, **kwargs)))
        return NotImplemented

    def _moved(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle functions that may change the device of a tensor."""
        is_own = args and isinstance(args[0], GpuTensor)
        if func is Tensor.to:
            return self._to(*args, **kwargs)
        if func is Tensor.cpu:
            return self._to(args[0], CPU)
        if func is Tensor.cuda:
            return self._to(args[0], GPU)
        if func is Tensor.pin_memory and not is_own:
            pinned: Any = args[0].clone()
            pinned.is_pinned_here = True
            return pinned
        if name == "type_as" and is_own:
            return self._to(args[0], args[1].dtype)
        return NotImplemented

    def _read(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle functions for which torch's C++ reads tensors by itself."""
        is_own = args and isinstance(args[0], GpuTensor)
        if name == "_has_compatible_shallow_copy_type":
            return False  # `nn.Module.to` then makes new parameters.
        if name == "pad_sequence" and isinstance(args[0][0], GpuTensor):
            self._gpu.note_kernel()
            return GpuTensor(func(_plain(args[0]), *args[1:], **kwargs))
        if name in _SCALARS and is_own:
            self._gpu.note(SYNC)
            return func(args[0].values)
        return NotImplemented

    def _to(
        self,
        tensor: Tensor,
        *options: Any,
        device: Any = None,
        dtype: torch.dtype | None = None,
        other: Tensor | None = None,
        non_blocking: bool = False,
        copy: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        for each in options if other is None else [other]:
            match each:
                case Tensor():
                    device, dtype = each.device, each.dtype
                case torch.dtype():
                    dtype = each
                case str() | torch.device():
                    device = each
        more = {} if memory_format is None else {"memory_format": memory_format}
        to = dtype or tensor.dtype
        was_gpu = isinstance(tensor, GpuTensor)
        is_gpu = was_gpu if device is None else _is_gpu(device)
        if was_gpu == is_gpu:
            return Tensor.to(tensor, to, copy=copy, **more)
        if was_gpu:
            self._gpu.note(SYNC)
            return _plain(tensor).to(to, copy=True, **more)  # type: ignore[no-any-return]
        is_pinned = non_blocking and getattr(tensor, "is_pinned_here", False)
        return self._copied(tensor.to(to, copy=True, **more), waits=not is_pinned)

    def _copied(self, tensor: Tensor, *, waits: bool = True) -> GpuTensor:
        self._gpu.note(SYNC if waits else COPY)
        return GpuTensor(tensor)
