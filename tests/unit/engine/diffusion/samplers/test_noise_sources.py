"""The generator that draws noise, by sampler, device and setting of the WebUI."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.diffusion.samplers.noise import brownian_noise
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION as LEVELS
from engine.diffusion.samplers.noise_sources import (
    NoiseSources,
    Source,
    comfyui_sources,
    offset_on,
    seeded_randn,
    webui_sources,
)
from engine.diffusion.samplers.philox import Philox
from engine.diffusion.samplers.schedules import sigmas_for
from engine.graph import names
from engine.webui.parameters import RandnSource

CPU = torch.device("cpu")
DEVICE_PATHS = {"dpmpp_sde_gpu", "dpmpp_2m_sde_gpu", "dpmpp_2m_sde_heun_gpu", "dpmpp_3m_sde_gpu"}


@pytest.mark.parametrize("row", names.SAMPLERS, ids=lambda row: row.name)
def test_comfyui_draws_on_the_device_except_at_the_start_and_for_plain_paths(
    row: names.Sampler,
) -> None:
    path: Source = "device" if row.name in DEVICE_PATHS else "cpu"
    assert comfyui_sources(row) == NoiseSources(start="cpu", step="device", path=path)


def test_each_brownian_sampler_of_comfyui_has_a_form_for_the_device() -> None:
    brownian = {row.name for row in names.SAMPLERS if row.noise == "brownian"}
    assert brownian == DEVICE_PATHS | {name.removesuffix("_gpu") for name in DEVICE_PATHS}


@pytest.mark.parametrize(
    ("device", "on_cpu", "expected"),
    [("cpu", 0, 0), ("cpu", 1, 1), ("cuda", 0, 0), ("cuda", 1, 0), ("cuda:1", 1, 0)],
)
def test_the_seed_of_steps_is_shifted_on_a_cpu_only(
    device: str, on_cpu: int, expected: int
) -> None:
    assert offset_on(torch.device(device), on_cpu) == expected


@pytest.mark.parametrize(
    ("setting", "source"), [("CPU", "cpu"), ("GPU", "device"), ("NV", "philox")]
)
def test_the_webui_draws_all_noise_from_one_source(setting: RandnSource, source: Source) -> None:
    assert webui_sources(setting) == NoiseSources(source, source, source)


def test_each_source_draws_from_its_own_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded generator stands in for that of CUDA, which the machine of the tests lacks."""
    devices: list[Any] = []
    generator = torch.Generator

    def recorded(device: Any = "cpu") -> torch.Generator:
        devices.append(str(device))
        return generator()

    monkeypatch.setattr(torch, "Generator", recorded)
    of_seed = torch.randn((4, 4), generator=generator().manual_seed(5))
    for source, expected in (("cpu", of_seed), ("device", of_seed)):
        draw = seeded_randn(source, torch.device("cuda:1"))(5)  # type: ignore[arg-type]  # a loop
        assert torch.equal(draw((4, 4)), expected)
        assert not torch.equal(draw((4, 4)), expected)
    assert devices == ["cpu", "cuda:1"]
    assert torch.equal(seeded_randn("philox", CPU)(5)((4, 4)), Philox(5).randn((4, 4)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
def test_a_cuda_device_draws_the_numbers_of_philox() -> None:
    device, shape = torch.device("cuda"), (1, 4, 64, 64)
    drawn, computed = (seeded_randn(source, device)(7) for source in ("device", "philox"))
    for _ in range(2):
        assert torch.allclose(drawn(shape).cpu(), computed(shape), atol=5e-5)


def test_a_path_is_drawn_from_its_source() -> None:
    x, sigmas = torch.zeros(1, 4, 8, 8), sigmas_for(LEVELS, "karras", 4)
    ends = sigmas[1], sigmas[2]
    plain, computed = (
        brownian_noise(x, sigmas, 5, seeded_randn(source, CPU))(*ends)
        for source in ("device", "philox")
    )
    assert torch.equal(plain, brownian_noise(x, sigmas, 5)(*ends))
    assert not torch.allclose(plain, computed, atol=0.1)
    assert float(computed.std()) == pytest.approx(1, abs=0.2)
