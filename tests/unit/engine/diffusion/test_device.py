"""Which errors are the device's, and the size of its cache of models."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from engine.diffusion.device import Device, cache_bytes
from engine.diffusion.device_error import is_device_error, is_lost
from engine.errors import CheckpointUnavailable, DeviceFailed, NodeFailed
from engine.graph.models_folder import ModelsFolder
from engine.options import DeviceOptions
from tests.support.engine.fake_gpu import FakeGpu

ASSERT = torch.AcceleratorError(
    "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in ..."
)


@pytest.mark.parametrize(
    "error",
    [
        ASSERT,
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        RuntimeError("CUDA driver error: unknown error"),
    ],
    ids=str,
)
def test_these_are_errors_of_the_device(error: Exception) -> None:
    assert is_device_error(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("CUDA error"),
        IndexError("index 3 is out of range"),
        FileNotFoundError("x.safetensors"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        torch.AcceleratorError("CUDA error: invalid configuration argument"),
        RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm(...)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if ..."),
    ],
    ids=str,
)
def test_these_are_errors_of_what_was_asked_for(error: Exception) -> None:
    assert not is_device_error(error)


def test_an_error_may_be_raised_from_itself() -> None:
    error = ValueError("no")
    error.__cause__ = error
    assert not is_device_error(error)


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(ModelsFolder(tmp_path), DeviceOptions())


def test_a_node_that_failed_by_the_device_is_told_apart(device: Device) -> None:
    failed = NodeFailed("3", "KSampler", "AcceleratorError: CUDA error: device-side assert")
    failed.__cause__ = ASSERT
    found = device.diagnosed(failed)
    assert isinstance(found, DeviceFailed)
    assert str(found).startswith("The device failed: node 3 (KSampler): AcceleratorError")
    unreadable = CheckpointUnavailable("x.safetensors: CUDA error")
    unreadable.__cause__ = ASSERT
    assert isinstance(device.diagnosed(unreadable), DeviceFailed)


def test_a_node_that_failed_by_itself_stays_as_it_is(device: Device) -> None:
    failed = NodeFailed("3", "KSampler", "RuntimeError: shapes")
    failed.__cause__ = RuntimeError("shapes")
    assert device.diagnosed(failed) is failed


def test_a_cpu_is_never_lost() -> None:
    assert not is_lost(torch.device("cpu"))


@pytest.mark.parametrize("is_lost", [False, True])
def test_it_survives_pickling(is_lost: bool) -> None:
    copy = pickle.loads(pickle.dumps(DeviceFailed("The device failed: x", is_lost)))
    assert (str(copy), copy.is_lost) == ("The device failed: x", is_lost)


def test_a_gpu_that_torch_does_not_see_is_not_replaced_by_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceFailed, match="torch sees none; this torch was built"):
        Device(ModelsFolder(tmp_path), DeviceOptions(device="cuda"))


def test_a_gpu_computes_with_stated_precisions(tmp_path: Path) -> None:
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.benchmark = True
    with FakeGpu().opened():
        Device(ModelsFolder(tmp_path), DeviceOptions(device="cuda"))
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert not torch.backends.cudnn.benchmark


CARD_BYTES = 80 * 2**30


@pytest.fixture
def _card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (CARD_BYTES // 2, CARD_BYTES))


@pytest.mark.usefixtures("_card")
@pytest.mark.parametrize(
    ("options", "device", "expected"),
    [
        (DeviceOptions(), "cuda", 60 * 2**30),
        (DeviceOptions(gpu_share=0.5), "cuda", 30 * 2**30),
        (DeviceOptions(cache_bytes=2**30), "cuda", 2**30),
        (DeviceOptions(), "cpu", 8 * 2**30),
        (DeviceOptions(cache_bytes=2**30), "cpu", 2**30),
    ],
)
def test_the_cache_takes_three_quarters_of_a_gpu_unless_it_is_set(
    options: DeviceOptions, device: str, expected: int
) -> None:
    assert cache_bytes(options, torch.device(device)) == expected
